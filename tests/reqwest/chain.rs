//! The layers as one middleware among others.

use std::{
    future::{Future, pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, HeaderValue, Request, Uri};
use reqwest::{Body, Response};
use reqwest_middleware::{
    ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, RequestBuilder,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tower::{
    Layer, Service, ServiceExt, buffer::BufferLayer, layer::layer_fn, limit::ConcurrencyLimitLayer,
    util::MapRequestLayer,
};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, Policy, RetryAfterLayer, RetryLayer, RetryOutcome,
    RetryOverride,
    call::{Attempt, Cause, StopReason},
    error::{BoxError, Refused},
    stacks::{
        self,
        reqwest::{ChainBody, ChainFuture, ChainService, TowerMiddleware},
    },
};

use crate::{
    cause, client, deps, original, outcome, outcome_of, policy,
    server::{Act, Server, reply},
    source,
};

type Handled = reqwest_middleware::Result<Response>;

/// A middleware made of a closure, which decides what becomes of each attempt.
struct Inner<F>(F);

#[async_trait]
impl<F, Fut> Middleware for Inner<F>
where
    F: Fn(reqwest::Request, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        _next: Next<'_>,
    ) -> Handled {
        let Count(count) = *extensions.get_or_insert_default();
        extensions.insert(Count(count + 1));
        self.0(request, count).await
    }
}

/// Attempts of one call, in its extensions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count(usize);

fn said(status: u16) -> Response {
    let response = http::Response::builder().status(status);
    response.body(Body::from("said")).unwrap().into()
}

/// Layers, and a last middleware that answers.
fn answering<L, S, F, Fut>(layers: L, inner: F) -> ClientWithMiddleware
where
    L: Layer<ChainService, Service = S>,
    TowerMiddleware<S>: Middleware,
    F: Fn(reqwest::Request, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send + 'static,
{
    let chain = ClientBuilder::new(client()).with(TowerMiddleware::new(layers));
    chain.with(Inner(inner)).build()
}

fn get(client: &ClientWithMiddleware) -> RequestBuilder {
    client.get("http://stock.example/items")
}

async fn failed(request: RequestBuilder) -> BoxError {
    request.send().await.unwrap_err().into()
}

// ---- beside others

/// Writes down what passes.
#[derive(Clone)]
struct Log(&'static str, Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: &str) {
        self.1.lock().unwrap().push(format!("{} {what}", self.0));
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag(&'static str);

#[async_trait]
impl Middleware for Log {
    async fn handle(
        &self,
        mut request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Handled {
        let tag = extensions.get::<Tag>().cloned();
        let attempt = extensions.get::<Attempt>().map(Attempt::number);
        self.note(&format!("in {tag:?} {attempt:?}"));
        let value = HeaderValue::from_static(self.0);
        request.headers_mut().append("x-passed", value);
        let response = next.run(request, extensions).await?;
        let attempt = extensions.get::<Attempt>().map(Attempt::number);
        self.note(&format!("out {} {attempt:?}", response.status().as_u16()));
        Ok(response)
    }
}

#[tokio::test]
async fn d_5_middlewares_before_see_one_call_and_those_after_each_attempt() {
    let server = Server::start(vec![reply(503, ""), reply(200, "")]).await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let client = ClientBuilder::new(client())
        .with(Log("outer", log.clone()))
        .with(TowerMiddleware::new(stacks::client(deps())))
        .with(Log("inner", log.clone()))
        .build();
    let response = client
        .get(server.uri())
        .with_extension(Tag("mine"))
        .send()
        .await
        .unwrap();
    assert_eq!(outcome(&response), (2, None));
    let log = log.lock().unwrap();
    let expected = [
        r#"outer in Some(Tag("mine")) None"#,
        r#"inner in Some(Tag("mine")) None"#,
        "inner out 503 None",
        r#"inner in Some(Tag("mine")) Some(2)"#,
        "inner out 200 Some(2)",
        "outer out 200 None",
    ];
    assert_eq!(*log, expected);
    for request in server.requests() {
        let passed: Vec<_> = request
            .lines()
            .filter(|l| l.starts_with("x-passed"))
            .collect();
        assert_eq!(passed, ["x-passed: outer", "x-passed: inner"]);
    }
}

/// Runs what comes after it twice.
struct Twice;

#[async_trait]
impl Middleware for Twice {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Handled {
        let again = request.try_clone().unwrap();
        next.clone().run(request, extensions).await?;
        next.run(again, extensions).await
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_a_chain_that_is_run_again_is_another_call() {
    let deps = deps();
    let client = ClientBuilder::new(client())
        .with(Twice)
        .with(TowerMiddleware::new(RetryLayer::new(deps.clone())))
        .with(Inner(|_, n| async move {
            Ok(said(if n % 2 == 0 { 503 } else { 200 }))
        }))
        .build();
    assert_eq!(outcome(&get(&client).send().await.unwrap()), (2, None));
    let status = deps.get("stock.example").status();
    assert_eq!((status.originals, status.retries), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn g_6_an_attempt_of_a_loop_above_is_no_original() {
    let deps = deps();
    let client = answering(RetryLayer::new(deps.clone()), |_, _| async {
        Ok(said(200))
    });
    let request = client.get("http://stock.example/").build().unwrap();
    let mut extensions = Extensions::new();
    extensions.insert(Attempt::retry(4));
    client
        .execute_with_extensions(request, &mut extensions)
        .await
        .unwrap();
    assert_eq!(deps.get("stock.example").status().originals, 0);
    assert_eq!(
        extensions.get(),
        Some(&Attempt::retry(4)),
        "as it was given"
    );
}

#[tokio::test(start_paused = true)]
async fn d_5_overrides_for_one_request() {
    let deps = deps();
    let client = answering(RetryLayer::new(deps.clone()), |_, _| async {
        Ok(said(503))
    });
    let with = |wish: RetryOverride| get(&client).with_extension(wish).send();
    assert_eq!(outcome(&get(&client).send().await.unwrap()).0, 4);
    let response = with(RetryOverride::new().max_retries(1)).await.unwrap();
    assert_eq!(outcome(&response), (2, Some(StopReason::Exhausted)));
    let response = with(RetryOverride::off().dependency("other"))
        .await
        .unwrap();
    assert_eq!(outcome(&response), (1, Some(StopReason::Exhausted)));
    assert_eq!(deps.get("other").status().originals, 1);
    assert_eq!(deps.get("stock.example").status().originals, 2);
}

#[tokio::test(start_paused = true)]
async fn d_7_two_stacks_in_one_chain() {
    let deps = deps();
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(RetryLayer::new(deps.clone())))
        .with(TowerMiddleware::new((
            RetryAfterLayer::new(deps.clone()),
            CircuitBreakerLayer::new(deps),
        )))
        .with(Inner(|_, n| async move {
            Ok(said(if n == 0 { 503 } else { 200 }))
        }))
        .build();
    assert_eq!(outcome(&get(&client).send().await.unwrap()), (2, None));

    // What the inner one refuses is known to the outer one as such.
    let deps = Dependencies::new(policy().max_retries(1).build().unwrap());
    let client = ClientBuilder::new(self::client())
        .with(TowerMiddleware::new(RetryLayer::new(Dependencies::new(
            policy().build().unwrap(),
        ))))
        .with(TowerMiddleware::new(CircuitBreakerLayer::new(deps)))
        .with(Inner(|_, _| async { Ok(said(500)) }))
        .build();
    let mut last = None;
    for _ in 0..3 {
        last = Some(get(&client).send().await);
    }
    let error: BoxError = last.unwrap().unwrap_err().into();
    assert!(Refused::find(&*error).is_some());
    assert_eq!(outcome_of(&error), (0, Some(StopReason::Breaker)));
}

// ---- errors

#[tokio::test]
async fn d_4_the_chain_of_an_error_holds_all() {
    let (_socket, uri) = crate::server::deaf();
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(stacks::client(deps())))
        .build();
    let error = client.get(&uri).send().await.unwrap_err();
    assert!(error.is_middleware());
    assert_eq!(RetryOutcome::of_error(&error).unwrap().attempts(), 4);
    let found = source::<reqwest::Error>(&error).unwrap();
    assert!(found.is_connect() && found.url().unwrap().as_str() == uri);
    // What anyhow is asked for it finds too.
    let Error::Middleware(error) = error else {
        unreachable!()
    };
    let found = error.chain().find_map(|link| link.downcast_ref());
    assert!(found.is_some_and(reqwest::Error::is_connect));
}

#[derive(Debug)]
struct Own(u8);

impl std::fmt::Display for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "own {}", self.0)
    }
}

impl std::error::Error for Own {}

#[tokio::test(start_paused = true)]
async fn d_4_an_error_that_no_layer_touched_is_as_it_was() {
    let breaker = || CircuitBreakerLayer::new(deps());
    let client = answering(breaker(), |_, _| async { Err(Error::middleware(Own(7))) });
    let Err(Error::Middleware(error)) = get(&client).send().await else {
        unreachable!()
    };
    assert_eq!(error.downcast_ref::<Own>().unwrap().0, 7);

    let (_socket, uri) = crate::server::deaf();
    let client = ClientBuilder::new(self::client())
        .with(TowerMiddleware::new(breaker()))
        .build();
    let error = client.get(&uri).send().await.unwrap_err();
    assert!(error.is_connect() && !error.is_middleware());
}

#[tokio::test(start_paused = true)]
async fn c_3_an_error_of_a_middleware_is_known_by_its_type() {
    let client = answering(RetryLayer::new(deps()), |_, n| async move {
        match n {
            0 => Err(Error::middleware(io::Error::from(io::ErrorKind::TimedOut))),
            _ => Ok(said(200)),
        }
    });
    assert_eq!(outcome(&get(&client).send().await.unwrap()), (2, None));
    let client = answering(RetryLayer::new(deps()), |_, _| async {
        Err(Error::middleware(Own(7)))
    });
    let error = failed(get(&client)).await;
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(source::<Own>(&*error).unwrap().0, 7);
}

#[tokio::test(start_paused = true)]
async fn c_3_a_reply_that_can_not_be_decoded_is_never_retried() {
    let client = answering(RetryLayer::new(deps()), |_, _| async {
        let error = said(200).json::<u8>().await.unwrap_err();
        Err(error.into())
    });
    let error = failed(get(&client)).await;
    assert!(original(&error).is_decode());
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(cause(&error), Cause::Serialization);
}

// ---- what a request and a response keep

#[tokio::test]
async fn d_4_a_timeout_of_the_request_holds_for_every_attempt() {
    let server = Server::start(vec![Act::Stall]).await;
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(stacks::client(deps())))
        .build();
    let limit = Duration::from_millis(40);
    let error = failed(client.get(server.uri()).timeout(limit)).await;
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert!(original(&error).is_timeout());
    assert!(server.connections() <= 4);
}

#[tokio::test(start_paused = true)]
async fn d_4_each_attempt_is_the_request_that_was_made() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let wrote = seen.clone();
    let client = answering(RetryLayer::new(deps()), move |request, n| {
        let body = request
            .body()
            .map(|body| body.as_bytes().unwrap().as_ptr() as usize);
        let (url, timeout) = (request.url().clone(), request.timeout().copied());
        let headers = request.headers().get_all("x-many").iter().cloned();
        let headers: Vec<_> = headers.collect();
        let head = (request.method().clone(), request.version(), url, timeout);
        wrote.lock().unwrap().push((head, headers, body));
        async move { Ok(said(if n < 2 { 503 } else { 200 })) }
    });
    let limit = Some(Duration::from_secs(7));
    let url = "http://user@stock.example:81/a%20b/?q=%7B1%7D#the%20part";
    for body in [None, Some(Bytes::from(vec![7; 100_000]))] {
        for timeout in [None, limit] {
            let mut request = client.put(url).header("x-many", "1").header("x-many", "2");
            request = request.version(http::Version::HTTP_2);
            if let Some(timeout) = timeout {
                request = request.timeout(timeout);
            }
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            request.send().await.unwrap();
            let sent = body.as_ref().map(|body| body.as_ptr() as usize);
            let seen = std::mem::take(&mut *seen.lock().unwrap());
            assert_eq!(seen.len(), 3);
            for ((method, version, at, limit), headers, body) in seen {
                assert_eq!(
                    (method, version),
                    (http::Method::PUT, http::Version::HTTP_2)
                );
                // reqwest makes a header of the user's name.
                assert_eq!(at.as_str(), url.replace("user@", ""));
                assert_eq!((limit, headers.len()), (timeout, 2));
                assert_eq!(body, sent, "not even copied");
            }
        }
    }
}

#[tokio::test]
async fn d_4_the_url_of_a_response_is_kept() {
    // A success, one after a retry, and a failure whose body was looked into.
    for (script, attempts) in [
        (vec![reply(200, "")], 1),
        (vec![reply(503, ""), reply(200, "")], 2),
        (vec![reply(503, "")], 4),
    ] {
        let server = Server::start(script).await;
        let client = ClientBuilder::new(client())
            .with(TowerMiddleware::new(stacks::client(deps())))
            .build();
        let url = format!("{}items?x=1#part", server.uri());
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(outcome(&response).0, attempts);
        let alone = self::client().get(&url).send().await.unwrap();
        assert_eq!(response.url(), alone.url(), "as without layers");
        assert_eq!(response.url().query(), Some("x=1"));
        assert_eq!(response.remote_addr(), Some(server.address));
        assert_eq!(response.text().await.unwrap(), "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn g_2_each_authority_is_a_dependency() {
    let deps = deps();
    let client = answering(RetryLayer::new(deps.clone()), |request, _| async move {
        Ok(said(if request.url().path() == "/x" {
            200
        } else {
            400
        }))
    });
    let authorities = [
        "a.example",
        "a.example.evil",
        "a.example:81",
        "a.examplé",
        "b.example",
    ];
    for authority in authorities {
        for _ in 0..2 {
            let response = client.get(format!("http://{authority}/x#y")).send().await;
            assert_eq!(response.unwrap().status(), 200);
        }
    }
    let counted = [
        "a.example",
        "a.example.evil",
        "a.example:81",
        "a.xn--exampl-gva",
        "b.example",
    ];
    for authority in counted {
        assert_eq!(deps.get(authority).status().originals, 2, "{authority}");
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_layer_may_send_it_elsewhere() {
    let elsewhere = MapRequestLayer::new(|mut request: Request<ChainBody>| {
        *request.uri_mut() = Uri::from_static("http://other.example/?b=2");
        request
    });
    let client = answering(elsewhere, |request, _| async move {
        assert_eq!(request.url().as_str(), "http://other.example/?b=2#part");
        Ok(said(200))
    });
    let response = client
        .get("http://stock.example/#part")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);

    // Nowhere at all is an error like others.
    let nowhere = MapRequestLayer::new(|mut request: Request<ChainBody>| {
        *request.uri_mut() = Uri::from_static("/nowhere");
        request
    });
    let layers = (RetryLayer::new(deps()), nowhere);
    let client = answering(layers, |_, _| async { unreachable!() });
    let error = failed(get(&client)).await;
    assert!(original(&error).is_builder());
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
}

#[tokio::test(start_paused = true)]
async fn d_4_a_url_that_is_no_uri_is_reqwests_to_refuse() {
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(stacks::client(deps())))
        .build();
    let error = client.get("http://{{host}}/").send().await.unwrap_err();
    assert!(error.is_builder(), "{error:?}");
}

// ---- called off

/// Says when it is dropped.
struct Guard(Arc<Mutex<Vec<String>>>, usize, Instant);

impl Guard {
    fn new(log: &Arc<Mutex<Vec<String>>>, number: usize) -> Self {
        log.lock().unwrap().push(format!("start {number}"));
        Self(log.clone(), number, Instant::now())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let after = self.2.elapsed().as_millis();
        let ended = format!("end {} after {after} ms", self.1);
        self.0.lock().unwrap().push(ended);
    }
}

#[tokio::test(start_paused = true)]
async fn d_3_an_attempt_that_times_out_is_gone_at_once() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let written = log.clone();
    // The waits between attempts are long enough for one that goes on to answer the next.
    let policy = Policy::synchronous().attempt_timeout(Duration::from_secs(1));
    let deps = Dependencies::new(policy.base(Duration::from_secs(8)).build().unwrap());
    let client = answering(RetryLayer::new(deps), move |_, n| {
        let guard = Guard::new(&written, n);
        async move {
            let _guard = guard;
            tokio::time::sleep(Duration::from_millis(1001)).await;
            Ok(said(200))
        }
    });
    let wish = RetryOverride::new().max_retries(1);
    let error = failed(get(&client).with_extension(wish)).await;
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
    let log = log.lock().unwrap();
    let expected = [
        "start 0",
        "end 0 after 1000 ms",
        "start 1",
        "end 1 after 1000 ms",
    ];
    assert_eq!(*log, expected);
}

#[tokio::test(start_paused = true)]
async fn d_6_a_call_that_is_dropped_ends_its_attempt() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let written = log.clone();
    let deps = deps();
    let client = answering(stacks::client(deps.clone()), move |_, n| {
        let guard = (n > 0).then(|| Guard::new(&written, n));
        async move {
            match guard {
                Some(_guard) => pending().await,
                None => Ok(said(503)),
            }
        }
    });
    assert!(
        timeout(Duration::from_secs(5), get(&client).send())
            .await
            .is_err()
    );
    let log = log.lock().unwrap().clone();
    assert!(log.len() == 2 && log[1].starts_with("end 1"), "{log:?}");
    // One that is waiting for its turn, too.
    let client = answering(stacks::client(deps), |_, _| async { Ok(said(503)) });
    let mut call = pin!(get(&client).send());
    poll_fn(|cx| {
        assert!(call.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn d_1_a_stall_ends_with_the_time_of_the_call() {
    let client = answering(stacks::client(deps()), |_, _| pending());
    let error = failed(get(&client)).await;
    assert_eq!(outcome_of(&error), (1, Some(StopReason::Deadline)));
    assert_eq!(cause(&error), Cause::Timeout);
}

// ---- layers of others

#[tokio::test(start_paused = true)]
async fn d_7_a_limit_inside_never_deadlocks() {
    let running = Arc::new(AtomicUsize::new(0));
    let counted = running.clone();
    let layers = (RetryLayer::new(deps()), ConcurrencyLimitLayer::new(1));
    let client = answering(layers, move |_, n| {
        let running = counted.clone();
        async move {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            tokio::time::sleep(Duration::from_secs(1)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(said(if n == 0 { 503 } else { 200 }))
        }
    });
    let calls = (0..3).map(|_| tokio::spawn(get(&client).send()));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn d_7_a_layer_may_call_from_another_task() {
    let chain = |layered: Arc<dyn Middleware>| {
        let chain = ClientBuilder::new(client()).with_arc(layered);
        let answer = |_, n| async move { Ok(said(if n == 0 { 503 } else { 200 })) };
        chain.with(Inner(answer)).build()
    };
    let buffered = layer_fn(|inner: ChainService| BufferLayer::new(4).layer(inner));
    let layers = (RetryLayer::new(deps()), buffered);
    let response = get(&chain(Arc::new(TowerMiddleware::new(layers))))
        .send()
        .await;
    assert_eq!(outcome(&response.unwrap()), (2, None));

    let spawned = layer_fn(|inner: ChainService| {
        tower::service_fn(move |request: Request<ChainBody>| {
            let answer = tokio::spawn(inner.clone().call(request));
            async { answer.await.unwrap() }
        })
    });
    let layers = (RetryLayer::new(deps()), spawned);
    let response = get(&chain(Arc::new(TowerMiddleware::new(layers))))
        .send()
        .await;
    assert_eq!(outcome(&response.unwrap()), (2, None));
}

#[tokio::test]
async fn d_7_a_call_has_one_attempt_at_a_time_and_may_send_others_of_its_own() {
    let chain = |layered: Arc<dyn Middleware>| {
        let chain = ClientBuilder::new(client()).with_arc(layered);
        chain.with(Inner(|_, _| async { Ok(said(200)) })).build()
    };
    let told = |error: BoxError| error.to_string().contains("one at a time");
    let twice = layer_fn(move |inner: ChainService| {
        tower::service_fn(move |request: Request<ChainBody>| {
            let again = request.body().with(Body::default());
            let first = inner.clone().call(request);
            let second = inner.clone().oneshot(Request::new(again));
            let alone = inner.clone().oneshot(Request::new(ChainBody::default()));
            async move {
                assert!(told(second.await.unwrap_err()));
                assert!(told(alone.await.unwrap_err()), "it belongs to no call");
                first.await
            }
        })
    });
    let response = get(&chain(Arc::new(TowerMiddleware::new(twice))))
        .send()
        .await;
    assert_eq!(
        response.unwrap().status(),
        200,
        "the first is not disturbed"
    );

    // A layer that calls anew before it drops the future it had.
    let late = layer_fn(|inner: ChainService| {
        tower::service_fn(move |request: Request<ChainBody>| {
            let mut inner = inner.clone();
            async move {
                let again = request.body().with(Body::from("more"));
                let again = Request::post(request.uri()).body(again)?;
                let mut first = pin!(inner.call(request));
                assert_eq!(first.as_mut().await?.status(), 200);
                let again = inner.call(again).await;
                assert!(first.await.is_err(), "it was answered");
                again
            }
        })
    });
    let response = get(&chain(Arc::new(TowerMiddleware::new(late))))
        .send()
        .await;
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn s_3_an_answer_is_for_the_call_that_asked() {
    // Waits for what another call asked for, which is gone.
    let stash: Arc<Mutex<Option<ChainFuture>>> = Arc::default();
    let steals = layer_fn(move |inner: ChainService| {
        let stash = stash.clone();
        tower::service_fn(move |request: Request<ChainBody>| {
            let (mine, stash) = (inner.clone().call(request), stash.clone());
            async move {
                let stolen = stash.lock().unwrap().take();
                let Some(stolen) = stolen else {
                    *stash.lock().unwrap() = Some(mine);
                    return pending().await;
                };
                assert!(stolen.await.is_err());
                mine.await
            }
        })
    });
    let client = answering(steals, |_, n| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(said(if n == 0 { 200 } else { 500 }))
    });
    let call = get(&client).send();
    assert!(timeout(Duration::from_millis(1), call).await.is_err());
    assert_eq!(get(&client).send().await.unwrap().status(), 200);
}

/// Polls a future only when its own waker was woken, as sets of futures do.
struct OwnWaker {
    future: ChainFuture,
    flag: Arc<Flag>,
}

struct Flag {
    woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.lock().unwrap().take() {
            task.wake();
        }
    }
}

impl Future for OwnWaker {
    type Output = Result<Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        *self.flag.task.lock().unwrap() = Some(cx.waker().clone());
        if !self.flag.woken.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.flag.clone());
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}

#[tokio::test(start_paused = true)]
async fn d_7_a_layer_with_wakers_of_its_own_is_woken() {
    let waking = layer_fn(|mut inner: ChainService| {
        tower::service_fn(move |request: Request<ChainBody>| OwnWaker {
            future: inner.call(request),
            flag: Arc::new(Flag {
                woken: AtomicBool::new(true),
                task: Mutex::default(),
            }),
        })
    });
    struct Shared<S>(Arc<Mutex<S>>);
    impl<S> Clone for Shared<S> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }
    impl<S: Service<Request<ChainBody>>> Service<Request<ChainBody>> for Shared<S> {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
            self.0.lock().unwrap().poll_ready(cx)
        }

        fn call(&mut self, request: Request<ChainBody>) -> S::Future {
            self.0.lock().unwrap().call(request)
        }
    }
    let shared =
        layer_fn(move |inner: ChainService| Shared(Arc::new(Mutex::new(waking.layer(inner)))));
    let let_go = Arc::new(Notify::new());
    let held = let_go.clone();
    let layers = (RetryLayer::new(deps()), shared);
    let client = answering(layers, move |_, n| {
        let held = held.clone();
        async move {
            held.notified().await;
            Ok(said(if n == 0 { 503 } else { 200 }))
        }
    });
    let call = tokio::spawn(get(&client).send());
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let_go.notify_one();
    }
    assert_eq!(outcome(&call.await.unwrap().unwrap()), (2, None));
}

#[tokio::test(start_paused = true)]
async fn cb_7_an_open_breaker_keeps_the_last_real_answer() {
    let deps = Dependencies::new(policy().consecutive_failures(2).build().unwrap());
    let client = answering(stacks::client(deps), |_, _| async { Ok(said(500)) });
    let response = get(&client).send().await.unwrap();
    assert_eq!(outcome(&response), (2, Some(StopReason::Breaker)));
    assert_eq!(response.text().await.unwrap(), "said");
    let error = failed(get(&client)).await;
    assert!(Refused::find(&*error).is_some());
}
