//! A bearer token that is renewed between attempts, by one for all.

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use tokio::{task::JoinSet, time::sleep};
use tower::{ServiceBuilder, service_fn, util::BoxCloneService};
use tower_reprise::{
    Dependencies, Policy, RetryLayer,
    call::StopReason,
    client::retry::{BearerToken, Token},
    error::{BoxError, Rule},
    policy::PolicyBuilder,
};

use crate::support::{call, outcome};

type Refreshed = Pin<Box<dyn Future<Output = Result<Token, BoxError>> + Send>>;
type Bearer = BearerToken<Box<dyn Fn() -> Refreshed + Send + Sync>>;
type Client = BoxCloneService<Request<()>, Response<()>, BoxError>;
type Outcome = Result<Response<()>, BoxError>;

/// Gives out tokens `t1`, `t2`, … and lets in who has the newest.
#[derive(Clone, Default)]
struct Authority {
    given: Arc<AtomicUsize>,
    /// The token that the dependency accepts.
    accepts: Arc<Mutex<String>>,
    /// The token of each request.
    seen: Arc<Mutex<Vec<Option<String>>>>,
}

impl Authority {
    fn given(&self) -> usize {
        self.given.load(Ordering::SeqCst)
    }

    fn seen(&self) -> Vec<Option<String>> {
        self.seen.lock().unwrap().clone()
    }

    fn accept(&self, token: &str) {
        *self.accepts.lock().unwrap() = format!("Bearer {token}");
    }

    /// The next token, after a while.
    fn next(&self) -> Refreshed {
        let number = self.given.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move {
            sleep(Duration::from_millis(100)).await;
            Token::new(&format!("t{number}"))
        })
    }

    fn token(&self) -> Bearer {
        let authority = self.clone();
        self.token_by(move || authority.next())
    }

    fn token_by(&self, next: impl Fn() -> Refreshed + Send + Sync + 'static) -> Bearer {
        BearerToken::new(Box::new(next))
    }

    /// Returns a client of a dependency that replies with these statuses first, and then by the
    /// token.
    fn client(&self, policy: PolicyBuilder, token: &Bearer, statuses: Vec<u16>) -> Client {
        let authority = self.clone();
        let calls = Arc::new(AtomicUsize::new(0));
        let dependency = service_fn(move |request: Request<()>| {
            let header = request.headers().get(AUTHORIZATION);
            let sent = header.map(|value| value.to_str().unwrap().to_owned());
            let accepted = sent.as_ref() == Some(&authority.accepts.lock().unwrap());
            authority.seen.lock().unwrap().push(sent);
            let number = calls.fetch_add(1, Ordering::SeqCst);
            let by_token = if accepted { 200 } else { 401 };
            let status = statuses.get(number).copied().unwrap_or(by_token);
            async move { Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap()) }
        });
        let deps = Dependencies::new(policy.build().unwrap());
        BoxCloneService::new(
            ServiceBuilder::new()
                .layer(RetryLayer::new(deps).with_refresh(token.clone()))
                .service(dependency),
        )
    }
}

fn policy() -> PolicyBuilder {
    Policy::http()
        .without_budget()
        .approve(Rule::R7, "all calls of a test are retried")
}

fn with(header: Option<&HeaderValue>) -> Request<()> {
    let mut request = Request::get("http://api.example/").body(()).unwrap();
    if let Some(header) = header {
        request.headers_mut().insert(AUTHORIZATION, header.clone());
    }
    request
}

fn status(result: &Outcome) -> u16 {
    result.as_ref().unwrap().status().as_u16()
}

/// A hundred calls at the same time, all with this header.
async fn hundred(client: &Client, header: &HeaderValue) -> Vec<Outcome> {
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let (mut client, request) = (client.clone(), with(Some(header)));
        calls.spawn(async move { call(&mut client, request).await });
    }
    calls.join_all().await
}

#[tokio::test(start_paused = true)]
async fn s_1_a_401_is_tried_again_with_a_new_token() {
    let authority = Authority::default();
    let token = authority.token();
    let mut client = authority.client(policy(), &token, vec![]);
    let header = token.current().await.unwrap();
    assert_eq!(header, "Bearer t1");
    assert!(header.is_sensitive());

    authority.accept("t2");
    let result = call(&mut client, with(Some(&header))).await;
    assert_eq!((status(&result), outcome(&result)), (200, Some((2, None))));
    let seen = authority.seen();
    assert_eq!(seen, [Some("Bearer t1".into()), Some("Bearer t2".into())]);
    assert_eq!(token.current().await.unwrap(), "Bearer t2", "it is kept");
    assert_eq!(authority.given(), 2);
}

#[tokio::test(start_paused = true)]
async fn s_1_a_second_401_is_final() {
    let authority = Authority::default();
    let token = authority.token();
    let mut client = authority.client(policy(), &token, vec![]);
    let header = token.current().await.unwrap();
    let result = call(&mut client, with(Some(&header))).await;
    assert_eq!(status(&result), 401);
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Exhausted))));
    assert_eq!(authority.given(), 2);
}

#[tokio::test(start_paused = true)]
async fn s_1_one_refresh_for_a_hundred_calls() {
    let authority = Authority::default();
    let token = authority.token();
    let client = authority.client(policy(), &token, vec![]);
    let header = token.current().await.unwrap();
    authority.accept("t2");
    for result in hundred(&client, &header).await {
        assert_eq!(status(&result), 200);
    }
    assert_eq!(authority.given(), 2);
    // A late call with the old token gets the new one, without another refresh.
    let result = call(&mut client.clone(), with(Some(&header))).await;
    assert_eq!((status(&result), authority.given()), (200, 2));
}

#[tokio::test(start_paused = true)]
async fn s_1_a_failed_refresh_is_everybodys() {
    let authority = Authority::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let token = authority.token_by(move || {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            if first {
                return Token::new("t1");
            }
            sleep(Duration::from_secs(5)).await;
            Err("the authorization server is down".into())
        })
    });
    let client = authority.client(policy(), &token, vec![]);
    let header = token.current().await.unwrap();
    for result in hundred(&client, &header).await {
        assert_eq!(status(&result), 401, "the last real result");
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Prepare))));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);

    // Later calls ask again, and those who ask for themselves learn why there is none.
    let result = call(&mut client.clone(), with(Some(&header))).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Prepare))));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let empty = authority.token_by(|| Box::pin(async { Err("closed".into()) }));
    let (one, other) = tokio::join!(empty.current(), empty.current());
    assert!(one.unwrap_err().to_string().contains("closed"));
    assert!(other.unwrap_err().to_string().contains("closed"));
}

#[tokio::test(start_paused = true)]
async fn s_1_a_refresh_that_brings_nothing_new_is_one_too() {
    for life in [None, Some(Duration::ZERO)] {
        let authority = Authority::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let token = authority.token_by(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                // Longer than the calls are apart.
                sleep(Duration::from_secs(5)).await;
                let token = Token::new("same")?;
                Ok(life.map_or(token.clone(), |life| token.expires_in(life)))
            })
        });
        let client = authority.client(policy(), &token, vec![]);
        let header = HeaderValue::from_static("Bearer same");
        for result in hundred(&client, &header).await {
            assert_eq!(status(&result), 401);
            assert_eq!(outcome(&result), Some((2, Some(StopReason::Exhausted))));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn d_6_a_refresh_that_is_called_off_holds_nobody_up() {
    let authority = Authority::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let token = authority.token_by(move || {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match number {
                0 => Token::new("t1"),
                1 => pending().await,
                _ => Token::new("t2"),
            }
        })
    });
    let client = authority.client(policy(), &token, vec![]);
    let header = token.current().await.unwrap();
    authority.accept("t2");
    let start = || {
        let (mut client, request) = (client.clone(), with(Some(&header)));
        tokio::spawn(async move { call(&mut client, request).await })
    };
    let first = start();
    while asked.load(Ordering::SeqCst) < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    let second = start();
    // Until it waits for the first one.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    first.abort();
    assert_eq!(status(&second.await.unwrap()), 200);
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn s_1_a_token_that_expired_is_renewed_before_a_retry() {
    for (life, second) in [(1, "Bearer t2"), (60, "Bearer t1")] {
        let authority = Authority::default();
        let next = authority.clone();
        let token = authority.token_by(move || {
            let next = next.next();
            Box::pin(async move { Ok(next.await?.expires_in(Duration::from_secs(life))) })
        });
        let header = token.current().await.unwrap();
        let seen = authority.seen.clone();
        let waits = service_fn(move |request: Request<()>| {
            let sent = request.headers()[AUTHORIZATION]
                .to_str()
                .unwrap()
                .to_owned();
            let mut seen = seen.lock().unwrap();
            seen.push(Some(sent));
            let status = if seen.len() == 1 { 503 } else { 200 };
            let response = Response::builder()
                .status(status)
                .header("retry-after", "2");
            async move { Ok::<_, Infallible>(response.body(()).unwrap()) }
        });
        let deps = Dependencies::new(policy().build().unwrap());
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps).with_refresh(token.clone()))
            .service(waits);
        let result = call(&mut client, with(Some(&header))).await;
        assert_eq!(status(&result), 200);
        let seen = authority.seen();
        assert_eq!(seen, [Some("Bearer t1".into()), Some(second.into())]);
    }
}

/// Each attempt begins as the first did, however long ago that was.
#[tokio::test(start_paused = true)]
async fn s_1_a_token_that_was_replaced_twice_is_renewed_too() {
    let authority = Authority::default();
    let next = authority.clone();
    let life = Duration::from_secs(10);
    let token = authority.token_by(move || {
        let next = next.next();
        Box::pin(async move { Ok(next.await?.expires_in(life)) })
    });
    let header = token.current().await.unwrap();
    for _ in 0..2 {
        sleep(life).await;
        token.current().await.unwrap();
    }
    authority.accept("t3");
    let mut client = authority.client(policy(), &token, vec![503]);
    let result = call(&mut client, with(Some(&header))).await;
    assert_eq!(status(&result), 200);
    let sent = ["Bearer t1", "Bearer t3"].map(|sent| Some(sent.to_owned()));
    assert_eq!(authority.seen(), sent);
}

#[tokio::test(start_paused = true)]
async fn s_1_the_current_token_is_one_that_has_not_expired() {
    let authority = Authority::default();
    let next = authority.clone();
    let token = authority.token_by(move || {
        let next = next.next();
        Box::pin(async move { Ok(next.await?.expires_in(Duration::from_secs(10))) })
    });
    assert_eq!(token.current().await.unwrap(), "Bearer t1");
    sleep(Duration::from_secs(9)).await;
    assert_eq!(token.clone().current().await.unwrap(), "Bearer t1");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(token.current().await.unwrap(), "Bearer t2");
}

#[tokio::test(start_paused = true)]
async fn s_1_credentials_are_never_added() {
    let authority = Authority::default();
    let token = authority.token();
    let mut client = authority.client(policy(), &token, vec![503, 401]);
    let result = call(&mut client, with(None)).await;
    assert_eq!(status(&result), 401);
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Prepare))));
    assert_eq!(authority.seen(), [None, None]);
    assert_eq!(authority.given(), 0);
}

#[tokio::test(start_paused = true)]
async fn s_1_credentials_from_elsewhere_are_kept() {
    for foreign in ["Basic dXNlcjpwdw==", "Bearer theirs", "Bearer", "bearer"] {
        let authority = Authority::default();
        let token = authority.token();
        token.current().await.unwrap();
        let header = HeaderValue::from_static(foreign);
        let mut client = authority.client(policy(), &token, vec![503, 503, 200]);
        let result = call(&mut client, with(Some(&header))).await;
        assert_eq!(status(&result), 200);
        assert_eq!(authority.seen(), vec![Some(foreign.to_owned()); 3]);

        let mut client = authority.client(policy(), &token, vec![401]);
        let result = call(&mut client, with(Some(&header))).await;
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Prepare))));
        assert_eq!((status(&result), authority.given()), (401, 1), "{foreign}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_another_scheme_is_kept() {
    let authority = Authority::default();
    let token = authority.token();
    let basic = HeaderValue::from_static("Basic dXNlcjpwdw==");
    let mut client = authority.client(policy(), &token, vec![503, 401]);
    let result = call(&mut client, with(Some(&basic))).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Prepare))));
    assert_eq!(authority.given(), 0, "nobody was asked");
}

#[tokio::test(start_paused = true)]
async fn s_1_a_first_token_of_the_callers_is_renewed() {
    let authority = Authority::default();
    let token = authority.token();
    authority.accept("t1");
    let mut client = authority.client(policy(), &token, vec![]);
    let header = HeaderValue::from_static("bearer old");
    let result = call(&mut client, with(Some(&header))).await;
    assert_eq!((status(&result), authority.given()), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn s_1_the_wait_for_a_token_ends_with_the_call() {
    let authority = Authority::default();
    let token = authority.token_by(|| Box::pin(pending()));
    let policy = policy().total_timeout(Duration::from_secs(3));
    let mut client = authority.client(policy, &token, vec![]);
    let header = HeaderValue::from_static("Bearer old");
    let result = call(&mut client, with(Some(&header))).await;
    assert_eq!(status(&result), 401);
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
}

#[tokio::test(start_paused = true)]
async fn s_1_a_post_without_a_key_is_sent_again_for_a_new_token() {
    let authority = Authority::default();
    let token = authority.token();
    let mut client = authority.client(policy(), &token, vec![]);
    let header = token.current().await.unwrap();
    let mut request = with(Some(&header));
    *request.method_mut() = http::Method::POST;
    let result = call(&mut client, request).await;
    assert_eq!(
        outcome(&result),
        Some((2, Some(StopReason::Exhausted))),
        "what was refused for its credentials was not executed"
    );
}

#[test]
fn s_2_a_token_is_not_shown() {
    let token = Token::new("secret").unwrap().expires_in(Duration::MAX);
    let bearer = BearerToken::new(|| async { Token::new("secret") });
    assert!(!format!("{token:?} {bearer:?}").contains("secret"));
    assert!(Token::new("line\nbreak").is_err());
}

#[tokio::test(start_paused = true)]
async fn s_1_nothing_is_asked_for_while_all_goes_well() {
    let authority = Authority::default();
    let token = authority.token();
    let mut client = authority.client(policy(), &token, vec![200]);
    let header = HeaderValue::from_static("Bearer any");
    let result = call(&mut client, with(Some(&header))).await;
    assert_eq!((status(&result), authority.given()), (200, 0));
}
