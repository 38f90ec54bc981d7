//! Whatever a server does to its clients: nothing is done twice that must be done once.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use h2::Reason;
use http::{Method, Request};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use proptest::prelude::*;
use tower::{ServiceBuilder, util::option_layer};
use tower_reprise::{
    Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryAfterLayer, RetryLayer,
    policy::PolicyBuilder,
};

use crate::support::{
    arrivals::Arrival,
    call,
    http1::{Act, Server, reply},
    http2::{Act2, Server2},
    outcome,
    pieces::{Broken, Pieces, data},
};

type Body = BoxBody<Bytes, Broken>;

fn policy() -> PolicyBuilder {
    Policy::http()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
        .consecutive_failures(1000)
        .failure_rate(1.0, 1000, Duration::from_secs(30))
}

/// Does not wait long for a server that never answers.
fn impatient() -> PolicyBuilder {
    policy().attempt_timeout(Duration::from_millis(20))
}

/// Where a call's key comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Key {
    None,
    Caller,
    Layer,
}

#[derive(Debug, Clone)]
struct Call {
    method: Method,
    key: Key,
    body: Vec<u8>,
    streams: bool,
    sized: bool,
}

impl Call {
    fn request(&self, uri: &str, number: usize) -> Request<Body> {
        let body = match self.streams {
            true => {
                let pieces = self.body.chunks(7).map(|chunk| data(chunk.to_vec()));
                Pieces::new(pieces).sized(self.sized).boxed()
            }
            false => Full::from(self.body.clone())
                .map_err(|never| match never {})
                .boxed(),
        };
        let request = Request::builder().method(self.method.clone()).uri(uri);
        let mut request = request.header("x-call", number).body(body).unwrap();
        if self.key == Key::Caller {
            let key = format!("callers-own-{number}").parse().unwrap();
            request.headers_mut().insert("idempotency-key", key);
        }
        request
    }
}

/// Makes these calls one after another.
async fn run(policy: PolicyBuilder, uri: &str, http2: bool, calls: &[Call]) {
    let deps = Dependencies::new(policy.build().unwrap());
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: legacy::Client<HttpConnector, Body> = legacy::Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .retry_canceled_requests(false)
        .pool_max_idle_per_host(usize::from(http2))
        .build(connector);
    for (number, one) in calls.iter().enumerate() {
        let mut client = ServiceBuilder::new()
            .layer(option_layer(
                (one.key == Key::Layer).then(IdempotencyKeyLayer::new),
            ))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps.clone()))
            .service(client.clone());
        let result = call(&mut client, one.request(uri, number)).await;
        let attempts = outcome(&result).map_or(1, |(attempts, _)| attempts);
        assert!(attempts <= 4, "{attempts} attempts");
    }
}

/// Checks the invariants of all requests that reached a server.
fn check(calls: &[Call], arrivals: &[Arrival]) {
    let mut keys = HashSet::new();
    for (number, call) in calls.iter().enumerate() {
        let number = number.to_string();
        let of_call = |arrival: &&Arrival| arrival.header("x-call") == Some(&number);
        let arrivals: Vec<_> = arrivals.iter().filter(of_call).collect();
        let Some((last, earlier)) = arrivals.split_last() else {
            continue;
        };
        for arrival in &arrivals {
            assert!(
                call.body.starts_with(&arrival.body),
                "{call:?}: another body"
            );
            assert!(
                !arrival.whole || arrival.body == call.body,
                "{call:?}: half a body"
            );
            let key = arrival.header("idempotency-key");
            assert_eq!(key, last.header("idempotency-key"), "{call:?}: another key");
        }
        assert!(earlier.len() < 4, "{call:?}: {} arrivals", arrivals.len());
        match last.header("idempotency-key") {
            Some(key) => assert!(
                keys.insert(key.to_owned()),
                "{call:?}: the key of another call"
            ),
            None if matches!(call.method, Method::POST | Method::PATCH) => assert!(
                earlier.iter().all(|arrival| arrival.refused),
                "{call:?}: sent again, and the first may have been processed: {arrivals:#?}"
            ),
            None => {}
        }
    }
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let methods = [
        Method::POST,
        Method::POST,
        Method::PATCH,
        Method::PUT,
        Method::GET,
    ];
    let keys = vec![Key::None, Key::None, Key::Caller, Key::Layer];
    let body = prop::collection::vec(any::<u8>(), 0..40);
    let call = (
        prop::sample::select(methods.to_vec()),
        prop::sample::select(keys),
        body,
        any::<bool>(),
        any::<bool>(),
    );
    let call = call.prop_map(|(method, key, body, streams, sized)| Call {
        // hyper sends no body with a GET unless it is told the size.
        body: if method == Method::GET { vec![] } else { body },
        method,
        key,
        streams,
        sized,
    });
    prop::collection::vec(call, 1..4)
}

fn faults() -> impl Strategy<Value = Vec<Act>> {
    let statuses = vec![200, 408, 425, 429, 500, 502, 503, 504, 404, 409];
    let headers = vec!["", "retry-after: 0\r\n", "grpc-retry-pushback-ms: 0\r\n"];
    let say = (
        prop::sample::select(statuses),
        prop::sample::select(headers),
    );
    let say = say.prop_map(|(status, headers)| reply(status, headers));
    let ends = prop_oneof![
        4 => Just(Act::ReadAndClose),
        4 => Just(Act::Reset),
        1 => Just(Act::Stall),
        2 => Just(Act::Say("HTTP/1.1 200 OK\r\ncontent-le".into())),
        2 => Just(Act::Say("SSH-2.0\r\n\r\n".into())),
        6 => say,
    ];
    let fault = (ends, prop::option::weighted(0.3, 0_usize..20));
    let fault = fault.prop_map(|(end, part)| match part {
        Some(most) => end.part(most),
        None => end,
    });
    let fault = prop_oneof![1 => Just(Act::Close), 8 => fault];
    prop::collection::vec(fault, 0..7).prop_map(|mut faults| {
        faults.push(reply(200, ""));
        faults
    })
}

fn faults2() -> impl Strategy<Value = Vec<(Act2, bool)>> {
    let reasons = vec![
        Reason::NO_ERROR,
        Reason::REFUSED_STREAM,
        Reason::REFUSED_STREAM,
        Reason::INTERNAL_ERROR,
        Reason::CANCEL,
        Reason::ENHANCE_YOUR_CALM,
        Reason::PROTOCOL_ERROR,
    ];
    let reason = || prop::sample::select(reasons.clone());
    let status = prop::sample::select(vec![200, 408, 425, 429, 500, 503, 404]);
    let fault = prop_oneof![
        4 => status.prop_map(Act2::Answer),
        6 => reason().prop_map(Act2::Reset),
        4 => reason().prop_map(Act2::GoAway),
        2 => Just(Act2::GoAwayAndBreak),
        2 => Just(Act2::Close),
        1 => Just(Act2::Stall),
    ];
    prop::collection::vec((fault, prop::bool::weighted(0.3)), 0..7)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c_5_nothing_is_sent_twice_over_http1_without_a_key(calls in calls(), faults in faults()) {
        runtime().block_on(async {
            let server = Server::start(faults).await;
            run(impatient(), &server.uri(), false, &calls).await;
            check(&calls, &server.arrivals());
        });
    }

    #[test]
    fn c_4_nothing_is_sent_twice_over_http2_without_a_key_or_proof(calls in calls(), faults in faults2()) {
        runtime().block_on(async {
            let server = Server2::start(faults).await;
            run(impatient(), &server.uri(), true, &calls).await;
            check(&calls, &server.arrivals());
        });
    }
}

/// The properties above are not vacuous: requests with a proof or a key are sent again.
#[tokio::test]
async fn c_4_a_proof_is_as_good_as_a_key() {
    let post = |key| Call {
        method: Method::POST,
        key,
        body: b"pay".to_vec(),
        streams: true,
        sized: false,
    };
    let refusals = [
        Act2::Reset(Reason::REFUSED_STREAM),
        Act2::GoAway(Reason::NO_ERROR),
    ];
    let calls = [post(Key::None)];
    let server = Server2::start(refusals.map(|act| (act, false)).to_vec()).await;
    run(policy(), &server.uri(), true, &calls).await;
    assert_eq!(server.arrivals().len(), 3);
    check(&calls, &server.arrivals());

    for (key, arrivals) in [(Key::None, 1), (Key::Caller, 3), (Key::Layer, 3)] {
        let calls = [post(key)];
        let faults = vec![Act::Reset, reply(503, ""), reply(200, "")];
        let server = Server::start(faults).await;
        run(policy(), &server.uri(), false, &calls).await;
        assert_eq!(server.arrivals().len(), arrivals, "{key:?}");
        check(&calls, &server.arrivals());
    }
}
