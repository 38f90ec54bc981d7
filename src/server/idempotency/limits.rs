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
        let invalid = |field, value: Duration, allowed: String| {
            let field = format!("{section}.{field}");
            let value = format_args!("{value:?}");
            Err(ConfigError::new(None, field, value, allowed))
        };
        let Self {
            lease,
            retention,
            store_timeout,
            max_execution,
        } = *self;
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&lease) {
            return invalid("lease", lease, "1s to 10min".into());
        }
        if !(least..=365 * DAY).contains(&retention) {
            let allowed = format!("{least_name} to 365 days");
            return invalid(retention_name, retention, allowed);
        }
        if !(lease..=retention).contains(&max_execution) {
            let allowed = format!("{lease:?}, a lease, to {retention:?}");
            return invalid("max_execution", max_execution, allowed);
        }
        // A renewal that takes this long is still in time.
        let longest = lease / 3;
        match store_timeout {
            None => Ok(longest.min(Duration::from_secs(5))),
            Some(timeout) if timeout.is_zero() || timeout > longest => {
                let allowed = format!("more than 0, up to {longest:?}, a third of the lease");
                invalid("store_timeout", timeout, allowed)
            }
            Some(timeout) => Ok(timeout),
        }
    }
}
