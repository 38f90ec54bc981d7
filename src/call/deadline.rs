use http::Extensions;
use tokio::time::Instant;

use super::{Attempt, budget_mark::ExtensionsKind};

/// On the extensions of a first attempt: the end of the call's time, where that is not the limit
/// of the policy, which layers below know. Retries have it in their [`Attempt`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallDeadline(pub(crate) Instant);

impl CallDeadline {
    /// Returns the deadline that a retry loop above has set for a request.
    #[inline]
    pub(crate) fn of(extensions: &Extensions) -> Option<Instant> {
        match ExtensionsKind::of(extensions) {
            ExtensionsKind::Empty | ExtensionsKind::BudgetMarkOnly => None,
            ExtensionsKind::Other => extensions
                .get::<Attempt>()
                .and_then(|attempt| attempt.deadline)
                .or_else(|| extensions.get::<Self>().map(|deadline| deadline.0)),
        }
    }
}
