//! The scopes of keys: I-19, I-20.

use http::{Method, Request};
use tower_reprise::store::{CrashPolicy, MemoryStore};

use crate::setup::{Builder, Frames, Handler, builder, post, send, tenant};

fn in_memory(store: &MemoryStore) -> Builder {
    builder(store.clone(), CrashPolicy::Reexecute)
}

fn of(tenant: Option<&str>) -> Request<Frames> {
    let mut request = post("k");
    match tenant {
        Some(tenant) => {
            let tenant = tenant.parse().unwrap();
            request.headers_mut().insert("x-tenant", tenant);
        }
        None => {
            request.headers_mut().remove("x-tenant");
        }
    }
    request
}

#[tokio::test(start_paused = true)]
async fn i_19_callers_have_nothing_to_do_with_each_other() {
    let handler = Handler::new();
    let server = handler.count(in_memory(&MemoryStore::new()));
    for (tenant, body) in [("alice", "run 1"), ("bob", "run 2"), ("alice", "run 1")] {
        assert_eq!(send(&server, of(Some(tenant))).await.body, body);
    }
}

/// I-19: parts of a key do not run into each other.
#[tokio::test(start_paused = true)]
async fn i_19_where_one_part_ends_and_the_next_begins() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let plain = handler.count(in_memory(&store));
    let named = handler.count(in_memory(&store).namespace("ice"));
    assert_eq!(send(&plain, of(Some("alice"))).await.body, "run 1");
    assert_eq!(send(&named, of(Some("al"))).await.body, "run 2");

    let mut shifted = of(Some("alice"));
    *shifted.uri_mut() = "/paymen?currency=EUR".parse().unwrap();
    let key = "tsk".parse().unwrap();
    shifted.headers_mut().insert("idempotency-key", key);
    assert_eq!(send(&plain, shifted).await.body, "run 3");
}

/// I-19: while it is in flight, too.
#[tokio::test(start_paused = true)]
async fn i_19_in_flight_too() {
    let handler = Handler::held();
    let server = handler.count(in_memory(&MemoryStore::new()));
    let alice = crate::setup::start(&server, of(Some("alice")));
    let bob = crate::setup::start(&server, of(Some("bob")));
    crate::setup::settle().await;
    handler.let_through(2);
    assert_eq!(alice.await.unwrap().status, 200);
    assert_eq!(bob.await.unwrap().status, 200);
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn i_20_callers_that_are_not_known_are_refused() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let server = handler.count(in_memory(&store));
    let answer = send(&server, of(None)).await;
    assert_eq!(answer.refusal(), (403, "anonymous".into()));
    assert_eq!((handler.runs(), store.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn i_20_unless_there_is_a_scope_for_them() {
    let handler = Handler::new();
    let server =
        handler.count(in_memory(&MemoryStore::new()).scope(tenant().or_anonymous("public")));
    for _ in 0..2 {
        assert_eq!(send(&server, of(None)).await.body, "run 1");
    }
    // Somebody of that name is somebody else; an empty name is none.
    assert_eq!(send(&server, of(Some("public"))).await.body, "run 2");
    assert_eq!(send(&server, of(Some(""))).await.body, "run 1");
}

#[tokio::test(start_paused = true)]
async fn a_key_belongs_to_method_and_path() {
    let handler = Handler::new();
    let server = handler.count(in_memory(&MemoryStore::new()));
    let at = |method: Method, path: &str| {
        let mut request = post("k");
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    for _ in 0..2 {
        for (run, method, path) in [
            (1, Method::POST, "/payments/1"),
            (2, Method::PATCH, "/payments/1"),
            (3, Method::POST, "/payments/2"),
        ] {
            let answer = send(&server, at(method, path)).await;
            assert_eq!(answer.body, format!("run {run}"));
        }
    }
    // With a route, the items of one route share it.
    let builder = in_memory(&MemoryStore::new()).route(|_| "/payments/{id}");
    let server = handler.count(builder);
    let first = send(&server, at(Method::POST, "/payments/1")).await;
    assert_eq!(first.status, 200);
    let other = send(&server, at(Method::POST, "/payments/2")).await;
    assert_eq!(other.status, 422);
}

#[tokio::test(start_paused = true)]
async fn namespaces_share_a_store_and_nothing_else() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let one = handler.count(in_memory(&store).namespace("orders v1"));
    let two = handler.count(in_memory(&store).namespace("orders v2"));
    assert_eq!(send(&one, post("k")).await.body, "run 1");
    assert_eq!(send(&two, post("k")).await.body, "run 2");
    assert_eq!(send(&one, post("k")).await.body, "run 1");
}

/// I-28: an empty name would be one for everybody who has none.
#[tokio::test(start_paused = true)]
async fn i_28_an_empty_scope_is_no_scope() {
    let (store, handler) = (MemoryStore::new(), Handler::new());
    let server = handler.count(in_memory(&store));
    let answer = send(&server, of(Some(""))).await;
    assert_eq!(answer.refusal(), (403, "anonymous".into()));
    assert_eq!((handler.runs(), store.len()), (0, 0));
}

/// I-28: a multipart body has a new boundary with each attempt.
#[tokio::test(start_paused = true)]
async fn i_28_the_fingerprint_can_be_supplied() {
    let upload = |boundary: &str, digest: Option<&str>| {
        let body = format!("--{boundary} the picture --{boundary}--");
        let mut request = post("k").map(|_| Frames::default().data(body));
        let content_type = format!("multipart/form-data; boundary={boundary}");
        let headers = request.headers_mut();
        headers.insert("content-type", content_type.parse().unwrap());
        if let Some(digest) = digest {
            headers.insert("content-digest", digest.parse().unwrap());
        }
        request
    };
    let by_digest = |head: &Request<()>, _: &[u8]| head.headers().get("content-digest").cloned();
    let handler = Handler::new();
    let server = handler.count(in_memory(&MemoryStore::new()).fingerprint(by_digest));
    assert_eq!(send(&server, upload("1", Some("a"))).await.body, "run 1");
    assert!(send(&server, upload("2", Some("a"))).await.is_replayed());
    assert_eq!(send(&server, upload("1", Some("b"))).await.status, 422);
    assert_eq!(send(&server, upload("1", None)).await.status, 422);
    assert_eq!(handler.runs(), 1);
}
