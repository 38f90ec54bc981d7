use std::time::Duration;

use crate::error::ConfigError;

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The time for which the lease of an execution is renewed, by default.
pub(super) const MAX_EXECUTION: Duration = Duration::from_secs(15 * 60);

/// The bytes that settlements may take that wait for the store, by default.
pub(super) const UNSETTLED_LIMIT: usize = 64 << 20;

/// The durations of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeLimits {
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) store_timeout: Option<Duration>,
    pub(super) max_execution: Duration,
}

impl TimeLimits {
    /// Returns the longest that an engine waits for its store.
    pub(super) fn store_timeout(&self) -> Duration {
        let default = Duration::from_secs(5).min(self.longest_timeout());
        self.store_timeout.unwrap_or(default)
    }

    /// A renewal that takes this long is still in time.
    fn longest_timeout(&self) -> Duration {
        self.lease / 3
    }

    /// Checks the durations.
    pub(super) fn check(
        &self,
        section: &str,
        retention_name: &str,
        least: Duration,
        least_name: &str,
    ) -> Result<(), ConfigError> {
        let check = |field, value: Duration, range, allowed: String| {
            ConfigError::within(format!("{section}.{field}"), value, range, allowed)
        };
        let Self {
            lease,
            retention,
            max_execution,
            ..
        } = *self;
        let leases = Duration::from_secs(1)..=Duration::from_secs(600);
        check("lease", lease, leases, "1s to 10min".into())?;
        let allowed = format!("{least_name} to 365 days");
        check(retention_name, retention, least..=365 * DAY, allowed)?;
        let allowed = format!("{lease:?}, a lease, to {retention:?}");
        check("max_execution", max_execution, lease..=retention, allowed)?;
        let timeouts = Duration::from_nanos(1)..=self.longest_timeout();
        let allowed = format!(
            "more than 0, up to {:?}, a third of the lease",
            timeouts.end()
        );
        check("store_timeout", self.store_timeout(), timeouts, allowed)
    }
}
