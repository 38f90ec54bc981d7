use std::{sync::Arc, time::Duration};

use http::Request;
use tokio::time::Instant;

use crate::{Policy, classify::is_grpc};

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
}

impl Attempt {
    /// A retry after so many attempts.
    #[must_use]
    pub fn retry(previous: u32) -> Self {
        Self {
            previous,
            charged: false,
            deadline: None,
        }
    }

    /// A retry for which the budget was asked.
    pub(crate) fn charged(previous: u32, deadline: Option<Instant>) -> Self {
        Self {
            previous,
            charged: true,
            deadline,
        }
    }

    /// Attempts before this one.
    #[must_use]
    pub fn previous(&self) -> u32 {
        self.previous
    }

    /// Says on a request that it is this attempt.
    pub(crate) fn mark<B>(self, request: &mut Request<B>) {
        if is_grpc(request.headers()) {
            request
                .headers_mut()
                .insert("grpc-previous-rpc-attempts", self.previous.into());
        }
        request.extensions_mut().insert(self);
    }

    /// This attempt's number; the first is 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.previous.saturating_add(1)
    }
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
