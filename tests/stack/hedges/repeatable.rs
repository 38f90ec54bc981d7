//! Which calls may be hedged.

use bytes::Bytes;
use http::{Method, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tower::{Layer, ServiceBuilder};
use tower_reprise::{
    HedgeLayer, IdempotencyKeyLayer, RetryOverride,
    error::{BoxError, Rule},
};

use super::{funded, hedged, ms, policy, retries};
use crate::{
    honoured::stacked,
    setup::{HOST, get, grpc, numbered, post, request, with, with_header},
    support::{
        call, code,
        scripted::{Server, Step, status},
    },
};

#[tokio::test(start_paused = true)]
async fn h_2_only_what_may_be_repeated_is_hedged() {
    let keyed = |request| with_header(request, "idempotency-key", "1");
    let declared = |mut request: Request<()>| {
        *request.uri_mut() = format!("http://{HOST}/a.B/C").parse().unwrap();
        request
    };
    let off = || with(get(), RetryOverride::off());
    let idempotent = || with(post(), RetryOverride::new().idempotent());
    let method = |method| request(method, HOST);
    for (name, request, expected) in [
        ("GET", get(), true),
        ("PUT", method(Method::PUT), true),
        ("DELETE", method(Method::DELETE), true),
        ("POST", post(), false),
        ("PATCH", method(Method::PATCH), false),
        ("POST with a key", keyed(post()), true),
        ("POST that is declared", idempotent(), true),
        ("gRPC", grpc(), false),
        ("gRPC that is declared", declared(grpc()), true),
        ("retries off", off(), false),
    ] {
        let server = Server::steps(|_| Step::status(200).after(ms(50)));
        let deps = funded(policy().idempotent_methods(["a.B/C"]));
        call(&mut hedged(&deps, &server), request).await.unwrap();
        assert_eq!(server.calls(), 1 + usize::from(expected), "{name}");
        assert_eq!(retries(&deps), u64::from(expected), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn h_2_keyless_posts_are_not_hedged() {
    let server = Server::steps(|_| Step::status(200).after(ms(50)));
    let deps = funded(policy());
    let client = hedged(&deps, &server);
    let mut calls = JoinSet::new();
    for i in 0..1000 {
        let mut client = client.clone();
        calls.spawn(async move { call(&mut client, numbered(post(), i)).await });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!((server.calls(), retries(&deps)), (1000, 0));
}

/// The stack stamps keys, and says by its policy whether they are honoured.
#[tokio::test(start_paused = true)]
async fn h_2_the_stack_hedges_keyed_posts_only_where_keys_are_honoured() {
    for honours in [false, true] {
        let server = Server::steps(|_| Step::status(200).after(ms(50)));
        let policy = if honours {
            policy().honours_keys()
        } else {
            policy()
        };
        let mut client = stacked(funded(policy), &server);
        assert_eq!(code(&call(&mut client, post()).await), 200);
        assert_eq!(server.calls(), 1 + usize::from(honours));
        let keys = server.header("idempotency-key");
        assert!(keys.iter().all(|key| key.is_some() && *key == keys[0]));
    }
}

/// A key that is stamped above is the same on both attempts.
#[tokio::test(start_paused = true)]
async fn h_2_both_attempts_have_the_same_key() {
    let server = Server::steps(|_| Step::status(200).after(ms(50)));
    let deps = funded(policy());
    let mut client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(HedgeLayer::new(deps))
        .service(server.clone());
    call(&mut client, post()).await.unwrap();
    let keys = server.header("idempotency-key");
    assert_eq!(keys.len(), 2);
    assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
}

#[tokio::test(start_paused = true)]
async fn h_2_a_body_that_streams_is_hedged_once_it_has_passed() {
    type Body = UnsyncBoxBody<Bytes, BoxError>;
    let body = |gap| -> Body {
        let frames = tokio_stream::iter(["a", "b"]).then(move |text| async move {
            tokio::time::sleep(ms(gap)).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(text.as_bytes())))
        });
        StreamBody::new(frames).boxed_unsync()
    };
    for (name, gap, limit, expected) in [
        ("it has passed", 2, 1024, 2),
        ("it has not", 20, 1024, 1),
        ("it is too long", 2, 1, 1),
    ] {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let bodies = std::sync::Arc::clone(&seen);
        let server = tower::service_fn(move |request: Request<Body>| {
            let bodies = std::sync::Arc::clone(&bodies);
            async move {
                let read = request.into_body().collect().await?.to_bytes();
                bodies.lock().unwrap().push(read);
                tokio::time::sleep(ms(100)).await;
                Ok::<_, BoxError>(status(200))
            }
        });
        let deps = funded(policy().replay_limit(limit));
        let mut client = HedgeLayer::new(deps).layer(server);
        let uri = format!("http://{HOST}/");
        let request = Request::put(uri).body(body(gap)).unwrap();
        call(&mut client, request).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), vec!["ab"; expected], "{name}");
    }
}

#[test]
fn h_3_a_policy_without_a_budget_can_not_hedge() {
    let policy = policy().without_budget().approve(Rule::R7, "test");
    let error = policy.build().unwrap_err();
    assert_eq!(error.field(), "hedge");
    assert!(error.to_string().contains("budget"), "{error}");
}
