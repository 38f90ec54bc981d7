use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request};
use tokio::time::Instant;

use super::protocol::ATTEMPT_COUNT;
use crate::{
    Policy,
    classify::{Rules, is_grpc},
};

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// On a request's extensions: it was sent before, and this is another attempt.
///
/// [`RetryLayer`](crate::RetryLayer) sets it on every retry. A retry loop of another make can set
/// it too, so that a [`RetryBudgetLayer`](crate::RetryBudgetLayer) below recognises the repeat:
///
/// ```
/// use tower_reprise::retry::Attempt;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Attempt::retry(1));
/// assert_eq!(request.extensions().get::<Attempt>().map(|a| a.number()), Some(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    previous: u32,
    pub(crate) charged: bool,
    pub(crate) deadline: Option<Instant>,
    wants: Wants,
}

/// What an attempt needs that the one before did not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wants {
    pub(crate) credentials: bool,
    /// As do all after it, since the id that they would have is known to be refused.
    pub(crate) fresh_id: bool,
}

impl Attempt {
    /// A retry after so many attempts.
    #[must_use]
    pub fn retry(previous: u32) -> Self {
        Self {
            previous,
            charged: false,
            deadline: None,
            wants: Wants::default(),
        }
    }

    /// A retry of another make, for which the budget was asked.
    pub(crate) fn charged_elsewhere(previous: u32) -> Self {
        Self {
            charged: true,
            ..Self::retry(previous)
        }
    }

    /// A retry for which the budget was asked.
    pub(crate) fn charged(previous: u32, deadline: Instant, wants: Wants) -> Self {
        Self {
            previous,
            charged: true,
            deadline: Some(deadline),
            wants,
        }
    }

    /// Attempts before this one.
    #[must_use]
    pub fn previous(&self) -> u32 {
        self.previous
    }

    /// Whether the one before was refused for its credentials.
    #[must_use]
    pub fn wants_credentials(&self) -> bool {
        self.wants.credentials
    }

    /// Whether one before was refused for its request id. The header has a fresh one already;
    /// an id inside the body is for a [`PrepareAttempt`](super::PrepareAttempt) hook to renew.
    #[must_use]
    pub fn wants_fresh_id(&self) -> bool {
        self.wants.fresh_id
    }

    /// Says on a request that it is this attempt, and how much time is left for it.
    pub(crate) fn mark<B>(self, request: &mut Request<B>, rules: &Rules) {
        if rules.tell_attempts {
            request
                .headers_mut()
                .insert(ATTEMPT_COUNT, self.number().into());
        }
        if is_grpc(request.headers()) {
            let headers = request.headers_mut();
            headers.insert("grpc-previous-rpc-attempts", self.previous.into());
            if let (Some(timeout), Some(deadline)) = (headers.get_mut(&GRPC_TIMEOUT), self.deadline)
            {
                let left = deadline.saturating_duration_since(Instant::now());
                *timeout = grpc_timeout_of(left);
            }
        }
        request.extensions_mut().insert(self);
    }

    /// This attempt's number; the first is 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.previous.saturating_add(1)
    }
}

/// A `grpc-timeout`: at most eight digits, and a unit.
fn grpc_timeout_of(left: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = match left {
        left if left.as_micros() <= MOST => format!("{}u", left.as_micros()),
        left if left.as_millis() <= MOST => format!("{}m", left.as_millis()),
        left => format!("{}S", u128::from(left.as_secs()).min(MOST)),
    };
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("0m"))
}

/// On a request's extensions: other bounds for this one call, inside what its policy's profile
/// allows, or another dependency, or no retry at all.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::RetryOverride;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(
///     RetryOverride::new().max_retries(1).total(Duration::from_secs(2)).dependency("ledger"),
/// );
/// request.extensions_mut().insert(RetryOverride::off());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct RetryOverride {
    max_retries: Option<u32>,
    total: Option<Duration>,
    dependency: Option<Arc<str>>,
}

impl RetryOverride {
    /// Overrides nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No retries for this call.
    pub fn off() -> Self {
        Self::new().max_retries(0)
    }

    /// Calls after the first one; clamped to what the profile allows.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// The time the whole call may take; clamped to what the profile allows.
    pub fn total(mut self, total: Duration) -> Self {
        self.total = Some(total);
        self
    }

    /// The dependency whose state and policy this call goes by.
    pub fn dependency(mut self, name: impl Into<Arc<str>>) -> Self {
        self.dependency = Some(name.into());
        self
    }

    pub(crate) fn dependency_name(&self) -> Option<&str> {
        self.dependency.as_deref()
    }
}

/// The bounds of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) max_retries: u32,
    pub(crate) total: Duration,
}

impl Bounds {
    #[inline]
    pub(crate) fn of(policy: &Policy, wish: Option<&RetryOverride>) -> Self {
        let retries = wish.and_then(|wish| wish.max_retries);
        let total = wish.and_then(|wish| wish.total);
        Self {
            max_retries: retries.map_or(policy.max_retries(), |n| n.min(policy.retries_ceiling())),
            total: total.map_or(policy.total(), |total| total.min(policy.total_ceiling())),
        }
    }
}
