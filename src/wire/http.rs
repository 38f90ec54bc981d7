//! Plain HTTP: headers and RFC 9457 problem documents.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
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

/// Why a server has no other answer than a problem.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    /// 502, 503 or 504.
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    pub(crate) retry_after: Option<Duration>,
}

/// The response to a call that could not be made, or that failed.
pub(crate) fn trouble(trouble: &Trouble, grpc: bool) -> Response<Bytes> {
    let Trouble {
        status,
        detail,
        retry_after,
    } = trouble;
    let (mut parts, mut body) = Response::new(Bytes::new()).into_parts();
    let headers = &mut parts.headers;
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if grpc {
        let wait = retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        if let Some(wait) = wait {
            headers.insert("grpc-retry-pushback-ms", wait.into());
        }
        // DEADLINE_EXCEEDED or UNAVAILABLE
        let late = *status == StatusCode::GATEWAY_TIMEOUT;
        let code = HeaderValue::from_static(if late { "4" } else { "14" });
        headers.insert("grpc-status", code);
        if let Ok(message) = HeaderValue::try_from(detail) {
            headers.insert("grpc-message", message);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        return Response::from_parts(parts, body);
    }
    if let Some(wait) = retry_after {
        // In whole seconds, and never earlier than asked for.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, seconds.into());
    }
    let (kind, title) = match *status {
        StatusCode::SERVICE_UNAVAILABLE => ("refused", "Call refused"),
        StatusCode::GATEWAY_TIMEOUT => ("timeout", "Call timed out"),
        _ => ("upstream", "Call failed"),
    };
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    let detail: String = detail
        .chars()
        .filter(|c| !matches!(c, '"' | '\\' | '\0'..='\x1f'))
        .collect();
    body = Bytes::from(format!(
        r#"{{"type":"urn:tower-reprise:problem:{kind}","title":"{title}","status":{},"detail":"{detail}"}}"#,
        status.as_u16()
    ));
    parts.status = *status;
    Response::from_parts(parts, body)
}
