use std::{sync::Arc, time::Duration};

/// On a request's extensions: other bounds for this one call, inside what its policy's profile
/// allows, or another dependency, or no retry at all.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::RetryOverride;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(
///     RetryOverride::new().max_retries(1).total_timeout(Duration::from_secs(2)).dependency("ledger"),
/// );
/// request.extensions_mut().insert(RetryOverride::off());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct RetryOverride {
    pub(crate) max_retries: Option<u32>,
    pub(crate) total: Option<Duration>,
    dependency: Option<Arc<str>>,
}

impl RetryOverride {
    /// Overrides nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No retries for this call, and no time limit but one that is set: by
    /// [`total_timeout`](Self::total_timeout), by the policy's time for an attempt, or by
    /// `grpc-timeout`. So a stream may take its time to begin.
    pub fn off() -> Self {
        Self::new().max_retries(0)
    }

    /// Calls after the first one; clamped to what the profile allows.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// The time the whole call may take; clamped to what the profile allows.
    pub fn total_timeout(mut self, total: Duration) -> Self {
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
