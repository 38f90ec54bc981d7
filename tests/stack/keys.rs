//! Idempotency keys: stamped once, kept, stored before the first send.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderName, Method, Request, Response};
use tokio::time::{advance, sleep};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    IdempotencyKey, IdempotencyKeyLayer, RetryLayer,
    error::{BoxError, ConfigError},
};

use crate::{
    setup::{Client, HOST, PARTS, get, grpc, lenient, post, request, stack, with, with_header},
    support::{
        call, code, deps, outcome,
        scripted::{Server, status},
        secs,
    },
};

const KEY: &str = "idempotency-key";

fn is_uuid_v4(key: &str) -> bool {
    let groups: Vec<_> = key.split('-').map(str::len).collect();
    let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f' | '-');
    groups == [8, 4, 4, 4, 12]
        && key.chars().all(hex)
        && key.as_bytes()[14] == b'4'
        && matches!(key.as_bytes()[19], b'8' | b'9' | b'a' | b'b')
}

async fn stamped(layer: IdempotencyKeyLayer, request: Request<()>) -> Option<String> {
    let server = Server::always(200);
    call(&mut layer.layer(server.clone()), request)
        .await
        .unwrap();
    server.header(KEY).remove(0)
}

#[tokio::test(start_paused = true)]
async fn k_1_a_uuid_is_stamped_once_and_is_the_same_on_every_attempt() {
    for request in [post(), request(Method::PATCH, HOST), grpc()] {
        let server = Server::replies(|_, n| status(if n < 3 { 503 } else { 200 }));
        let deps = deps(lenient());
        let result = call(&mut stack(&PARTS, &deps, &server), request).await;
        assert_eq!((code(&result), outcome(&result)), (200, Some((4, None))));
        let keys = server.header(KEY);
        let key = keys[0].clone().expect("a key");
        assert!(is_uuid_v4(&key), "{key}");
        assert_eq!(keys, vec![Some(key); 4]);
    }
}

/// K-1: no two calls have the same key, so that HTTP/2 has no use for one in its tables.
#[tokio::test(start_paused = true)]
async fn k_1_a_stamped_key_is_not_indexed_and_a_callers_is_as_it_was() {
    for (sent, sensitive) in [(None, true), (Some("mine"), false)] {
        let mut request = post();
        if let Some(sent) = sent {
            request.headers_mut().insert(KEY, sent.parse().unwrap());
        }
        let server = service_fn(|request: Request<()>| async move {
            let key = request.headers().get(KEY).cloned();
            Ok::<_, BoxError>(Response::new(key))
        });
        let mut client = IdempotencyKeyLayer::new().layer(server);
        let response = client.ready().await.unwrap().call(request).await.unwrap();
        let key = response.into_body().expect("a key");
        assert_eq!(key.is_sensitive(), sensitive, "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn k_1_safe_methods_get_no_key() {
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"] {
        let request = request(method.parse().unwrap(), HOST);
        assert_eq!(
            stamped(IdempotencyKeyLayer::new(), request).await,
            None,
            "{method}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn k_1_declared_grpc_methods_get_no_key() {
    let layer = || IdempotencyKeyLayer::new().idempotent_methods(["a.Ledger/Balance", "a.Health"]);
    for (path, content_type, keyed) in [
        ("a.Ledger/Balance", "application/grpc", false),
        ("a.Ledger/Book", "application/grpc", true),
        ("a.Health/Any", "application/grpc+proto", false),
        ("a.Ledger/Balance", "application/json", true),
    ] {
        let mut request = with_header(post(), "content-type", content_type);
        *request.uri_mut() = format!("http://{HOST}/{path}").parse().unwrap();
        let key = stamped(layer(), request).await;
        assert_eq!(key.is_some(), keyed, "{path} {content_type}");
    }
}

#[tokio::test(start_paused = true)]
async fn k_5_no_two_operations_share_a_key() {
    let mut keys = HashSet::new();
    for _ in 0..1000 {
        let key = stamped(IdempotencyKeyLayer::new(), post()).await.unwrap();
        assert!(is_uuid_v4(&key), "{key}");
        assert!(keys.insert(key));
    }
}

#[tokio::test(start_paused = true)]
async fn k_2_a_key_of_the_callers_is_kept() {
    let layer = IdempotencyKeyLayer::new;
    let chosen = |request| with(request, IdempotencyKey::new("order-42").unwrap());
    let kept = |key: &str| Some(key.to_owned());

    let header = with_header(post(), KEY, "mine");
    assert_eq!(stamped(layer(), header).await, kept("mine"));
    let odd = with_header(post(), KEY, "\"mine\";v=1");
    assert_eq!(stamped(layer(), odd).await, kept("\"mine\";v=1"));
    assert_eq!(stamped(layer(), chosen(post())).await, kept("order-42"));
    assert_eq!(stamped(layer(), chosen(get())).await, kept("order-42"));
    let both = chosen(with_header(post(), KEY, "mine"));
    assert_eq!(stamped(layer(), both).await, kept("mine"));
}

#[tokio::test(start_paused = true)]
async fn k_3_keys_are_bare_or_quoted() {
    let layer = || IdempotencyKeyLayer::new().quoted();
    let key = stamped(layer(), post()).await.unwrap();
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    assert!(bare.is_some_and(is_uuid_v4), "{key}");
    let chosen = with(post(), IdempotencyKey::new("order-42").unwrap());
    assert_eq!(stamped(layer(), chosen).await.unwrap(), "\"order-42\"");
    let header = with_header(post(), KEY, "mine");
    assert_eq!(stamped(layer(), header).await.unwrap(), "mine");
}

#[tokio::test(start_paused = true)]
async fn k_1_keys_are_at_most_64_long_and_a_longer_one_is_a_clear_error() {
    let long = |length| with(post(), IdempotencyKey::new("k".repeat(length)).unwrap());
    let in_header = |length| {
        let mut request = post();
        let value = "k".repeat(length).parse().unwrap();
        request.headers_mut().insert(KEY, value);
        request
    };
    for longest in [64, 255] {
        let layer = || IdempotencyKeyLayer::new().max_key_len(longest).unwrap();
        for request in [long(longest), in_header(longest)] {
            let key = stamped(layer(), request).await.unwrap();
            assert_eq!(key.len(), longest);
        }
        let server = Server::always(200);
        let mut client = layer().layer(server.clone());
        let mut too_long = vec![in_header(longest + 1)];
        too_long.extend((longest < 255).then(|| long(longest + 1)));
        for request in too_long {
            let error = call(&mut client, request).await.unwrap_err();
            let error = error.downcast::<ConfigError>().unwrap();
            assert_eq!(error.field(), KEY);
            assert_eq!(error.allowed(), format!("at most {longest}"));
            assert!(error.value().contains(&format!("{}", longest + 1)));
        }
        assert_eq!(server.calls(), 0, "nothing is sent");
    }
    assert!(IdempotencyKeyLayer::new().max_key_len(0).is_err());
    assert!(IdempotencyKeyLayer::new().max_key_len(256).is_err());
    for bad in [
        "",
        "with space",
        "quo\"te",
        "back\\slash",
        "ünicode",
        "line\n",
        &"k".repeat(256),
    ] {
        assert!(IdempotencyKey::new(bad).is_err(), "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn k_1_another_header_and_other_keys() {
    let name = HeaderName::from_static("x-once");
    let server = Server::replies(|_, n| status(if n == 0 { 503 } else { 200 }));
    let deps = deps(lenient().key_header(name.clone()));
    let chosen = |mut request: Request<()>| {
        let path = request.uri().path().trim_start_matches('/');
        let key = IdempotencyKey::new(format!("{path}-1")).unwrap();
        request.extensions_mut().insert(key);
        request
    };
    let mut client = ServiceBuilder::new()
        .map_request(chosen)
        .layer(IdempotencyKeyLayer::new().header(name))
        .layer(RetryLayer::new(deps))
        .service(server.clone());
    assert_eq!(code(&call(&mut client, post()).await), 200);
    assert_eq!(server.header("x-once"), vec![Some("items-1".to_owned()); 2]);
    assert_eq!(server.header(KEY), [None, None]);
}

/// The events, in order.
type Journal = Arc<Mutex<Vec<String>>>;

/// A whole stack whose keys are written to a journal, as what the server gets is.
fn journaled(fails: bool) -> (Journal, Client, Server) {
    let journal = Journal::default();
    let server = Server::replies({
        let journal = Arc::clone(&journal);
        move |request, n| {
            let key = request.headers().get(KEY).map(|key| key.to_str().unwrap());
            let line = format!("sent {}", key.unwrap_or("-"));
            journal.lock().unwrap().push(line);
            status(if n < 2 { 503 } else { 200 })
        }
    });
    let persist = {
        let journal = Arc::clone(&journal);
        move |key: IdempotencyKey, request: &Request<()>| {
            let journal = Arc::clone(&journal);
            // The request is at hand: the key is stored with what it is for.
            let line = format!("stored {} {}", key.as_str(), request.uri().path());
            async move {
                sleep(secs(1)).await;
                if fails {
                    return Err(BoxError::from(std::io::Error::other("disk full")));
                }
                journal.lock().unwrap().push(line);
                Ok(())
            }
        }
    };
    let deps = deps(lenient());
    let client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new().quoted().with_persist(persist))
        .layer(RetryLayer::new(deps))
        .service(server.clone());
    (journal, BoxCloneService::new(client), server)
}

#[tokio::test(start_paused = true)]
async fn k_4_the_key_is_stored_once_before_the_first_send() {
    let (journal, mut client, server) = journaled(false);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(post()));
    assert_pending!(future.poll());
    advance(Duration::from_millis(999)).await;
    assert_pending!(future.poll());
    assert_eq!(server.calls(), 0, "not stored yet");
    assert_eq!(code(&future.await), 200);
    let journal = journal.lock().unwrap().clone();
    let key = journal[0].strip_prefix("stored ").expect("stored first");
    let key = key.strip_suffix(" /items").expect("with its request");
    assert!(is_uuid_v4(key), "bare: {key}");
    assert_eq!(journal[1..], vec![format!("sent \"{key}\""); 3]);
}

#[tokio::test(start_paused = true)]
async fn k_4_a_callers_key_is_stored_too_and_a_request_without_one_is_just_sent() {
    let chosen = with(post(), IdempotencyKey::new("order-42").unwrap());
    let header = with_header(post(), KEY, "order-42");
    let quoted = with_header(post(), KEY, "\"order-42\"");
    for (request, stored, sent) in [
        (chosen, "stored order-42 /items", "sent \"order-42\""),
        (header, "stored order-42 /items", "sent order-42"),
        (quoted, "stored order-42 /items", "sent \"order-42\""),
    ] {
        let (journal, mut client, _) = journaled(false);
        assert_eq!(code(&call(&mut client, request).await), 200);
        assert_eq!(*journal.lock().unwrap(), [stored, sent, sent, sent]);
    }
    let (journal, mut client, _) = journaled(false);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(*journal.lock().unwrap(), ["sent -"; 3]);
}

#[tokio::test(start_paused = true)]
async fn k_4_a_callers_key_on_any_other_method_is_stored_too() {
    for method in [Method::PUT, Method::GET, Method::DELETE] {
        let (journal, mut client, _) = journaled(false);
        let request = with_header(request(method, HOST), KEY, "order-42");
        assert_eq!(code(&call(&mut client, request).await), 200);
        assert_eq!(journal.lock().unwrap()[0], "stored order-42 /items");
    }
}

#[tokio::test(start_paused = true)]
async fn k_4_if_the_key_cannot_be_stored_the_call_fails_and_nothing_is_sent() {
    let (_, mut client, server) = journaled(true);
    let error = call(&mut client, post()).await.unwrap_err();
    let error = error
        .downcast::<std::io::Error>()
        .expect("the hook's own error");
    assert_eq!(error.to_string(), "disk full");
    assert_eq!(server.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn k_4_a_readiness_error_after_the_hook_returns_unchanged() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    let layer = IdempotencyKeyLayer::new().with_persist(|_, _: &_| async { Ok::<_, BoxError>(()) });
    let mut client = task::spawn(layer.layer(mock));
    assert_ready_ok!(client.enter(|cx, mut client| client.poll_ready(cx)));
    let mut future = task::spawn(client.call(post()));
    handle.send_error(std::fmt::Error);
    assert!(assert_ready_err!(future.poll()).is::<std::fmt::Error>());
}

/// P-3: R-6 has keys of at most 64 characters, on both sides.
#[test]
fn p_3_r_6_keys_over_64_are_found() {
    use tower_reprise::{
        IdempotencyLayer,
        policy::Audit,
        server::dialect::Scope,
        store::{CrashPolicy, MemoryStore},
    };

    for (longest, compliant) in [(64, true), (65, false), (255, false)] {
        let client = IdempotencyKeyLayer::new().max_key_len(longest).unwrap();
        let server = IdempotencyLayer::builder(MemoryStore::new())
            .scope(Scope::new(|_| Some("shop")))
            .crash_policy(CrashPolicy::Unknown)
            .max_key_len(longest)
            .build()
            .unwrap();
        for audit in [Audit::from(&client), Audit::from(&server)] {
            assert_eq!(audit.is_compliant(), compliant, "{audit}");
            assert_eq!(audit.to_string().contains("at most 64"), !compliant);
        }
    }
}
