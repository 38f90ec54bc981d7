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
        if let Some(wait) = retry_after {
            // In whole milliseconds that any peer can read, and never earlier than asked for.
            let millis = wait.as_nanos().div_ceil(1_000_000);
            let millis = i32::try_from(millis).unwrap_or(i32::MAX);
            headers.insert("grpc-retry-pushback-ms", millis.into());
        }
        // DEADLINE_EXCEEDED or UNAVAILABLE
        let late = *status == StatusCode::GATEWAY_TIMEOUT;
        let code = HeaderValue::from_static(if late { "4" } else { "14" });
        headers.insert("grpc-status", code);
        if let Ok(message) = HeaderValue::try_from(percent_encoded(detail)) {
            headers.insert("grpc-message", message);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        return Response::from_parts(parts, body);
    }
    if let Some(wait) = retry_after {
        // In whole seconds, and never earlier than asked for.
        let part = u64::from(wait.subsec_nanos() > 0);
        let seconds = wait.as_secs().saturating_add(part);
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

/// Text as a `grpc-message`, which is visible ASCII and spaces; all else, and the percent sign, is
/// encoded.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte.into()),
            _ => {
                let digit = |four: u8| char::from(b"0123456789ABCDEF"[usize::from(four)]);
                encoded.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(detail: &str, retry_after: Option<Duration>, grpc: bool) -> Response<Bytes> {
        let trouble_of = Trouble {
            status: StatusCode::SERVICE_UNAVAILABLE,
            detail: detail.to_owned(),
            retry_after,
        };
        trouble(&trouble_of, grpc)
    }

    fn header<'a>(response: &'a Response<Bytes>, name: &str) -> &'a str {
        response.headers()[name].to_str().unwrap()
    }

    #[test]
    fn ra_1_a_wait_is_never_shorter_in_the_header_than_it_is() {
        for (wait, seconds, millis) in [
            (Duration::ZERO, "0", "0"),
            (Duration::from_nanos(1), "1", "1"),
            (Duration::from_secs(3), "3", "3000"),
            (Duration::from_micros(3_000_001), "4", "3001"),
            (Duration::MAX, "18446744073709551615", "2147483647"),
        ] {
            let plain = refused("", Some(wait), false);
            assert_eq!(header(&plain, "retry-after"), seconds, "{wait:?}");
            let grpc = refused("", Some(wait), true);
            assert_eq!(header(&grpc, "grpc-retry-pushback-ms"), millis, "{wait:?}");
        }
        assert!(
            !refused("", None, false)
                .headers()
                .contains_key("retry-after")
        );
    }

    #[test]
    fn s_3_a_name_of_any_characters_makes_a_valid_message_and_a_valid_document() {
        let detail = "call to \"é\\100%\"\n refused, try again in 5µs";
        let grpc = refused(detail, None, true);
        let message = header(&grpc, "grpc-message");
        assert_eq!(
            message,
            "call to \"%C3%A9\\100%25\"%0A refused, try again in 5%C2%B5s"
        );
        let document = refused(detail, None, false).into_body();
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(
            document["detail"],
            "call to é100% refused, try again in 5µs"
        );
        assert_eq!(document["status"], 503);
    }
}
