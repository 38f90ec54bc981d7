//! The request that is sent again is the one that was sent first.

use std::fmt;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use tokio::time::Instant;
use tower_reprise::{
    call::StopReason,
    client::retry::{ReplayBody, ReplayLimits},
};

use crate::{
    setup::{HOST, client, get, policy},
    support::{
        Fixed, call, code, outcome,
        scripted::{Server, Step},
        secs,
    },
};

/// An extension of the caller's.
#[derive(Debug, Clone, PartialEq)]
struct Mark(u64);

fn methods() -> impl Strategy<Value = Method> {
    let token = "[A-Za-z0-9!#$%&'*+.^_`|~-]{1,24}";
    let custom = token.prop_filter_map("method", |m| Method::from_bytes(m.as_bytes()).ok());
    let known = prop::sample::select(vec![
        Method::GET,
        Method::HEAD,
        Method::PUT,
        Method::DELETE,
        Method::POST,
        Method::PATCH,
        Method::OPTIONS,
        Method::CONNECT,
        Method::TRACE,
    ]);
    prop_oneof![known, custom]
}

fn uris() -> impl Strategy<Value = Uri> {
    let path = "(/[A-Za-z0-9._~!$&'()*+,;=:@%-]{0,12}){1,4}";
    let query = "(\\?[A-Za-z0-9/?=&%.-]{0,16})?";
    let authority = "([a-z0-9]{1,8}(:[a-z0-9]{1,8})?@)?([A-Za-z0-9-]{1,12}(\\.[a-z]{2,5})?|\\[::1\\])(:[1-9][0-9]{0,3})?";
    let origin = format!("{path}{query}");
    let absolute = format!("(https?|[a-z][a-z0-9+.-]{{0,9}})://{authority}({path})?{query}");
    let text = prop_oneof![
        Just("*".to_owned()),
        Just("/".to_owned()),
        Just("http://a.example".to_owned()),
        Just("http://a.example?q=1".to_owned()),
        prop::string::string_regex(&origin).unwrap(),
        prop::string::string_regex(&absolute).unwrap(),
        prop::string::string_regex(authority).unwrap(),
    ];
    text.prop_filter_map("uri", |text| text.parse().ok())
}

fn versions() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![
        Version::HTTP_09,
        Version::HTTP_10,
        Version::HTTP_11,
        Version::HTTP_2,
        Version::HTTP_3,
    ])
}

fn headers() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let known = prop::sample::select(vec!["accept", "cookie", "authorization", "x-a", "x-b"]);
    let name = prop_oneof![known.prop_map(String::from), "[a-zA-Z][a-zA-Z0-9_-]{0,20}"];
    let bytes = prop_oneof![Just(b'\t'), 0x20_u8..0x7f, 0x80_u8..=0xff];
    let value = prop::collection::vec(bytes, 0..24);
    let field = (name, value, any::<bool>()).prop_map(|(name, value, sensitive)| {
        let mut value = HeaderValue::from_bytes(&value).unwrap();
        value.set_sensitive(sensitive);
        (name.parse().unwrap(), value)
    });
    prop::collection::vec(field, 0..24)
}

fn paused() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap()
}

/// Everything of a request but what a retry adds to it.
fn head<B>(request: &Request<B>) -> impl PartialEq + fmt::Debug + use<B> {
    let uri = request.uri();
    let parts = (
        uri.scheme_str().map(str::to_owned),
        uri.authority().map(ToString::to_string),
        uri.path().to_owned(),
        uri.query().map(str::to_owned),
        uri.to_string(),
    );
    let headers: Vec<_> = request
        .headers()
        .iter()
        .map(|(name, value)| {
            (
                name.clone(),
                value.as_bytes().to_vec(),
                value.is_sensitive(),
            )
        })
        .filter(|(name, ..)| *name != "grpc-previous-rpc-attempts")
        .collect();
    let mark = request.extensions().get::<Mark>().cloned();
    (
        request.method().clone(),
        request.version(),
        parts,
        headers,
        mark,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_attempt_sends_the_same_request(
        method in methods(),
        uri in uris(),
        version in versions(),
        headers in headers(),
        removed in any::<bool>(),
        grpc in any::<bool>(),
        mark in any::<Option<u64>>(),
        body in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut request = Request::new(Full::new(Bytes::from(body.clone())));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        for (name, value) in headers {
            request.headers_mut().append(name, value);
        }
        if removed {
            request.headers_mut().remove("x-a");
        }
        request.headers_mut().insert("idempotency-key", HeaderValue::from_static("k"));
        if grpc {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        }
        request.extensions_mut().extend(mark.map(Mark).map_or_else(http::Extensions::new, |mark| {
            let mut extensions = http::Extensions::new();
            extensions.insert(mark);
            extensions
        }));
        let original = head(&request);
        let server = Server::steps(|_| Step::status(503));
        paused().block_on(async {
            let (_, mut client) = client(policy().max_retries(2), &server);
            call(&mut client, request).await.unwrap();
        });
        let seen = server.requests();
        prop_assert_eq!(seen.len(), 3);
        for request in seen {
            prop_assert_eq!(&head(&request), &original);
            let sent = paused().block_on(request.into_body().collect()).unwrap();
            prop_assert_eq!(sent.to_bytes(), &body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_a_head_over_the_limit_is_sent_but_not_again() {
    const LIMIT: usize = 64 * 1024;
    // The kept bytes are the URI's parts, and each field with its two lengths of four bytes.
    let uri = "http".len() + HOST.len() + "/items?page=2".len();
    let name = "x-large";
    for (size, calls) in [(500, 2), (LIMIT, 2), (LIMIT + 1, 1)] {
        let value = "v".repeat(size - (uri + 8 + name.len()));
        let server = Server::statuses([503, 200]);
        let (deps, mut client) = client(policy().replay_limit(0), &server);
        let mut request = get();
        request.headers_mut().insert(name, value.parse().unwrap());
        let result = call(&mut client, request).await;
        assert_eq!(server.calls(), calls, "{size}");
        assert_eq!(server.header(name)[0].as_ref(), Some(&value), "whole");
        if calls == 1 {
            assert_eq!(outcome(&result), Some((1, Some(StopReason::NotReplayable))));
            assert_eq!(deps.get(HOST).status().retries, 0, "G-3");
        }
    }
}

/// A body that can be kept to some degree.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kept {
    Not,
    NotWhole,
    NotReplayable,
    Once,
}

impl ReplayBody for Kept {
    type Recording = Self;

    fn record(&mut self, _room: &ReplayLimits<'_>) -> Option<Self> {
        (*self != Self::Not).then_some(*self)
    }

    fn is_complete(recording: &Self) -> bool {
        *recording != Self::NotWhole
    }

    fn replay(recording: &Self) -> Option<Self> {
        (*recording == Self::Once).then_some(*recording)
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_that_cannot_be_kept_is_sent_but_not_again() {
    for (body, waits) in [
        (Kept::Not, false),
        (Kept::NotWhole, false),
        (Kept::NotReplayable, true),
    ] {
        let server = Server::statuses([503]);
        let (deps, mut client) = client(policy().backoff(Fixed(secs(1))), &server);
        let start = Instant::now();
        let result = call(&mut client, get().map(|()| body)).await;
        assert_eq!(start.elapsed().is_zero(), !waits, "{body:?}");
        assert_eq!(code(&result), 503);
        assert_eq!(
            outcome(&result),
            Some((1, Some(StopReason::NotReplayable))),
            "{body:?}"
        );
        assert_eq!(deps.get(HOST).status().retries, 0, "G-3: {body:?}");
    }
    let server = Server::statuses([503, 200]);
    let (_, mut client) = client(policy(), &server);
    let result = call(&mut client, get().map(|()| Kept::Once)).await;
    assert_eq!(code(&result), 200);
}

#[tokio::test(start_paused = true)]
async fn bodies_at_hand_are_sent_again_whatever_their_size() {
    let server = Server::statuses([503, 503, 503, 200]);
    let (_, mut client) = client(policy().replay_limit(100), &server);
    let body = "x".repeat(1000);
    let request = get().map(|()| body.clone());
    assert_eq!(code(&call(&mut client, request).await), 200);
    for request in server.requests() {
        assert_eq!(*request.body(), body);
    }
}
