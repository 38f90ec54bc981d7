//! Calls of forrst functions, as people find them in a store.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_reprise::{
    IdempotencyLayer,
    delivery::replay::Replay,
    forrst::Forrst,
    server::dialect::Scope,
    store::{CrashPolicy, IdempotencyStore, journal::Journal},
};

/// The function and the version of each call, of which one is journaled too.
pub(crate) const CALLS: [(&str, Option<&str>); 3] = [
    ("orders.create", Some("1.0.0")),
    ("orders.cancel", None),
    ("påfyll", Some("2")),
];

/// Makes the calls, in a server that stores its records and its journal there.
pub(crate) async fn make<S: IdempotencyStore + Journal + Clone>(store: S) {
    let layer = IdempotencyLayer::builder(store.clone())
        .with_dialect(Forrst::new())
        .scope(Scope::new(|_| Some("shop")))
        .crash_policy(CrashPolicy::Unknown)
        .build()
        .unwrap();
    let replay = Replay::before(store, &layer).build().unwrap();
    let handler = tower::service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
            b"{\"result\":7}",
        ))))
    });
    let app = replay.layer().layer(layer.layer(handler));
    let call = async |function: &str, version: Option<&str>| {
        let body = serde_json::json!({
            "id": "req_1",
            "call": { "function": function, "version": version, "arguments": {} },
            "extensions": [
                { "urn": "urn:forrst:ext:idempotency", "options": { "key": "k" } },
                { "urn": "urn:forrst:ext:replay", "options": {} },
            ],
        });
        let request = Request::post("/")
            .body(Full::from(body.to_string()))
            .unwrap();
        app.clone()
            .oneshot(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    for (function, version) in CALLS {
        assert_eq!(call(function, version).await, 200);
    }
    replay.maintenance().on(None);
    for (function, version) in CALLS {
        assert_eq!(call(&format!("{function}!"), version).await, 202);
    }
}
