//! The requests that all contestants are given.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request,
    header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, USER_AGENT},
};
use http_body_util::Full;

pub(super) type Body = Full<Bytes>;

/// The shape of the measured request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Six headers as `http`'s builder makes them, from text: 12 allocations.
    Get,
    /// The same with three constants, a stored token and two made from text, which are cheaper to
    /// clone.
    GetMixed,
    /// The same with constants only, which are the cheapest to clone.
    GetConst,
    /// As `GetMixed`, with a body of 1 KiB and no idempotency key yet.
    Post,
}

impl Shape {
    pub(super) const ALL: [Self; 4] = [Self::Get, Self::GetMixed, Self::GetConst, Self::Post];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetMixed => "get_mixed",
            Self::GetConst => "get_const",
            Self::Post => "post",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Get => "GET, 6 headers, all made from text",
            Self::GetMixed => "GET, 6 headers: 3 constants, a stored token, 2 made from text",
            Self::GetConst => "GET, 6 headers, all constants",
            Self::Post => "POST, 6 headers, 1 KiB body, key stamped by our stack",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.name() == name)
    }
}

static TOKEN: LazyLock<HeaderValue> = LazyLock::new(|| {
    let token = format!("Bearer {}", "x".repeat(40));
    let mut token = HeaderValue::try_from(token).expect("a token is a header value");
    token.set_sensitive(true);
    token
});

static BODY: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![b'x'; 1024]));

const TARGET: &str = "https://stock.example/v1/items/42?fields=name,price";
const REQUEST_ID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// None of these is inlined, so that every contestant runs the very same code.

#[inline(never)]
pub(super) fn get_mixed() -> Request<Body> {
    typical(Method::GET, Body::default())
}

#[inline(never)]
pub(super) fn post() -> Request<Body> {
    typical(Method::POST, Body::new(BODY.clone()))
}

#[inline(never)]
pub(super) fn get_const() -> Request<Body> {
    let mut request = Request::new(Body::default());
    *request.uri_mut() = http::Uri::from_static(TARGET);
    let headers = request.headers_mut();
    common(headers);
    headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer xxxxxxxx"));
    headers.insert("x-request-id", HeaderValue::from_static(REQUEST_ID));
    headers.insert("traceparent", HeaderValue::from_static(TRACE));
    request
}

#[inline(never)]
pub(super) fn get() -> Request<Body> {
    let request = Request::get(TARGET)
        .header(ACCEPT, "application/json")
        .header(ACCEPT_ENCODING, "gzip, br")
        .header(USER_AGENT, "checkout/1.4.2")
        .header(AUTHORIZATION, "Bearer xxxxxxxx")
        .header("x-request-id", REQUEST_ID)
        .header("traceparent", TRACE);
    request.body(Body::default()).expect("a request")
}

#[inline(never)]
fn typical(method: Method, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = TARGET.parse().expect("a URI");
    let headers = request.headers_mut();
    common(headers);
    headers.insert(AUTHORIZATION, TOKEN.clone());
    headers.insert("x-request-id", text(REQUEST_ID));
    headers.insert("traceparent", text(TRACE));
    request
}

fn common(headers: &mut HeaderMap) {
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, br"));
    headers.insert(USER_AGENT, HeaderValue::from_static("checkout/1.4.2"));
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).expect("visible ASCII")
}
