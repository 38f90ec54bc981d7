//! A client that knows what it sent.

use axum::body::Body;
use http::Request;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::task::JoinSet;

/// The number of concurrent requests.
const AT_ONCE: usize = 32;

/// Sends so many keys, each by two requests, and waits until all are answered.
pub(crate) fn send_twice(url: &str, keys: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let mut sending = JoinSet::new();
        // A key and its repeat are a few requests apart: at once, or just after.
        let apart = |number: usize| [Some(number), number.checked_sub(AT_ONCE / 2)];
        for key in (0..keys + AT_ONCE / 2).flat_map(apart).flatten() {
            if key >= keys {
                continue;
            }
            while sending.len() >= AT_ONCE {
                sending.join_next().await.unwrap().unwrap();
            }
            let request = Request::post(url).header("idempotency-key", format!("exact-{key}"));
            let request = request.body(Body::from("order")).unwrap();
            let client = client.clone();
            sending.spawn(async move {
                let reply = client.request(request).await.unwrap();
                assert_eq!(reply.status(), 200);
            });
        }
        sending.join_all().await;
    });
}
