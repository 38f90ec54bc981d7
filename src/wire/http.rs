//! Plain HTTP: headers and RFC 9457 problem documents.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};

/// A response that refuses a retry and asks not to be sent another.
pub(crate) fn do_not_retry(status: StatusCode, grpc: bool) -> Response<Bytes> {
    let (mut parts, mut body) = Response::new(Bytes::new()).into_parts();
    let mut set = |name: &'static str, value: &'static str| {
        parts.headers.insert(name, HeaderValue::from_static(value));
    };
    set("x-should-retry", "false");
    set(CACHE_CONTROL.as_str(), "no-store");
    if grpc {
        set(CONTENT_TYPE.as_str(), "application/grpc");
        // RESOURCE_EXHAUSTED or UNAVAILABLE
        let busy = status == StatusCode::TOO_MANY_REQUESTS;
        set("grpc-status", if busy { "8" } else { "14" });
        set("grpc-message", "retry budget used up");
        set("grpc-retry-pushback-ms", "-1");
    } else {
        set(CONTENT_TYPE.as_str(), "application/problem+json");
        parts.status = status;
        body = Bytes::from(format!(
            r#"{{"type":"urn:tower-reprise:problem:retry-budget","title":"Retry budget used up","status":{},"detail":"Too many retries reach this service. Do not retry this request."}}"#,
            status.as_u16()
        ));
    }
    Response::from_parts(parts, body)
}
