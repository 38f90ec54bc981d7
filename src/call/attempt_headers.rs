use std::time::Duration;

use http::{HeaderMap, HeaderName, Request};

use super::{
    Attempt,
    budget_mark::{Counted, Marks},
};
use crate::http::grpc::grpc_timeout;

/// Where a request comes from, as far as it can be told.
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
pub(crate) fn origin<B>(request: &Request<B>) -> Origin {
    origin_of(request, Marks::on(request.extensions()), None)
}

/// `told` is what the headers tell of earlier attempts, if they were looked at already.
#[inline(always)]
pub(crate) fn origin_of<B>(request: &Request<B>, marks: Marks, told: Option<u32>) -> Origin {
    let (attempt, counted) = match marks {
        Marks::Nothing => (None, false),
        Marks::Counted => (None, true),
        Marks::Others => {
            let extensions = request.extensions();
            (
                extensions.get::<Attempt>(),
                extensions.get::<Counted>().is_some(),
            )
        }
    };
    if attempt.is_some_and(|attempt| attempt.charged) {
        return Origin::Charged;
    }
    let told = told.unwrap_or_else(|| told_by(request.headers()));
    match attempt.map_or(0, Attempt::previous).max(told) {
        0 if counted => Origin::Counted,
        0 => Origin::Original,
        previous => Origin::Repeated(previous),
    }
}

fn told_by(headers: &HeaderMap) -> u32 {
    // A pass over the names is cheaper than two look-ups, which hash.
    let mut most = 0;
    for name in headers.keys() {
        if *name == GRPC_NAME || *name == ENVOY_NAME {
            let values = headers.get_all(name).iter();
            most = values
                .map(|value| told(name.as_str(), value.as_bytes()))
                .fold(most, u32::max);
        }
    }
    most
}

static GRPC_NAME: HeaderName = HeaderName::from_static(GRPC);
static ENVOY_NAME: HeaderName = HeaderName::from_static(ENVOY);
/// The number of an attempt, as Envoy tells it.
pub(crate) const ATTEMPT_COUNT: HeaderName = HeaderName::from_static(ENVOY);
const GRPC: &str = "grpc-previous-rpc-attempts";
pub(crate) const TIMEOUT: &str = "grpc-timeout";
const ENVOY: &str = "x-envoy-attempt-count";

/// What headers tell of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
    /// Attempts before this one, by another retry loop.
    pub(crate) attempts: u32,
    /// The time that a gRPC call has.
    pub(crate) timeout: Option<Duration>,
}

impl Told {
    /// Takes in one header, which is rarely one that tells anything: most are known not to by their
    /// length and first letter.
    #[inline(always)]
    pub(crate) fn note(&mut self, name: &str, value: &[u8]) {
        const LONG: (usize, usize, usize) = (GRPC.len(), TIMEOUT.len(), ENVOY.len());
        let first = name.as_bytes().first();
        let may_tell = match name.len() {
            length if length == LONG.0 || length == LONG.1 => first == Some(&b'g'),
            length if length == LONG.2 => first == Some(&b'x'),
            _ => false,
        };
        if may_tell {
            self.take_in(name, value);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_in(&mut self, name: &str, value: &[u8]) {
        match name {
            GRPC | ENVOY => self.attempts = told(name, value).max(self.attempts),
            TIMEOUT => self.timeout = grpc_timeout(value),
            _ => {}
        }
    }
}

/// How many attempts such a header of another retry loop tells of.
fn told(name: &str, value: &[u8]) -> u32 {
    let number = str::from_utf8(value)
        .ok()
        .and_then(|value| value.parse::<u32>().ok());
    number
        .unwrap_or_default()
        .saturating_sub(u32::from(name == ENVOY))
}
