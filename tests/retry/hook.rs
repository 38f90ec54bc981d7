//! The hook that prepares a request between two attempts.

use std::{error::Error, fmt, io};

use http::{
    HeaderName, HeaderValue, Method, Request, Uri,
    header::{AUTHORIZATION, COOKIE},
};
use tokio::time::sleep;
use tower::{
    Layer, ServiceBuilder,
    util::{BoxCloneService, Either},
};
use tower_reprise::{
    Policy, RetryBudgetLayer, RetryLayer,
    call::{Attempt, PrepareError, StopReason},
    error::BoxError,
};

use crate::{
    setup::{Client, HOST, client, get, grpc, policy, request},
    support::{
        Fixed, call, code, deps, outcome,
        scripted::{Server, Step},
        secs, stop_reason,
    },
};

fn authorized(value: &'static str) -> Request<()> {
    let mut request = get();
    let headers = request.headers_mut();
    headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
    request
}

#[tokio::test(start_paused = true)]
async fn s_1_every_attempt_carries_the_original_credentials() {
    let server = Server::statuses([503, 503, 200]);
    let (_, mut client) = client(policy(), &server);
    let mut request = authorized("Bearer one");
    let headers = request.headers_mut();
    headers.append(COOKIE, HeaderValue::from_static("a=1"));
    headers.append(COOKIE, HeaderValue::from_static("b=2"));
    call(&mut client, request).await.unwrap();
    for request in server.requests() {
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer one");
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_the_hook_runs_before_each_retry_and_not_before_the_first_attempt() {
    let server = Server::statuses([503, 503, 200]);
    let hook = |mut request: Request<()>, attempt: Attempt| async move {
        sleep(secs(1)).await;
        let token = format!("Bearer {}", attempt.number());
        request
            .headers_mut()
            .insert(AUTHORIZATION, token.try_into()?);
        Ok::<_, BoxError>(request)
    };
    let deps = deps(policy().backoff(Fixed(secs(2))));
    let mut client = RetryLayer::new(deps)
        .with_prepare(hook)
        .layer(server.clone());
    call(&mut client, authorized("Bearer 1")).await.unwrap();
    let tokens = ["Bearer 1", "Bearer 2", "Bearer 3"].map(|t| Some(t.to_owned()));
    assert_eq!(server.header("authorization"), tokens);
    assert_eq!(server.waits(), [secs(3), secs(3)], "after the wait");
}

#[tokio::test(start_paused = true)]
async fn s_1_a_401_is_retried_once_and_only_if_the_hook_brings_new_credentials() {
    let hook = |request: Request<()>, _| async { Ok::<_, BoxError>(request) };
    for (statuses, refresh, calls, end, reason) in [
        (&[401, 200][..], true, 2, 200, None),
        (&[401, 401], true, 2, 401, Some(StopReason::Exhausted)),
        (&[401, 503, 401], true, 3, 401, Some(StopReason::Exhausted)),
        (&[503, 401, 503, 200], true, 4, 200, None),
        (&[401], false, 1, 401, Some(StopReason::NotRetryable)),
        (&[403], true, 1, 403, Some(StopReason::NotRetryable)),
    ] {
        let server = Server::steps(move |n| Step::status(statuses[n]));
        let layer = RetryLayer::new(deps(policy()));
        let client = match refresh {
            true => Either::Left(layer.with_refresh(hook).layer(server.clone())),
            false => Either::Right(layer.with_prepare(hook).layer(server.clone())),
        };
        let mut client: Client = BoxCloneService::new(client);
        let result = call(&mut client, authorized("Bearer one")).await;
        assert_eq!(
            (code(&result), server.calls()),
            (end, calls),
            "{statuses:?}"
        );
        assert_eq!(stop_reason(&result), reason, "{statuses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_unauthenticated_grpc_calls_are_refreshed_too() {
    let server = Server::steps(|n| match n {
        0 => Step::with_header(200, "grpc-status", "16"),
        _ => Step::with_header(200, "grpc-status", "0"),
    });
    let hook = |request: Request<()>, _| async { Ok::<_, BoxError>(request) };
    let layer = RetryLayer::new(deps(Policy::grpc_unary())).with_refresh(hook);
    let result = call(&mut layer.layer(server.clone()), grpc(true)).await;
    assert_eq!(outcome(&result), Some((2, None)));
}

/// Returns the calls, the status and the stop reason if the hook leaves these credentials on the
/// retry.
async fn prepared(
    before: &[(HeaderName, &'static str)],
    after: &'static [(HeaderName, &'static str)],
) -> (usize, u16, Option<StopReason>) {
    let server = Server::statuses([503, 200]);
    let hook = move |mut request: Request<()>, _| async move {
        for name in [AUTHORIZATION, COOKIE, http::header::PROXY_AUTHORIZATION] {
            request.headers_mut().remove(name);
        }
        for (name, value) in after {
            let value = HeaderValue::from_static(value);
            request.headers_mut().append(name, value);
        }
        Ok::<_, BoxError>(request)
    };
    let deps = deps(policy());
    let layer = RetryLayer::new(deps.clone()).with_prepare(hook);
    let mut request = get();
    for (name, value) in before {
        let value = HeaderValue::from_static(value);
        request.headers_mut().append(name, value);
    }
    let result = call(&mut layer.layer(server.clone()), request).await;
    let retries = deps.get(HOST).status().retries;
    assert_eq!(retries as usize, server.calls() - 1, "charged if sent");
    (server.calls(), code(&result), stop_reason(&result))
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_can_never_drop_or_weaken_credentials() {
    let refused = (1, 503, Some(StopReason::Prepare));
    let sent = (2, 200, None);
    let auth = |value| [(AUTHORIZATION, value)];
    assert_eq!(prepared(&auth("Bearer one"), &[]).await, refused);
    assert_eq!(
        prepared(&auth("Bearer one"), &[(AUTHORIZATION, "Basic one")]).await,
        refused
    );
    assert_eq!(
        prepared(&auth("Bearer one"), &[(COOKIE, "Bearer one")]).await,
        refused
    );
    assert_eq!(
        prepared(
            &[(http::header::PROXY_AUTHORIZATION, "Basic a")],
            &[(AUTHORIZATION, "Basic a")]
        )
        .await,
        refused
    );
    assert_eq!(prepared(&[(COOKIE, "a=1")], &[]).await, refused);
    assert_eq!(
        prepared(&auth("Bearer one"), &[(AUTHORIZATION, "bearer two")]).await,
        sent
    );
    assert_eq!(prepared(&[(COOKIE, "a=1")], &[(COOKIE, "a=2")]).await, sent);
    assert_eq!(prepared(&[], &[(AUTHORIZATION, "Bearer two")]).await, sent);
    assert_eq!(prepared(&[], &[]).await, sent);
}

#[tokio::test(start_paused = true)]
async fn s_1_credentials_without_a_scheme_or_a_value_are_no_obstacle() {
    let sent = (2, 200, None);
    let kept = prepared(&[(COOKIE, "")], &[(COOKIE, "")]).await;
    assert_eq!(kept, sent, "an empty cookie");
    let bare = [(AUTHORIZATION, "one")];
    let renewed = prepared(&bare, &[(AUTHORIZATION, "two")]).await;
    assert_eq!(renewed, sent, "a bare token");
    let emptied = prepared(&bare, &[(AUTHORIZATION, "")]).await;
    assert_eq!(emptied, (1, 503, Some(StopReason::Prepare)));
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_cannot_empty_the_credentials() {
    let before = [(AUTHORIZATION, "Bearer one")];
    for after in [
        &[(AUTHORIZATION, "Bearer")][..],
        &[(AUTHORIZATION, "Bearer ")],
    ] {
        let after: &'static _ = Box::leak(after.to_vec().into_boxed_slice());
        let end = prepared(&before, after).await;
        assert_eq!(end, (1, 503, Some(StopReason::Prepare)), "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_cannot_make_it_another_operation_or_drop_what_is_sensitive() {
    type Change = fn(&mut Request<()>);
    let changes: [(Change, usize); 3] = [
        (|request| *request.method_mut() = Method::DELETE, 1),
        (|request| drop(request.headers_mut().remove("x-api-key")), 1),
        (
            |request| {
                let renewed = HeaderValue::from_static("two");
                request.headers_mut().insert("x-api-key", renewed);
            },
            2,
        ),
    ];
    for (row, (change, calls)) in changes.into_iter().enumerate() {
        let server = Server::statuses([503, 200]);
        let hook = move |mut request: Request<()>, _| async move {
            change(&mut request);
            Ok::<_, BoxError>(request)
        };
        let layer = RetryLayer::new(deps(policy())).with_prepare(hook);
        let mut request = get();
        let mut key = HeaderValue::from_static("one");
        key.set_sensitive(true);
        request.headers_mut().insert("x-api-key", key);
        let result = call(&mut layer.layer(server.clone()), request).await;
        assert_eq!(server.calls(), calls, "row {row}");
        assert_eq!(
            stop_reason(&result),
            (calls == 1).then_some(StopReason::Prepare),
            "row {row}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_cannot_leave_an_encrypted_connection() {
    for (before, after, calls) in [
        ("https://a.example/", "http://a.example/", 1),
        ("https://a.example/", "/", 1),
        ("https://a.example/", "https://a.example/renewed", 2),
        ("http://a.example/", "https://a.example/", 2),
    ] {
        let server = Server::statuses([503, 200]);
        let hook = move |mut request: Request<()>, _| async move {
            *request.uri_mut() = Uri::from_static(after);
            Ok::<_, BoxError>(request)
        };
        let layer = RetryLayer::new(deps(policy())).with_prepare(hook);
        let mut request = get();
        *request.uri_mut() = Uri::from_static(before);
        let result = call(&mut layer.layer(server.clone()), request).await;
        assert_eq!(server.calls(), calls, "{before} to {after}");
        let reason = (calls == 1).then_some(StopReason::Prepare);
        assert_eq!(stop_reason(&result), reason, "{before} to {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_that_fails_sends_nothing_and_the_last_result_returns() {
    let server = Server::statuses([503, 502]);
    let hook = |request: Request<()>, attempt: Attempt| async move {
        match attempt.number() {
            2 => Ok(request),
            _ => Err::<_, BoxError>("no token".into()),
        }
    };
    let deps = deps(policy());
    let layer = RetryLayer::new(deps.clone()).with_prepare(hook);
    let result = call(&mut layer.layer(server.clone()), get()).await;
    assert_eq!((code(&result), server.calls()), (502, 2));
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Prepare))));
    assert_eq!(
        deps.get(HOST).status().retries,
        1,
        "the second was given back"
    );
}

/// A hook that makes the request anew rather than changing it.
fn anew()
-> impl Fn(Request<()>, Attempt) -> std::future::Ready<Result<Request<()>, BoxError>> + Clone {
    |old, _| {
        let mut new = Request::new(());
        *new.method_mut() = old.method().clone();
        *new.uri_mut() = old.uri().clone();
        std::future::ready(Ok(new))
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_a_request_made_anew_by_the_hook_is_still_a_retry() {
    let server = Server::statuses([503, 503, 200]);
    let deps = deps(policy());
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(anew()))
        .layer(RetryBudgetLayer::new(deps.clone()))
        .service(server.clone());
    call(&mut client, get()).await.unwrap();
    let status = deps.get(HOST).status();
    assert_eq!((status.originals, status.retries), (1, 2));
    let numbers = server.requests().into_iter().map(|request| {
        let attempt = request.extensions().get::<Attempt>().copied();
        attempt.map_or(1, |attempt| attempt.number())
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn c_5_a_hook_that_loses_the_key_sends_nothing() {
    let server = Server::statuses([503, 200]);
    let layer = RetryLayer::new(deps(policy())).with_prepare(anew());
    let mut keyed = request(Method::POST);
    keyed
        .headers_mut()
        .insert("idempotency-key", HeaderValue::from_static("k"));
    let result = call(&mut layer.layer(server.clone()), keyed).await;
    assert_eq!(server.calls(), 1);
    assert_eq!(
        (code(&result), stop_reason(&result)),
        (503, Some(StopReason::Prepare))
    );
}

/// The token was refused, so nothing was executed and nothing is busy.
#[tokio::test(start_paused = true)]
async fn s_1_a_refresh_goes_out_at_once_whatever_the_method() {
    let hook = |request: Request<()>, _| async { Ok::<_, BoxError>(request) };
    for method in [Method::GET, Method::POST, Method::PATCH] {
        let server = Server::statuses([401, 503, 200]);
        let deps = deps(policy().backoff(Fixed(secs(5))));
        let layer = RetryLayer::new(deps).with_refresh(hook);
        let safe = method == Method::GET;
        let result = call(&mut layer.layer(server.clone()), request(method)).await;
        match safe {
            true => assert_eq!(server.waits(), [secs(0), secs(5)]),
            false => assert_eq!(server.waits(), [secs(0)]),
        }
        let reason = (!safe).then_some(StopReason::NotIdempotent);
        assert_eq!(stop_reason(&result), reason, "a 503 may have had an effect");
    }
    // Not before the time that the dependency asked for.
    let server = Server::steps(|n| match n {
        0 => Step::with_header(401, "retry-after", "3"),
        _ => Step::status(200),
    });
    let layer = RetryLayer::new(deps(policy().backoff(Fixed(secs(5))))).with_refresh(hook);
    call(&mut layer.layer(server.clone()), get()).await.unwrap();
    assert!((secs(3)..secs(5)).contains(&server.waits()[0]));
}

#[tokio::test(start_paused = true)]
async fn s_1_why_a_retry_could_not_be_prepared_is_beside_the_last_result() {
    let failing = |_, _| async { Err::<Request<()>, BoxError>(fmt::Error.into()) };
    let harmful = |mut request: Request<()>, _| async {
        request.headers_mut().remove(AUTHORIZATION);
        Ok::<_, BoxError>(request)
    };
    // A response has it in its extensions.
    let server = Server::statuses([401]);
    let layer = RetryLayer::new(deps(policy())).with_refresh(failing);
    let result = call(&mut layer.layer(server), authorized("Bearer one")).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Prepare))));
    let response = result.unwrap();
    let error = PrepareError::of(&response).unwrap();
    assert!(error.source().unwrap().is::<fmt::Error>());

    // An error is unchanged as a source.
    let server = Server::steps(|_| Step::reset());
    let layer = RetryLayer::new(deps(policy())).with_prepare(failing);
    let error = call(&mut layer.layer(server), get()).await.unwrap_err();
    assert!(error.source().unwrap().is::<io::Error>());
    let why = PrepareError::of_error(&*error).unwrap();
    assert!(why.source().unwrap().is::<fmt::Error>());

    // Harm is told too, and nothing else is.
    let server = Server::statuses([503]);
    let layer = RetryLayer::new(deps(policy())).with_prepare(harmful);
    let response = call(&mut layer.layer(server), authorized("Bearer one")).await;
    let response = response.unwrap();
    let why = PrepareError::of(&response).unwrap().source().unwrap();
    assert!(why.to_string().contains("credentials"), "{why}");
    let server = Server::steps(|_| Step::status(503));
    let (_, mut client) = client(policy(), &server);
    let response = call(&mut client, get()).await.unwrap();
    assert!(PrepareError::of(&response).is_none());
}
