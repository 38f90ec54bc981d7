//! Refusals: RFC 9457 problem documents, or a gRPC status for who speaks gRPC. Nothing in them
//! comes from a request or a record.

use std::borrow::Cow;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};

use crate::classify::GrpcCode;

/// Why a request gets no reply from its handler.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    grpc: GrpcCode,
    /// The last part of the problem type's URN.
    name: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    /// In whole seconds, if asking again is of use.
    retry_after: Option<u32>,
}

macro_rules! problems {
    ($($(#[$doc:meta])* $id:ident: $status:ident, $grpc:ident, $name:literal, $title:literal, $detail:literal, $retry:expr;)*) => {
        $($(#[$doc])* pub(crate) const $id: Problem = Problem {
            status: StatusCode::$status,
            grpc: GrpcCode::$grpc,
            name: $name,
            title: $title,
            detail: Cow::Borrowed($detail),
            retry_after: $retry,
        };)*
    };
}

impl Problem {
    problems! {
        KEY_MISSING: BAD_REQUEST, InvalidArgument, "idempotency-key-missing",
            "Idempotency key is missing",
            "This operation needs an idempotency key, the same for each attempt.", None;
        KEY_INVALID: BAD_REQUEST, InvalidArgument, "idempotency-key-invalid",
            "Idempotency key is not valid", "", None;
        UNREADABLE: BAD_REQUEST, InvalidArgument, "idempotency-request-unreadable",
            "Request body could not be read", "The request ended before its body did.", None;
        ANONYMOUS: FORBIDDEN, PermissionDenied, "idempotency-anonymous",
            "Idempotency key of nobody",
            "Keys belong to a caller, and this request does not say who that is.", None;
        TOO_LARGE: PAYLOAD_TOO_LARGE, ResourceExhausted, "idempotency-request-too-large",
            "Request body is too large", "", None;
        REUSED: UNPROCESSABLE_ENTITY, InvalidArgument, "idempotency-key-reused",
            "Idempotency key was used for another request",
            "A key belongs to one request. Use a new key for a new operation.", None;
        /// Clients know this one by its type, and may ask again.
        PROCESSING: CONFLICT, Aborted, "idempotency-processing",
            "First request is still processing",
            "A request with this idempotency key is being processed. Ask again for its reply.",
            Some(1);
        NOT_RETAINED: CONFLICT, FailedPrecondition, "idempotency-reply-not-retained",
            "Reply was not retained",
            "The request with this idempotency key was executed, but its reply was not kept. It is not executed again.",
            None;
        OUTCOME_UNKNOWN: CONFLICT, FailedPrecondition, "idempotency-outcome-unknown",
            "Outcome is unknown",
            "A request with this idempotency key was begun, and it is not known whether it took effect. It is not executed again: somebody has to look.",
            None;
        UNAVAILABLE: SERVICE_UNAVAILABLE, Unavailable, "idempotency-unavailable",
            "Idempotency store is not available",
            "Whether this request was executed before can't be told now, so it is not executed.",
            Some(1);
        CRASHED: INTERNAL_SERVER_ERROR, Internal, "idempotency-handler-crashed",
            "Request was not finished",
            "Something went wrong while the request was executed. Ask again with the same idempotency key.",
            None;
    }

    /// With what is wrong in this case. It goes into a JSON string and a header as it is.
    pub(crate) fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    pub(crate) fn response(&self, grpc: bool) -> Response<Bytes> {
        if grpc {
            self.trailers_only()
        } else {
            self.document()
        }
    }

    fn document(&self) -> Response<Bytes> {
        let Self {
            status,
            name,
            title,
            detail,
            ..
        } = self;
        let mut response = Response::new(Bytes::from(format!(
            r#"{{"type":"urn:tower-reprise:problem:{name}","title":"{title}","status":{},"detail":"{detail}"}}"#,
            status.as_u16()
        )));
        *response.status_mut() = *status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    fn trailers_only(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert("grpc-status", u16::from(self.grpc as u8).into());
        headers.insert("grpc-message", HeaderValue::from_static(self.title));
        let pushback = self
            .retry_after
            .map_or(-1, |seconds| i64::from(seconds) * 1000);
        headers.insert("grpc-retry-pushback-ms", pushback.into());
        response
    }
}
