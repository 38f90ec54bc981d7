//! Handlers that store their reply themselves, as one does that commits it with its effect.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tower::{Layer, service_fn, util::BoxCloneSyncService};
use tower_reprise::{
    server::idempotency::Execution,
    store::{CrashPolicy, IdempotencyStore, MemoryStore, Ownership},
};

use crate::setup::{Builder, Frames, LEASE, Server, builder, post, send, settle, start};

/// Stores its reply, works on, and dies.
fn dies_after(builder: Builder, store: MemoryStore, works_on: Duration) -> Server {
    let inner = service_fn(move |request: Request<Frames>| {
        let store = store.clone();
        async move {
            let execution: &Execution = request.extensions().get().unwrap();
            let response = Response::builder().status(201).header("x-kept", "kept");
            let response = response.header("x-mine", "mine").header("date", "today");
            let response = response.body("paid").unwrap();
            let (key, token) = (execution.key(), execution.token());
            let stored = execution.stored(&response).unwrap();
            let stored = store.complete(key, token, stored, execution.retention());
            assert_eq!(stored.await.unwrap(), Ownership::Held);
            tokio::time::sleep(works_on).await;
            assert!(execution.is_lost(), "dies, unless it believes that it lost");
            Ok::<_, Infallible>(response.map(Frames::from))
        }
    });
    BoxCloneSyncService::new(builder.build().unwrap().layer(inner))
}

/// I-9: what the layer does not store, a handler does not store either.
#[tokio::test(start_paused = true)]
async fn i_9_headers_that_are_not_stored_with_an_effect_either() {
    let store = MemoryStore::new();
    let builder =
        builder(store.clone(), CrashPolicy::Unknown).unstored(["x-mine".parse().unwrap()]);
    let server = dies_after(builder, store, Duration::ZERO);
    assert_eq!(send(&server, post("k")).await.status, 500);
    let again = send(&server, post("k")).await;
    assert_eq!((again.status, &*again.body), (201, "paid"));
    assert!(again.is_replayed());
    assert_eq!(again.headers["x-kept"], "kept");
    assert_eq!(again.headers.len(), 2, "{:?}", again.headers);
}

/// I-15: a renewal that finds the operation done by its own hand finds nothing lost.
#[tokio::test(start_paused = true)]
async fn i_15_who_completed_it_themselves_has_not_lost_it() {
    let store = MemoryStore::new();
    let server = dies_after(
        builder(store.clone(), CrashPolicy::Unknown),
        store,
        3 * LEASE,
    );
    let first = start(&server, post("k"));
    settle().await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(send(&server, post("k")).await.body, "paid");
    assert_eq!(first.await.unwrap().status, 500);
    assert_eq!(send(&server, post("k")).await.status, 201);
}
