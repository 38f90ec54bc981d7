use std::time::Duration;

use super::Policy;
use crate::call::RetryOverride;

/// The limits of one call: its policy's, with the caller's overrides clamped to what the profile
/// allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits {
    pub(crate) max_retries: u32,
    pub(crate) total: Duration,
}

impl CallLimits {
    #[inline]
    pub(crate) fn of(policy: &Policy, overrides: Option<&RetryOverride>) -> Self {
        let retries = overrides.and_then(|overrides| overrides.max_retries);
        let total = overrides.and_then(|overrides| overrides.total);
        Self {
            max_retries: retries.map_or(policy.max_retries(), |n| n.min(policy.retries_ceiling())),
            total: total.map_or(policy.total_timeout(), |total| {
                total.min(policy.total_ceiling())
            }),
        }
    }
}
