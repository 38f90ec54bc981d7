//! Which requests need a key, and what is one: I-1 to I-5.

use http::{HeaderName, HeaderValue, Method, Request};
use tower_reprise::{
    IdempotencyLayer,
    server::dialect::{Requirement, Scope},
    store::{CrashPolicy, MemoryStore},
};

use crate::setup::{Builder, DAY, Frames, Handler, LEASE, Server, builder, keyless, post, send};

fn in_memory(store: &MemoryStore) -> Builder {
    builder(store.clone(), CrashPolicy::Reexecute)
}

/// The header as it is, byte for byte.
fn raw(lines: &[&[u8]]) -> Request<Frames> {
    let mut request = keyless().body(Frames::from("100 EUR")).unwrap();
    for line in lines {
        let value = HeaderValue::from_bytes(line).unwrap();
        request.headers_mut().append("idempotency-key", value);
    }
    request
}

#[tokio::test(start_paused = true)]
async fn i_1_no_key_where_one_is_required() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let server = handler.count(in_memory(&store));
    for method in [Method::POST, Method::PATCH] {
        let request = keyless().method(method).body(Frames::from("x")).unwrap();
        let answer = send(&server, request).await;
        assert_eq!(answer.refusal(), (400, "key-missing".into()));
    }
    assert_eq!((handler.runs(), store.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn i_2_optional_keys_and_other_methods_pass() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let server = handler.count(in_memory(&store).requirement(|req| match req.uri().path() {
        "/payments" => Requirement::Optional,
        "/health" => Requirement::Ignored,
        _ => Requirement::Required,
    }));
    let keyless = || keyless().body(Frames::from("x")).unwrap();
    for run in 1..=2 {
        let answer = send(&server, keyless()).await;
        assert_eq!(answer.body, format!("run {run}"), "optional");
    }
    let ignored = || {
        let mut request = post("k");
        *request.uri_mut() = "/health".parse().unwrap();
        request
    };
    for run in 3..=4 {
        assert_eq!(send(&server, ignored()).await.body, format!("run {run}"));
    }
    let get = || {
        let mut request = raw(&[b"\"not a key"]);
        *request.method_mut() = Method::GET;
        request
    };
    for run in 5..=6 {
        assert_eq!(send(&server, get()).await.body, format!("run {run}"));
    }
    assert_eq!(store.len(), 0);

    // With a key it is kept all the same.
    for _ in 0..2 {
        assert_eq!(send(&server, post("k")).await.body, "run 7");
    }
    let mut required = keyless();
    *required.uri_mut() = "/other".parse().unwrap();
    assert_eq!(send(&server, required).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn i_2_methods_are_configurable() {
    let handler = Handler::new();
    let server = handler.count(in_memory(&MemoryStore::new()).methods([Method::PUT]));
    for run in 1..=2 {
        assert_eq!(send(&server, post("k")).await.body, format!("run {run}"));
    }
    for _ in 0..2 {
        let mut request = post("k");
        *request.method_mut() = Method::PUT;
        assert_eq!(send(&server, request).await.body, "run 3");
    }
}

/// I-3, I-4: all of these are the same key.
#[tokio::test(start_paused = true)]
async fn i_3_i_4_quoted_and_bare_keys() {
    let handler = Handler::new();
    let server = handler.count(in_memory(&MemoryStore::new()));
    for line in [
        &b"order-42"[..],
        b"\"order-42\"",
        b" \"order-42\" ",
        b"\"order-42\";a=1",
        b"\"order-42\"; a; b=\"x;y\"; c=?0",
    ] {
        let answer = send(&server, raw(&[line])).await;
        let line = String::from_utf8_lossy(line);
        assert_eq!((answer.status, &*answer.body), (200, "run 1"), "{line}");
    }
    // Others than those.
    for (run, line) in [
        &b"order-43"[..],
        b"\"order 42\"",
        b"\"order\\\"42\"",
        b"\"a,b\"",
    ]
    .iter()
    .enumerate()
    {
        let answer = send(&server, raw(&[line])).await;
        assert_eq!(answer.body, format!("run {}", run + 2));
    }
    // An escaped character is the character.
    let answer = send(&server, raw(&[b"\"order\\\"42\";x"])).await;
    assert_eq!(answer.body, "run 4");
}

#[tokio::test(start_paused = true)]
async fn i_4_strict_takes_quoted_keys_only() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let server = handler.count(in_memory(&store).strict());
    let answer = send(&server, post("order-42")).await;
    assert_eq!(answer.refusal(), (400, "key-invalid".into()));
    assert_eq!((handler.runs(), store.len()), (0, 0));
    assert_eq!(send(&server, post("\"order-42\"")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn i_5_what_is_no_key() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let server = handler.count(in_memory(&store));
    let long = [b'k'; 65];
    let quoted_long = [&b"\""[..], &long, b"\""].concat();
    for lines in [
        &[&b"a"[..], b"b"][..],
        &[b"a", b"a"],
        &[b""],
        &[b"   "],
        &[b"\"\""],
        &[b"\"\";a=1"],
        &[b"\"open"],
        &[b"\""],
        &[b"\"a\"b"],
        &[b"\"a\" ; a=1"],
        &[b"\"a\";A=1"],
        &[b"\"a\", \"b\""],
        &[b"\"a\\b\""],
        &[b"a b"],
        &[b"a\tb"],
        &[b"a\"b"],
        &[b"a\\b"],
        &[b"\"a\tb\""],
        &[b"schl\xc3\xbcssel"],
        &[b"\"schl\xc3\xbcssel\""],
        &[b"\xff"],
        &[&long],
        &[&quoted_long],
    ] {
        let answer = send(&server, raw(lines)).await;
        let shown = String::from_utf8_lossy(lines[0]);
        assert_eq!(answer.refusal(), (400, "key-invalid".into()), "{shown}");
    }
    assert_eq!((handler.runs(), store.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn i_5_how_long_a_key_may_be() {
    let longest = async |server: &Server, length: usize| {
        let bare = send(server, post(&"k".repeat(length))).await.status;
        let quoted = send(server, post(&format!("\"{}\"", "q".repeat(length)))).await;
        assert_eq!(bare, quoted.status);
        bare
    };
    let server = Handler::new().count(in_memory(&MemoryStore::new()));
    assert_eq!(longest(&server, 64).await, 200);
    assert_eq!(longest(&server, 65).await, 400);
    let server = Handler::new().count(in_memory(&MemoryStore::new()).max_key_len(255));
    assert_eq!(longest(&server, 255).await, 200);
    assert_eq!(longest(&server, 256).await, 400);
}

#[tokio::test(start_paused = true)]
async fn another_header() {
    let handler = Handler::new();
    let name = HeaderName::from_static("x-operation");
    let server = handler.count(in_memory(&MemoryStore::new()).header(name));
    assert_eq!(send(&server, post("k")).await.status, 400);
    let request = || keyless().header("x-operation", "k").body(Frames::from("x"));
    for _ in 0..2 {
        assert_eq!(send(&server, request().unwrap()).await.body, "run 1");
    }
}

#[test]
fn settings_that_are_not_allowed() {
    let seconds = std::time::Duration::from_secs;
    let refused = |builder: Builder| builder.build().unwrap_err().to_string();
    let fresh = || in_memory(&MemoryStore::new());
    for (builder, message) in [
        (
            fresh().retention(DAY - seconds(1)),
            "idempotency.retention is 86399s, allowed: 24h (R-6) to 365 days",
        ),
        (
            fresh().retention(DAY * 366),
            "idempotency.retention is 31622400s, allowed: 24h (R-6) to 365 days",
        ),
        (
            fresh().lease(seconds(0)),
            "idempotency.lease is 0ns, allowed: 1s to 10min",
        ),
        (
            fresh().lease(seconds(601)),
            "idempotency.lease is 601s, allowed: 1s to 10min",
        ),
        (
            fresh().store_timeout(LEASE / 3 + seconds(1)),
            "idempotency.store_timeout is 11s, allowed: more than 0, up to 10s, a third of the lease",
        ),
        (
            fresh().max_key_len(256),
            "idempotency.max_key_len is 256, allowed: 1 to 255",
        ),
        (
            fresh().request_limit(0),
            "idempotency.request_limit is 0, allowed: at least 1",
        ),
        (
            fresh().response_limit(0),
            "idempotency.response_limit is 0, allowed: at least 1",
        ),
        (
            fresh().methods([]),
            "idempotency.methods is 0, allowed: at least 1",
        ),
        (
            fresh().wait(seconds(61)),
            "idempotency.wait is 61s, allowed: at most 60s",
        ),
    ] {
        assert_eq!(refused(builder), message);
    }
    let edge = fresh()
        .lease(seconds(1))
        .retention(DAY * 365)
        .max_key_len(1);
    assert!(edge.build().is_ok());
}

/// The order of the two required arguments does not matter.
#[test]
fn i_20_scope_and_orphans_in_any_order() {
    let scope = Scope::new(|_| Some("all"));
    let one = IdempotencyLayer::builder(MemoryStore::new())
        .scope(scope.clone())
        .crash_policy(CrashPolicy::Unknown);
    let other = IdempotencyLayer::builder(MemoryStore::new())
        .crash_policy(CrashPolicy::Unknown)
        .scope(scope);
    assert!(one.build().is_ok() && other.build().is_ok());
}
