//! Problem documents by RFC 9457, or a gRPC status for callers that speak gRPC. Nothing in them comes
//! from a request's body or a record.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};

use crate::http::{GrpcCode, grpc::PUSHBACK};

/// The prefix of all problem types.
const URN: &str = "urn:tower-reprise:problem:";

/// The reason why a request gets no reply from its handler.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    grpc: GrpcCode,
    /// The last part of the problem type's URN.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) detail: Cow<'static, str>,
    retry: RetryHint,
}

/// Whether a retry is of use.
#[derive(Debug, Clone, Copy)]
enum RetryHint {
    /// The status tells.
    Unsaid,
    Never,
    After(Duration),
}

/// The problems of one part of the crate.
macro_rules! problems {
    ($($(#[$doc:meta])* $id:ident: $status:ident, $grpc:ident, $name:literal, $title:literal, $detail:literal, $retry:expr;)*) => {
        $($(#[$doc])* pub(crate) const $id: Problem = Problem {
            status: StatusCode::$status,
            grpc: GrpcCode::$grpc,
            name: $name,
            title: $title,
            detail: Cow::Borrowed($detail),
            retry: $retry,
        };)*
    };
}

/// Problems of idempotent servers.
#[cfg(feature = "server")]
impl Problem {
    problems! {
        KEY_MISSING: BAD_REQUEST, InvalidArgument, "idempotency-key-missing",
            "Idempotency key is missing",
            "This operation needs an idempotency key, the same for each attempt.", RetryHint::Never;
        KEY_INVALID: BAD_REQUEST, InvalidArgument, "idempotency-key-invalid",
            "Idempotency key is not valid", "", RetryHint::Never;
        UNREADABLE: BAD_REQUEST, InvalidArgument, "idempotency-request-unreadable",
            "Request body could not be read", "The request ended before its body did.", RetryHint::Never;
        ANONYMOUS: FORBIDDEN, PermissionDenied, "idempotency-anonymous",
            "Idempotency key of nobody",
            "Keys belong to a caller, and this request does not say who that is.", RetryHint::Never;
        TOO_LARGE: PAYLOAD_TOO_LARGE, ResourceExhausted, "idempotency-request-too-large",
            "Request body is too large", "", RetryHint::Never;
        REUSED: UNPROCESSABLE_ENTITY, InvalidArgument, "idempotency-key-reused",
            "Idempotency key was used for another request",
            "A key belongs to one request. Use a new key for a new operation.", RetryHint::Never;
        /// Clients know this one by its type, and may ask again.
        PROCESSING: CONFLICT, Aborted, "idempotency-processing",
            "First request is still processing",
            "A request with this idempotency key is being processed. Ask again for its reply.",
            RetryHint::After(Duration::from_secs(1));
        NOT_RETAINED: CONFLICT, FailedPrecondition, "idempotency-reply-not-retained",
            "Reply was not retained",
            "The request with this idempotency key was executed, but its reply was not kept. It is not executed again.",
            RetryHint::Never;
        OUTCOME_UNKNOWN: CONFLICT, FailedPrecondition, "idempotency-outcome-unknown",
            "Outcome is unknown",
            "A request with this idempotency key was begun, and it is not known whether it took effect. It is not executed again: somebody has to look.",
            RetryHint::Never;
        UNAVAILABLE: SERVICE_UNAVAILABLE, Unavailable, "idempotency-unavailable",
            "Idempotency store is not available",
            "Whether this request was executed before can't be told now, so it is not executed.",
            RetryHint::After(Duration::from_secs(1));
        CRASHED: INTERNAL_SERVER_ERROR, Internal, "idempotency-handler-crashed",
            "Request was not finished",
            "Something went wrong while the request was executed. Ask again with the same idempotency key.",
            RetryHint::Unsaid;
    }
}

/// Problems of envelopes.
#[cfg(all(feature = "server", feature = "forrst"))]
impl Problem {
    problems! {
        ENVELOPE_INVALID: BAD_REQUEST, InvalidArgument, "forrst-envelope-invalid",
            "Envelope is not valid", "", RetryHint::Never;
    }
}

/// Problems of receivers of webhooks.
#[cfg(feature = "delivery")]
impl Problem {
    problems! {
        WEBHOOK_UNVERIFIED: UNAUTHORIZED, Unauthenticated, "webhook-unverified",
            "Message could not be verified", "", RetryHint::Unsaid;
        WEBHOOK_UNREADABLE: BAD_REQUEST, InvalidArgument, "webhook-unreadable",
            "Message could not be read", "The request ended before its body did.", RetryHint::Unsaid;
        WEBHOOK_TOO_LARGE: PAYLOAD_TOO_LARGE, ResourceExhausted, "webhook-too-large",
            "Message is too large", "", RetryHint::Never;
    }
}

/// Problems of replays.
#[cfg(feature = "delivery")]
impl Problem {
    problems! {
        REPLAY_INVALID: BAD_REQUEST, InvalidArgument, "replay-invalid",
            "Replay is not asked for properly", "", RetryHint::Never;
        REPLAY_ANONYMOUS: FORBIDDEN, PermissionDenied, "replay-anonymous",
            "Replay of nobody",
            "Replays belong to a caller, and this request does not say who that is.", RetryHint::Never;
        REPLAY_TOO_LARGE: PAYLOAD_TOO_LARGE, ResourceExhausted, "replay-too-large",
            "Request body is too large", "", RetryHint::Never;
        REPLAY_NOT_FOUND: NOT_FOUND, NotFound, "replay-not-found",
            "No such replay", "There is no replay of that id.", RetryHint::Never;
        REPLAY_METHOD: METHOD_NOT_ALLOWED, Unimplemented, "replay-method",
            "Method is not allowed", "This can't be done with a replay.", RetryHint::Never;
        REPLAY_ALREADY_COMPLETE: CONFLICT, FailedPrecondition, "replay-already-complete",
            "Replay is complete", "The request was replayed already.", RetryHint::Never;
        REPLAY_FAILED: CONFLICT, FailedPrecondition, "replay-failed",
            "Replay failed", "The request was replayed, and failed for good.", RetryHint::Never;
        REPLAY_CANCELLED: CONFLICT, FailedPrecondition, "replay-cancelled",
            "Replay was cancelled", "The replay was cancelled before it was begun.", RetryHint::Never;
        REPLAY_EXPIRED: GONE, FailedPrecondition, "replay-expired",
            "Replay has expired", "The request was not replayed in time.", RetryHint::Never;
        REPLAY_PROCESSING: CONFLICT, Aborted, "replay-processing",
            "Replay is processing", "The request is being replayed.", RetryHint::Never;
        REPLAY_NO_REPLY: NOT_FOUND, NotFound, "replay-no-reply",
            "No reply yet", "The request was not replayed yet, or its reply was not kept.",
            RetryHint::Unsaid;
        SERVER_MAINTENANCE: SERVICE_UNAVAILABLE, Unavailable, "server-maintenance",
            "Service is in maintenance", "The service is in maintenance.",
            RetryHint::After(Duration::from_secs(60));
        REPLAY_FULL: SERVICE_UNAVAILABLE, Unavailable, "replay-full",
            "Too many requests wait",
            "The request can't be served now, and as many wait as may.",
            RetryHint::After(Duration::from_secs(60));
        REPLAY_UNAVAILABLE: SERVICE_UNAVAILABLE, Unavailable, "replay-unavailable",
            "Request was not journaled",
            "The request can't be served now, and could not be written down either.",
            RetryHint::After(Duration::from_secs(1));
    }
}

impl Problem {
    problems! {
        RETRY_BUDGET: TOO_MANY_REQUESTS, ResourceExhausted, "retry-budget",
            "Retry budget used up",
            "Too many retries reach this service. Do not retry this request.", RetryHint::Never;
        REFUSED: SERVICE_UNAVAILABLE, Unavailable, "refused", "Call refused", "", RetryHint::Unsaid;
        LATE: GATEWAY_TIMEOUT, DeadlineExceeded, "timeout", "Call timed out",
            "The call took too long.", RetryHint::Unsaid;
        DEADLINE: GATEWAY_TIMEOUT, DeadlineExceeded, "deadline", "Deadline passed",
            "The caller's deadline passed before the request was served.", RetryHint::Never;
        FAILED: BAD_GATEWAY, Unavailable, "upstream", "Call failed", "The call failed.",
            RetryHint::Unsaid;
    }

    /// Returns whether a reply is [`PROCESSING`](Self::PROCESSING).
    #[cfg(feature = "delivery")]
    pub(crate) fn is_processing(reply: &Response<Bytes>) -> bool {
        // The same in a problem document and in a forrst envelope.
        let code = format!("\"{}\"", Self::PROCESSING.code());
        let mut windows = reply.body().windows(code.len());
        reply.status() == Self::PROCESSING.status && windows.any(|part| part == code.as_bytes())
    }

    /// Sets the detail: what is wrong in this case.
    pub(crate) fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Sets the status to unavailable, rather than too many requests.
    pub(crate) fn unavailable(mut self) -> Self {
        self.status = StatusCode::SERVICE_UNAVAILABLE;
        self.grpc = GrpcCode::Unavailable;
        self
    }

    /// Returns the code by which programs know the problem.
    pub(crate) fn code(&self) -> String {
        self.name.replace('-', "_").to_ascii_uppercase()
    }

    /// Returns how long to wait before a retry, if that is of use.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.retry {
            RetryHint::After(wait) => Some(wait),
            RetryHint::Unsaid | RetryHint::Never => None,
        }
    }

    /// Sets how long to wait, if that is known.
    pub(crate) fn retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry = wait.map_or(self.retry, RetryHint::After);
        self
    }

    pub(crate) fn response(&self, grpc: bool) -> Response<Bytes> {
        let mut response = if grpc {
            self.trailers_only()
        } else {
            self.document()
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(self.retry, RetryHint::Never) {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }

    fn document(&self) -> Response<Bytes> {
        let Self {
            status,
            name,
            title,
            detail,
            ..
        } = self;
        let detail: String = detail
            .chars()
            .filter(|c| !matches!(c, '"' | '\\' | '\0'..='\x1f'))
            .collect();
        let mut response = Response::new(Bytes::from(format!(
            r#"{{"type":"{URN}{name}","title":"{title}","status":{},"detail":"{detail}","code":"{}"}}"#,
            status.as_u16(),
            self.code()
        )));
        *response.status_mut() = *status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(wait) = self.wait() {
            // In whole seconds, rounded up.
            let part = u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, wait.as_secs().saturating_add(part).into());
        }
        response
    }

    fn trailers_only(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", u16::from(self.grpc as u8).into());
        if let Ok(message) = HeaderValue::try_from(percent_encoded(&self.detail)) {
            headers.insert("grpc-message", message);
        }
        let pushback = match self.retry {
            RetryHint::Unsaid => return response,
            RetryHint::Never => -1,
            RetryHint::After(wait) => {
                // In whole milliseconds, rounded up, that fit the 32 bits of any peer.
                let millis = wait.as_nanos().div_ceil(1_000_000);
                i32::try_from(millis).unwrap_or(i32::MAX)
            }
        };
        headers.insert(PUSHBACK, pushback.into());
        response
    }
}

/// Encodes text as a `grpc-message`: all but visible ASCII and spaces, and the percent sign.
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
        let problem = Problem::REFUSED.detail(detail.to_owned());
        problem.retry_after(retry_after).response(grpc)
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
