//! The costs of retries, beside the window.

use super::{Budget, Limit};
use crate::{policy::RetryQuota, sync::Ordering};

/// The tokens of a retry. They are given back when it is not sent, was refused, or succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tokens(u32);

/// The sort of failure before a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Failure,
    Timeout,
    Throttled,
}

impl Budget {
    fn quota(&self) -> Option<RetryQuota> {
        self.limit.and_then(|limit| limit.quota)
    }

    /// Takes the tokens of a retry, unless there are too few.
    pub(crate) fn take_tokens(&self, kind: Kind) -> Option<Tokens> {
        let Some(quota) = self.quota() else {
            return Some(Tokens::default());
        };
        let cost = match kind {
            Kind::Failure => quota.failure,
            Kind::Timeout => quota.timeout,
            Kind::Throttled => quota.throttled,
        };
        let more = |spent: u32| {
            let spent = spent.checked_add(cost)?;
            (spent <= quota.capacity).then_some(spent)
        };
        // Relaxed: the count is whole in itself.
        let relaxed = Ordering::Relaxed;
        let taken = self.counts.spent.fetch_update(relaxed, relaxed, more);
        taken.is_ok().then_some(Tokens(cost))
    }

    /// Gives tokens back, which may be of a quota that is gone.
    pub(crate) fn give_tokens(&self, Tokens(tokens): Tokens) {
        if tokens > 0 {
            let less = |spent: u32| Some(spent.saturating_sub(tokens));
            let relaxed = Ordering::Relaxed;
            let _ = self.counts.spent.fetch_update(relaxed, relaxed, less);
        }
    }

    /// Returns whether a success gives a token back.
    #[inline]
    pub(super) fn owes_tokens(&self, limit: Limit) -> bool {
        limit.quota.is_some() && self.counts.spent.load(Ordering::Relaxed) > 0
    }

    /// Gives the token of a success back.
    pub(super) fn give_token(&self) {
        self.give_tokens(Tokens(1));
    }
}
