use std::time::Duration;

use http::{HeaderMap, HeaderName, Request};

use super::{
    Attempt,
    budget_mark::{BudgetMark, ExtensionsKind, RegistryId},
};
use crate::http::{grpc::grpc_timeout, headers::digits};

/// The origin of a request, as far as its extensions and headers tell a layer of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Sent for the first time, and not counted yet.
    Original,
    /// Sent for the first time, and counted by a layer above.
    Counted,
    /// Sent again, and charged by a layer above.
    Charged,
    /// Sent again after so many attempts by a retry loop that is not ours.
    Repeated(u32),
}

#[inline]
pub(crate) fn origin<B>(request: &Request<B>, registry: RegistryId) -> Origin {
    let kind = ExtensionsKind::of(request.extensions());
    origin_of(request, registry, kind, None)
}

/// `previous` is the number of earlier attempts by the headers, if they were read already.
#[inline(always)]
pub(crate) fn origin_of<B>(
    request: &Request<B>,
    registry: RegistryId,
    kind: ExtensionsKind,
    previous: Option<u32>,
) -> Origin {
    let extensions = request.extensions();
    let attempt = match kind {
        ExtensionsKind::Other => extensions.get::<Attempt>(),
        _ => None,
    };
    let counted = kind != ExtensionsKind::Empty
        && extensions
            .get()
            .is_some_and(|BudgetMark(by)| *by == registry);
    if attempt.is_some_and(|attempt| attempt.charged == Some(registry)) {
        return Origin::Charged;
    }
    let previous = previous.unwrap_or_else(|| previous_attempts(request.headers()));
    match attempt.map_or(0, Attempt::previous).max(previous) {
        0 if counted => Origin::Counted,
        0 => Origin::Original,
        previous => Origin::Repeated(previous),
    }
}

/// Returns the number of earlier attempts that headers tell of, the greatest of several.
pub(crate) fn previous_attempts(headers: &HeaderMap) -> u32 {
    // A pass over the names is cheaper than two look-ups, which hash.
    let mut most = 0;
    for name in headers.keys() {
        if *name == GRPC_NAME || *name == ATTEMPT_COUNT {
            let values = headers.get_all(name).iter();
            most = values
                .map(|value| parse_previous(name.as_str(), value.as_bytes()))
                .fold(most, u32::max);
        }
    }
    most
}

static GRPC_NAME: HeaderName = HeaderName::from_static(GRPC);
/// The number of an attempt, as Envoy sends it.
pub(crate) static ATTEMPT_COUNT: HeaderName = HeaderName::from_static(ENVOY);
const GRPC: &str = "grpc-previous-rpc-attempts";
pub(crate) const TIMEOUT: &str = "grpc-timeout";
const ENVOY: &str = "x-envoy-attempt-count";

/// The headers of a request that say something about its attempts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttemptHeaders {
    /// Attempts before this one, by another retry loop.
    pub(crate) previous: u32,
    /// The time that a gRPC call has.
    pub(crate) timeout: Option<Duration>,
}

impl AttemptHeaders {
    /// Reads one header. Length and first letter rule most of them out.
    #[inline(always)]
    pub(crate) fn note(&mut self, name: &str, value: &[u8]) {
        const LONG: (usize, usize, usize) = (GRPC.len(), TIMEOUT.len(), ENVOY.len());
        let first = name.as_bytes().first();
        let may_match = match name.len() {
            length if length == LONG.0 || length == LONG.1 => first == Some(&b'g'),
            length if length == LONG.2 => first == Some(&b'x'),
            _ => false,
        };
        if may_match {
            self.read(name, value);
        }
    }

    #[cold]
    #[inline(never)]
    fn read(&mut self, name: &str, value: &[u8]) {
        match name {
            GRPC | ENVOY => self.previous = parse_previous(name, value).max(self.previous),
            TIMEOUT => self.timeout = grpc_timeout(value),
            _ => {}
        }
    }
}

/// Returns the attempts before this one, by a header of another retry loop.
fn parse_previous(name: &str, value: &[u8]) -> u32 {
    let number = digits(value.trim_ascii()).unwrap_or_default();
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    number.saturating_sub(u32::from(name == ENVOY))
}
