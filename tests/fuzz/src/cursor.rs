//! J-10: a cursor that was not given for a list is not one of it.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    delivery::replay::{Replay, ReplayError, ReplayFilter},
    store::MemoryStore,
};

use crate::support::block_on;

thread_local! {
    static LIST: (Replay<MemoryStore>, String) = block_on(list());
}

/// A list of two pages, and the cursor between them.
async fn list() -> (Replay<MemoryStore>, String) {
    let replay = Replay::builder(MemoryStore::new(), Scope::new(|_| Some("ada")))
        .build()
        .expect("a journal");
    replay.maintenance().on(None);
    let handler = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let server = replay.layer().layer(handler);
    for key in ["1", "2"] {
        let request = Request::post("/orders").header("replay", "true");
        let request = request.header("idempotency-key", key).body(Full::default());
        let Ok(response) = server.clone().oneshot(request.expect("a request")).await;
        assert_eq!(response.status(), 202);
    }
    let page = replay.list("ada", first(None)).await.expect("a page");
    let cursor = page.next_cursor.expect("another page");
    (replay, cursor)
}

fn first(cursor: Option<String>) -> ReplayFilter {
    ReplayFilter {
        limit: Some(1),
        cursor,
        ..ReplayFilter::default()
    }
}

/// A cursor, or what is to be changed of a real one.
pub(crate) fn run(input: &[u8]) {
    LIST.with(|(replay, real)| {
        let mut changed = real.clone().into_bytes();
        for (byte, change) in changed.iter_mut().zip(input) {
            *byte ^= change;
        }
        for cursor in [input, &changed] {
            let Ok(cursor) = str::from_utf8(cursor) else {
                continue;
            };
            let page = block_on(replay.list("ada", first(Some(cursor.to_owned()))));
            match page {
                Ok(page) => {
                    assert_eq!(cursor, real);
                    assert_eq!(page.replays.len(), 1);
                }
                Err(ReplayError::Cursor) => assert_ne!(cursor, real),
                Err(error) => panic!("{error:?}"),
            }
            let other = block_on(replay.list("bob", first(Some(cursor.to_owned()))));
            assert!(matches!(other, Err(ReplayError::Cursor)));
        }
    });
}
