use http::{HeaderName, StatusCode};

use super::PolicyBuilder;
use crate::{
    classify::{Codes, retry_after::GuidanceTable},
    http::GrpcCode,
};

/// Classification.
impl PolicyBuilder {
    /// Retries on this status too (425 once). One that R-4 does not list takes an approval.
    pub fn retry_status(mut self, status: StatusCode) -> Self {
        let rules = &mut self.settings.rules;
        match status {
            StatusCode::TOO_EARLY => rules.once.push(status),
            _ => rules.statuses.push(status),
        }
        self
    }

    /// Never retries on this status.
    pub fn no_retry_status(mut self, status: StatusCode) -> Self {
        self.settings.rules.statuses.retain(|s| *s != status);
        self.settings.rules.once.retain(|s| *s != status);
        self
    }

    /// Retries on this gRPC status too. One that R-4 does not list takes an approval.
    pub fn retry_grpc(mut self, code: GrpcCode) -> Self {
        self.settings.rules.grpc.push(code);
        self
    }

    /// Never retries on this gRPC status.
    pub fn no_retry_grpc(mut self, code: GrpcCode) -> Self {
        self.settings.rules.grpc.retain(|c| *c != code);
        self
    }

    /// Declares that the dependency honours idempotency keys: it executes requests with the same key
    /// once. Then [`stacks::client`](crate::stacks::client) retries POST and PATCH, and gRPC methods
    /// declared [unary](Self::unary_methods), with the key that it stamps; without this word, it
    /// retries them only if they were never sent. On in [`Policy::bank`](super::Policy::bank), and
    /// with the codes of forrst.
    pub fn honours_keys(mut self) -> Self {
        self.settings.rules.honours_keys = true;
        self
    }

    /// Sets the header whose presence makes a POST or PATCH safe to retry.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.settings.rules.key_header = name;
        self
    }

    /// Retries requests that are not idempotent even without a key, which takes an approval of R-6.
    pub fn retry_without_key(mut self) -> Self {
        self.settings.rules.unkeyed_writes = true;
        self
    }

    /// Adds gRPC methods that are safe to retry without a key: `package.Service/Method`, or
    /// `package.Service` for all methods of a service.
    pub fn idempotent_methods<T: Into<String>>(
        mut self,
        methods: impl IntoIterator<Item = T>,
    ) -> Self {
        let methods = methods.into_iter().map(Into::into);
        self.settings.rules.idempotent_methods.extend(methods);
        self
    }

    /// Adds gRPC methods that take and return one message; others may stream.
    /// [`PeekLayer`](crate::client::peek::PeekLayer) waits for the first frame of their replies only;
    /// without any, of those of all methods under [`Policy::grpc_unary`](crate::Policy::grpc_unary),
    /// and of none under the other profiles. [`stacks::client`](crate::stacks::client) stamps keys on
    /// their requests only.
    pub fn unary_methods<T: Into<String>>(mut self, methods: impl IntoIterator<Item = T>) -> Self {
        let methods = methods.into_iter().map(Into::into);
        self.settings.rules.unary_methods.extend(methods);
        self
    }

    /// Sets the meaning of error codes in bodies, for a [`PeekLayer`](crate::client::peek::PeekLayer).
    pub fn codes(mut self, codes: Codes) -> Self {
        self.settings.rules.honours_keys |= codes.has_envelope();
        self.settings.rules.codes = codes;
        self
    }

    /// Sets the fields of failed replies that say when to call again.
    pub fn guidance(mut self, table: GuidanceTable) -> Self {
        self.settings.rules.guidance = table;
        self
    }

    /// Sets the header that gets a fresh value if an error code asks for one.
    pub fn request_id_header(mut self, name: HeaderName) -> Self {
        self.settings.rules.request_id_header = name;
        self
    }

    /// Sends the number of the attempt with each retry, in an `x-envoy-attempt-count` header, so that
    /// an [inbound budget](crate::InboundBudgetLayer) of the server recognises it. Retries over gRPC
    /// always carry `grpc-previous-rpc-attempts`.
    pub fn send_attempt_count(mut self) -> Self {
        self.settings.rules.send_attempt_count = true;
        self
    }

    /// Sets whether attempts say how much time is left for them, and which attempt they are: in
    /// `grpc-timeout` and `grpc-previous-rpc-attempts`, or over plain HTTP in the
    /// [`deadline_header`](Self::deadline_header) and `x-envoy-attempt-count`. Without this word those
    /// do that are made in the course of a request with a
    /// [`CallerContext`](crate::call::CallerContext), as a [`DeadlineLayer`](crate::DeadlineLayer)
    /// gives it.
    pub fn send_deadline(mut self, send: bool) -> Self {
        self.settings.rules.send_deadline = Some(send);
        self
    }

    /// Sets the header that says how many milliseconds are left for an attempt, over plain HTTP:
    /// `x-envoy-expected-rq-timeout-ms` by default.
    pub fn deadline_header(mut self, name: HeaderName) -> Self {
        self.settings.rules.deadline_header = name;
        self
    }

    /// Returns the table of codes so far.
    #[cfg(feature = "serde")]
    pub(crate) fn codes_so_far(&self) -> Codes {
        self.settings.rules.codes.clone()
    }

    /// Returns the table of guidance so far.
    #[cfg(feature = "serde")]
    pub(crate) fn guidance_so_far(&self) -> GuidanceTable {
        self.settings.rules.guidance.clone()
    }
}
