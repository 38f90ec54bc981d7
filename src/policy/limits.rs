use std::{mem, time::Duration};

use tokio::time::Instant;

use super::Policy;
use crate::call::{CallerContext, RetryOverride, hop::Hop};

/// The least time that a call can end in. The next hop is told whole milliseconds.
const LEAST: Duration = Duration::from_millis(1);

/// Stands for no limit: longer than any call, and short enough to be added to any time.
const UNLIMITED: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The limits of one call: its policy's, with the caller's overrides clamped to what the profile
/// allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits {
    pub(crate) max_retries: u32,
    pub(crate) total: Duration,
    pub(crate) hop: Hop,
    /// It would be retried if the request that is being served were no retry.
    pub(crate) is_stopped: bool,
}

impl CallLimits {
    #[inline]
    pub(crate) fn of(policy: &Policy, overrides: Option<&RetryOverride>) -> Self {
        let retries = overrides.and_then(|overrides| overrides.max_retries);
        let total = overrides.and_then(|overrides| overrides.total);
        let max_retries = retries.map_or(policy.max_retries(), |n| n.min(policy.retries_ceiling()));
        let total = match total {
            Some(total) => total.min(policy.total_ceiling()),
            None if max_retries == 0 => without_retries(policy, retries.is_some()),
            None => policy.total_timeout(),
        };
        Self {
            max_retries,
            total,
            hop: Hop {
                passes_on: policy.rules().send_deadline == Some(true),
                ..Hop::default()
            },
            is_stopped: false,
        }
    }

    /// Keeps the call within what its caller has left. Fails if that is too little for any call.
    #[cold]
    #[inline(never)]
    pub(crate) fn keep_within(
        &mut self,
        policy: &Policy,
        caller: &CallerContext,
        now: Instant,
    ) -> Result<(), Late> {
        self.hop.previous = u16::try_from(caller.previous_attempts()).unwrap_or(u16::MAX);
        self.hop.passes_on = policy.rules().send_deadline != Some(false);
        if !caller.allows_retries() {
            self.hop.chain_stop = true;
            self.is_stopped = mem::take(&mut self.max_retries) > 0;
        }
        let Some(deadline) = caller.deadline() else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(now);
        self.total = self.total.min(left);
        match left < LEAST {
            true => Err(Late),
            false => Ok(()),
        }
    }

    /// Returns whether the call may take as long as it takes.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.total == UNLIMITED
    }
}

/// The deadline of the caller has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Late;

/// Returns the time of a call that is not retried. The profile's total time is there to bound
/// retries; a policy without any has one only if it was set.
#[cold]
fn without_retries(policy: &Policy, by_the_caller: bool) -> Duration {
    match policy.inner.total_is_set && !by_the_caller {
        true => policy.total_timeout(),
        false => UNLIMITED,
    }
}
