use std::time::Duration;

use crate::error::ConfigError;

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The times of an engine.
pub(super) struct Times {
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) store_timeout: Option<Duration>,
}

impl Times {
    /// Whether they are allowed, and then how long the store is waited for.
    pub(super) fn check(
        &self,
        section: &str,
        retention_name: &str,
        least: Duration,
        least_name: &str,
    ) -> Result<Duration, ConfigError> {
        let refused = |field, value: Duration, allowed: String| {
            let field = format!("{section}.{field}");
            Err(ConfigError::new(
                None,
                field,
                format_args!("{value:?}"),
                allowed,
            ))
        };
        let Self {
            lease,
            retention,
            store_timeout,
        } = *self;
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&lease) {
            return refused("lease", lease, "1s to 10min".into());
        }
        if !(least..=365 * DAY).contains(&retention) {
            return refused(
                retention_name,
                retention,
                format!("{least_name} to 365 days"),
            );
        }
        // A renewal that is given this long is still in time.
        let longest = lease / 3;
        match store_timeout {
            None => Ok(longest.min(Duration::from_secs(5))),
            Some(timeout) if timeout.is_zero() || timeout > longest => {
                let allowed = format!("more than 0, up to {longest:?}, a third of the lease");
                refused("store_timeout", timeout, allowed)
            }
            Some(timeout) => Ok(timeout),
        }
    }
}
