//! The cost of the forrst dialect over plain HTTP for the same 1 KiB of envelope, with its key in a
//! header or in its extension. The dialect parses the envelope, brings its arguments into their
//! canonical form and writes the outcome into the reply, once to be sent and once to be kept.

use std::{convert::Infallible, hint::black_box};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime;
use tower::{Layer, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    forrst::Forrst,
    store::{CrashPolicy, MemoryStore},
};

use crate::{
    layer::{CALLS, Call, ROUNDS, nanos_per_call},
    report::Report,
    work::lower_quartile,
};

const REPLY: &str = r#"{"protocol":{"name":"forrst","version":"0.1.0"},"id":"req_1","result":{"charge_id":"ch_abc","status":"succeeded"}}"#;

pub(crate) fn run(report: &mut Report) {
    let one = runtime::Builder::new_current_thread().enable_time().build();
    let (bare, http, forrst) = one.expect("a runtime").block_on(measure());
    report.note("forrst_layer_added_ns", forrst - bare);
    report.note("forrst_over_http_ns", forrst - http);
    report.note("forrst_over_http", (forrst - bare) / (http - bare));
}

/// Nanoseconds a call: without a layer, with the plain one, with the dialect. By turns, so that a
/// slow moment of the machine is one for all.
async fn measure() -> (f64, f64, f64) {
    let bare = service_fn(|request: Call| async move {
        drop(black_box(request));
        let reply = Response::builder().header("content-type", "application/json");
        let reply = reply.body(Full::<Bytes>::from(REPLY));
        Ok::<_, Infallible>(reply.expect("a reply"))
    });
    let layer = || {
        IdempotencyLayer::builder(MemoryStore::new())
            .scope(Scope::new(|_| Some("alice")))
            .crash_policy(CrashPolicy::Reexecute)
    };
    let http = layer().build().expect("a layer").layer(bare);
    let forrst = layer().with_dialect(Forrst::new()).build();
    let forrst = forrst.expect("a layer").layer(bare);

    let (mut without, mut plain, mut dialect) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let calls = || calls(round * CALLS);
        without.push(nanos_per_call(bare, calls()).await);
        plain.push(nanos_per_call(http.clone(), calls()).await);
        dialect.push(nanos_per_call(forrst.clone(), calls()).await);
    }
    let [without, plain, dialect] = [without, plain, dialect].map(lower_quartile);
    (without, plain, dialect)
}

fn calls(first: u64) -> Vec<Call> {
    let note = "n".repeat(700);
    let call = |n| {
        let key = format!("7c4a8d09-ca95-4c6d-8f3b-{n:012}");
        let body = format!(
            r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"req_1","call":{{"function":"payments.charge","version":"1.0.0","arguments":{{"note":"{note}","currency":"EUR","amount":100}}}},"extensions":[{{"urn":"urn:forrst:ext:idempotency","options":{{"key":"{key}"}}}}]}}"#
        );
        Request::post("/forrst")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::from(body))
            .expect("a request")
    };
    (first..first + CALLS).map(call).collect()
}
