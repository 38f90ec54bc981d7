use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use tokio::time::Instant;

use super::{Attempt, CallDeadline, attempt_headers::ATTEMPT_COUNT};
use crate::http::grpc::is_grpc;

/// The header with the milliseconds that a request has, as Envoy sends it.
pub(crate) const EXPECTED_TIMEOUT: HeaderName =
    HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const GRPC_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// Returns whether a header has a meaning that is not the milliseconds of a deadline.
pub(crate) fn reads_otherwise(header: &HeaderName) -> bool {
    *header == GRPC_TIMEOUT || *header == GRPC_ATTEMPTS || *header == ATTEMPT_COUNT
}

/// The place of a call in a chain of hops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Hop {
    /// Attempts of the caller before the one that is being served.
    pub(crate) previous: u16,
    /// Each attempt tells the next hop what is left of its time, and which one it is.
    pub(crate) passes_on: bool,
    /// The call has less time than its policy gives it.
    pub(crate) is_cut: bool,
    /// The request that is being served is a retry, so that the call is not repeated.
    pub(crate) chain_stop: bool,
}

impl Hop {
    /// Tells the next hop which attempt it is, after so many others of this hop.
    pub(crate) fn write_attempt<B>(self, request: &mut Request<B>, previous: u32, tell: bool) {
        let previous = previous.saturating_add(self.previous.into());
        if previous == 0 {
            return;
        }
        let grpc = is_grpc(request.headers());
        let headers = request.headers_mut();
        if tell || (self.passes_on && !grpc) {
            headers.insert(&ATTEMPT_COUNT, previous.saturating_add(1).into());
        }
        if grpc {
            headers.insert(GRPC_ATTEMPTS, previous.into());
        }
    }

    /// Tells the next hop how much time is left, rounded down.
    pub(crate) fn write_deadline<B>(
        self,
        request: &mut Request<B>,
        deadline: Option<Instant>,
        header: &HeaderName,
    ) {
        let Some(deadline) = deadline else { return };
        let left = || deadline.saturating_duration_since(Instant::now());
        if is_grpc(request.headers()) {
            let headers = request.headers_mut();
            if self.passes_on || headers.contains_key(GRPC_TIMEOUT) {
                headers.insert(GRPC_TIMEOUT, grpc_timeout_of(left()));
            }
        } else if self.passes_on {
            let millis = u64::try_from(left().as_millis()).unwrap_or(u64::MAX);
            request.headers_mut().insert(header, millis.into());
        }
    }
}

/// Tells the next hop anew how much time is left, of a request that was held back.
pub(crate) fn refresh_deadline<B>(request: &mut Request<B>, header: &HeaderName) {
    let extensions = request.extensions();
    let known = match extensions.get::<Attempt>() {
        Some(attempt) => Some((attempt.hop, attempt.deadline)),
        None => extensions
            .get::<CallDeadline>()
            .map(|call| (call.hop, Some(call.at))),
    };
    if let Some((hop, deadline)) = known {
        hop.write_deadline(request, deadline, header);
    }
}

/// Writes a `grpc-timeout`: at most eight digits, and a unit.
fn grpc_timeout_of(left: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = match left {
        left if left.as_micros() <= MOST => format!("{}u", left.as_micros()),
        left if left.as_millis() <= MOST => format!("{}m", left.as_millis()),
        left => format!("{}S", u128::from(left.as_secs()).min(MOST)),
    };
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("0m"))
}
