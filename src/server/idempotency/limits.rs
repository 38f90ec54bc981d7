use std::time::Duration;

use crate::error::ConfigError;

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The time for which the lease of an execution is renewed, by default.
pub(super) const MAX_EXECUTION: Duration = Duration::from_secs(15 * 60);

/// The bytes that settlements may take that wait for the store, by default.
pub(super) const UNSETTLED_LIMIT: usize = 64 << 20;

/// The durations of an engine.
pub(super) struct TimeLimits {
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) store_timeout: Option<Duration>,
    pub(super) max_execution: Duration,
}

impl TimeLimits {
    /// Checks the durations, and returns the timeout of the store.
    pub(super) fn check(
        &self,
        section: &str,
        retention_name: &str,
        least: Duration,
        least_name: &str,
    ) -> Result<Duration, ConfigError> {
        let check = |field, value: Duration, range, allowed: String| {
            ConfigError::within(format!("{section}.{field}"), value, range, allowed)
        };
        let Self {
            lease,
            retention,
            store_timeout,
            max_execution,
        } = *self;
        let leases = Duration::from_secs(1)..=Duration::from_secs(600);
        check("lease", lease, leases, "1s to 10min".into())?;
        let allowed = format!("{least_name} to 365 days");
        check(retention_name, retention, least..=365 * DAY, allowed)?;
        let allowed = format!("{lease:?}, a lease, to {retention:?}");
        check("max_execution", max_execution, lease..=retention, allowed)?;
        // A renewal that takes this long is still in time.
        let longest = lease / 3;
        let timeout = store_timeout.unwrap_or(longest.min(Duration::from_secs(5)));
        let allowed = format!("more than 0, up to {longest:?}, a third of the lease");
        check(
            "store_timeout",
            timeout,
            Duration::from_nanos(1)..=longest,
            allowed,
        )?;
        Ok(timeout)
    }
}
