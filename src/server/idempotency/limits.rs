use std::time::Duration;

use crate::error::ConfigError;

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The durations of an engine.
pub(super) struct TimeLimits {
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) store_timeout: Option<Duration>,
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
        } = *self;
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&lease) {
            return invalid("lease", lease, "1s to 10min".into());
        }
        if !(least..=365 * DAY).contains(&retention) {
            let allowed = format!("{least_name} to 365 days");
            return invalid(retention_name, retention, allowed);
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
