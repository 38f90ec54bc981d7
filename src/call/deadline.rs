use http::Extensions;
use tokio::time::Instant;

use super::{Attempt, budget_mark::ExtensionsKind, hop::Hop};

/// On the extensions of a first attempt: the end of the call's time, where that is not the limit
/// of the policy, which layers below know, or where the next hop is told. Retries have it in their
/// [`Attempt`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallDeadline {
    pub(crate) at: Instant,
    pub(crate) hop: Hop,
}

impl CallDeadline {
    /// Returns the deadline that a retry loop above has set for a request.
    #[inline]
    pub(crate) fn of(extensions: &Extensions) -> Option<Instant> {
        match ExtensionsKind::of(extensions) {
            ExtensionsKind::Empty | ExtensionsKind::BudgetMarkOnly => None,
            ExtensionsKind::Other => extensions
                .get::<Attempt>()
                .and_then(|attempt| attempt.deadline)
                .or_else(|| extensions.get::<Self>().map(|deadline| deadline.at)),
        }
    }

    /// Returns whether a call has less time than its policy gives it.
    #[inline(always)]
    pub(crate) fn is_cut(extensions: &Extensions) -> bool {
        match ExtensionsKind::of(extensions) {
            ExtensionsKind::Empty | ExtensionsKind::BudgetMarkOnly => false,
            ExtensionsKind::Other => match extensions.get::<Attempt>() {
                Some(attempt) => attempt.hop.is_cut,
                None => extensions.get::<Self>().is_some_and(|it| it.hop.is_cut),
            },
        }
    }
}
