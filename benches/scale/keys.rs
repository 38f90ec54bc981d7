//! The cost of a request through the idempotency layer, by the number of live keys in the in-memory
//! store: a repeat, which gets its stored reply, and a new request. A new key is released again
//! (its handler replies 503), so that the number of keys stays the same.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    store::{CrashPolicy, MemoryStore},
};

use crate::{
    curve::{Chart, Turns, draw_below},
    report::Report,
    requests::{Call, nanos, runtime},
};

const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const CALLS: usize = 500;
const ROUNDS: usize = 200;
/// Keys from here on are not kept.
const NEW: usize = 1 << 40;

pub(crate) fn run(report: &mut Report, turns: &mut Turns) -> Vec<Chart> {
    turns.begin("keys");
    let sizes = turns.sizes(&SIZES);
    let runtime = runtime();
    let filled = |&size: &usize| {
        turns.tell(format_args!("{size} keys are used"));
        let (mut server, store) = server();
        runtime.block_on(nanos(&mut server, (0..size).map(post)));
        assert_eq!(store.len(), size as u64);
        (server, store)
    };
    let mut servers: Vec<_> = sizes.iter().map(filled).collect();
    let again = turns.take(ROUNDS, sizes.len(), |size, turn| {
        let numbers = turn * CALLS..(turn + 1) * CALLS;
        let calls = numbers.map(|n| post(draw_below(sizes[size], n)));
        runtime.block_on(nanos(&mut servers[size].0, calls))
    });
    let new = turns.take(ROUNDS, sizes.len(), |size, turn| {
        let first = NEW + turn * CALLS;
        let calls = (first..first + CALLS).map(post);
        runtime.block_on(nanos(&mut servers[size].0, calls))
    });
    for (size, (_, store)) in sizes.iter().zip(&servers) {
        assert_eq!(store.len(), *size as u64, "none was added");
    }
    let last = sizes.len() - 1;
    report.note("key_again_ns_1k", again[0]);
    report.note("key_new_ns_1k", new[0]);
    report.at_most("key_again_growth", again[last] / again[0], 2.0);
    report.at_most("key_new_growth", new[last] / new[0], 2.0);
    vec![Chart {
        name: "keys",
        title: "What an idempotent request costs, by how many keys are live",
        grows: "live keys",
        sizes: sizes.to_vec(),
        curves: vec![("a key again", again), ("a new key", new)],
    }]
}

fn server() -> (
    impl Service<Call, Response: Sized, Error: std::fmt::Debug>,
    MemoryStore,
) {
    let store = MemoryStore::builder()
        .max_records(2_000_000)
        .max_bytes(1 << 40)
        .build()
        .expect("a store");
    let layer = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|_| Some("alice")))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .expect("a layer");
    let handler = service_fn(|request: Call| async move {
        let mut reply = Response::new(Full::<Bytes>::from("paid"));
        if request.uri().path() == "/refused" {
            *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        Ok::<_, Infallible>(reply)
    });
    (layer.layer(handler), store)
}

pub(crate) fn post(key: usize) -> Call {
    let path = if key < NEW { "/payments" } else { "/refused" };
    Request::post(path)
        .header("content-type", "application/json")
        .header(
            "idempotency-key",
            format!("7c4a8d09-ca95-4c6d-8f3b-{key:012}"),
        )
        .body(Full::from("100 EUR"))
        .expect("a request")
}
