use crate::http::{grpc::is_one_of, headers::IDEMPOTENCY_KEY};
use http::{HeaderName, Method, Request, StatusCode};

use crate::{
    call::{RetryOverride, hop::EXPECTED_TIMEOUT},
    classify::{Codes, retry_after::GuidanceTable},
    http::{GrpcCode, headers::first},
};

/// The tables that a policy classifies by: statuses to retry on, and requests that are safe to
/// retry. Set through [`PolicyBuilder`](crate::policy::PolicyBuilder).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// HTTP statuses that are retried.
    pub statuses: Vec<StatusCode>,
    /// HTTP statuses that are retried at most once in a call.
    pub once: Vec<StatusCode>,
    /// gRPC statuses that are retried.
    pub grpc: Vec<GrpcCode>,
    /// The header whose presence makes a POST or PATCH safe to retry, if keys are honoured.
    pub key_header: HeaderName,
    /// Whether the dependency honours idempotency keys. [`stacks::client`](crate::stacks::client)
    /// needs this word; a [`RetryLayer`](crate::client::retry::RetryLayer) that is stacked by hand
    /// takes each key for the caller's word.
    pub honours_keys: bool,
    /// Whether requests that are not idempotent are retried without a key.
    pub unkeyed_writes: bool,
    /// gRPC methods that are safe to retry: `package.Service/Method`, or `package.Service` for all
    /// methods of a service.
    pub idempotent_methods: Vec<String>,
    /// gRPC methods that reply with one message: waiting for it delays no stream, so their status
    /// is read from late trailers too. Empty under the unary profile: all of them.
    pub unary_methods: Vec<String>,
    /// Error codes in bodies.
    pub codes: Codes,
    /// The fields of failed replies that say when to call again.
    pub guidance: GuidanceTable,
    /// The header that gets a fresh value if an error code asks for one.
    pub request_id_header: HeaderName,
    /// Whether retries carry `x-envoy-attempt-count`.
    pub send_attempt_count: bool,
    /// Whether attempts say how much time is left for them. Unset: where they are made in the course
    /// of a request whose caller said so.
    pub send_deadline: Option<bool>,
    /// The header that says so, in milliseconds. gRPC has its own.
    pub deadline_header: HeaderName,
}

impl Rules {
    /// Returns the table of the integration retry standard, rule R-4.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            statuses: STATUSES.to_vec(),
            once: vec![StatusCode::TOO_EARLY],
            grpc: GRPC.to_vec(),
            key_header: IDEMPOTENCY_KEY,
            honours_keys: false,
            unkeyed_writes: false,
            idempotent_methods: Vec::new(),
            unary_methods: Vec::new(),
            codes: Codes::standard(),
            guidance: GuidanceTable::standard(),
            request_id_header: HeaderName::from_static("x-request-id"),
            send_attempt_count: false,
            send_deadline: None,
            deadline_header: EXPECTED_TIMEOUT,
        }
    }

    /// Returns the table of BlooBank's retry recipe: as [`standard`](Self::standard), but an internal
    /// error is never retried.
    #[must_use]
    pub fn bank() -> Self {
        let mut rules = Self::standard();
        rules
            .statuses
            .retain(|status| *status != StatusCode::INTERNAL_SERVER_ERROR);
        rules
            .grpc
            .retain(|code| matches!(code, GrpcCode::Unavailable | GrpcCode::ResourceExhausted));
        rules.codes = Codes::bank();
        rules.honours_keys = true;
        rules
    }

    /// Returns whether R-4 allows retries on this status.
    #[must_use]
    pub fn allows_status(status: StatusCode) -> bool {
        STATUSES.contains(&status)
    }

    /// Returns whether R-4 allows retries on this gRPC status.
    #[must_use]
    pub fn allows_grpc(code: GrpcCode) -> bool {
        GRPC.contains(&code)
    }

    /// Returns whether sending this request twice has the effect of sending it once.
    #[inline(always)]
    pub(crate) fn repeatable<B>(&self, request: &Request<B>, keys: KeysHonoured) -> bool {
        let safe = matches!(
            *request.method(),
            Method::GET
                | Method::HEAD
                | Method::OPTIONS
                | Method::PUT
                | Method::DELETE
                | Method::TRACE
        );
        safe || self.unsafe_is_repeatable(request, keys)
    }

    /// Returns whether a request may be repeated whose method is not safe.
    #[inline(never)]
    fn unsafe_is_repeatable<B>(&self, request: &Request<B>, keys: KeysHonoured) -> bool {
        let honoured = self.honours_keys || keys == KeysHonoured::ByCaller;
        let key = || first(request.headers(), &self.key_header);
        let keyed = || key().is_some_and(|key| !key.as_bytes().trim_ascii().is_empty());
        self.unkeyed_writes
            || (honoured && keyed())
            || is_one_of(&self.idempotent_methods, request)
            || RetryOverride::is_idempotent(request.extensions())
    }

    /// Returns whether the reply to this request is one message.
    pub(crate) fn is_unary<B>(&self, request: &Request<B>) -> bool {
        is_one_of(&self.unary_methods, request)
    }
}

/// The source of the promise that keys are honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KeysHonoured {
    /// The caller's, who sends them.
    #[default]
    ByCaller,
    /// The policy's, see [`Rules::honours_keys`].
    ByPolicy,
}

impl Default for Rules {
    fn default() -> Self {
        Self::standard()
    }
}

const STATUSES: [StatusCode; 6] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

const GRPC: [GrpcCode; 4] = [
    GrpcCode::Unavailable,
    GrpcCode::DeadlineExceeded,
    GrpcCode::ResourceExhausted,
    GrpcCode::Aborted,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_2_only_methods_that_are_declared_so_reply_with_one_message() {
        let mut rules = Rules::standard();
        let request = Request::post("http://a.example/bank.Ledger/Balance")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        assert!(!rules.is_unary(&request));
        rules.idempotent_methods = vec!["bank.Ledger".to_owned()];
        assert!(!rules.is_unary(&request));
        rules.unary_methods = vec!["bank.Ledger/Balance".to_owned()];
        assert!(rules.is_unary(&request));
    }
}
