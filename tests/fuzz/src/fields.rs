//! I-3 … I-5 and RA-6: structured fields, the idempotency key and `RateLimit`.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    classify::retry_after::rate_limit,
    store::{CrashPolicy, MemoryStore},
};

use crate::support::block_on;

static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);

/// The value of a field.
pub(crate) fn run(input: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(input) else {
        return;
    };
    limits(&value);
    block_on(keys(&value));
}

fn limits(value: &HeaderValue) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_763_000_000);
    for name in ["ratelimit", "ratelimit-reset", "x-ratelimit-reset"] {
        let mut headers = HeaderMap::new();
        headers.insert("x-ratelimit-remaining", HeaderValue::from_static("0"));
        headers.insert("ratelimit-remaining", HeaderValue::from_static("0"));
        headers.insert(name, value.clone());
        let once = rate_limit(&headers, now);
        headers.append(name, value.clone());
        let twice = rate_limit(&headers, now);
        assert!(once.is_none() || twice >= once, "{once:?}, {twice:?}");
    }
}

async fn keys(value: &HeaderValue) {
    let store = MemoryStore::new();
    let (status, _) = send(&store, value, false).await;
    let (strictly, _) = send(&MemoryStore::new(), value, true).await;
    let bare = value.as_bytes().trim_ascii();
    let quoted = bare.first() == Some(&b'"');
    match status {
        // I-3: it is the same key in quotes, and strictly the same if it came in quotes.
        200 => {
            assert_eq!(strictly, if quoted { 200 } else { 400 });
            let (again, ran) = send(&store, value, false).await;
            assert!(again == 200 && !ran);
            if !quoted {
                let text = [b"\"", bare, b"\";a=1"].concat();
                let text = HeaderValue::from_bytes(&text).expect("as good as it was");
                let (again, ran) = send(&store, &text, false).await;
                assert!(again == 200 && !ran, "another key in quotes");
            }
        }
        // I-5: nothing is stored.
        400 => {
            assert_eq!(strictly, 400);
            assert_eq!(store.len(), 0);
        }
        other => panic!("status {other}"),
    }
}

/// The status, and whether the handler was executed.
async fn send(store: &MemoryStore, key: &HeaderValue, strict: bool) -> (u16, bool) {
    let mut builder = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|_| Some("fuzz")))
        .crash_policy(CrashPolicy::Unknown);
    if strict {
        builder = builder.strict();
    }
    let handler = service_fn(|_: Request<Full<Bytes>>| async {
        EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let server = builder.build().expect("a layer").layer(handler);
    let mut request = Request::post("/").body(Full::default()).expect("a request");
    request.headers_mut().insert("idempotency-key", key.clone());
    let before = EXECUTIONS.load(Ordering::Relaxed);
    let response = server.oneshot(request).await;
    let status = response.map_or(0, |response| response.status().as_u16());
    (status, EXECUTIONS.load(Ordering::Relaxed) > before)
}
