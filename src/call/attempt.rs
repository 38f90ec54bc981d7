use http::{HeaderName, Request};
use tokio::time::Instant;

use super::{budget_mark::RegistryId, hop::Hop};

/// On a request's extensions: it was sent before, and this is another attempt.
///
/// [`RetryLayer`](crate::client::retry::RetryLayer) sets it on every retry. A retry loop of another make can set
/// it too, so that a [`RetryBudgetLayer`](crate::client::retry_budget::RetryBudgetLayer) below recognises the repeat:
///
/// ```
/// use tower_reprise::call::Attempt;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Attempt::retry(1));
/// assert_eq!(request.extensions().get::<Attempt>().map(|a| a.number()), Some(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    previous: u32,
    /// The registry whose budget was charged.
    pub(crate) charged: Option<RegistryId>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) hop: Hop,
    needs: NextAttempt,
    hedge: bool,
}

/// The needs of an attempt that the one before did not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NextAttempt {
    pub(crate) credentials: bool,
    /// All attempts after it need one too, since the original id is known to be refused.
    pub(crate) fresh_id: bool,
}

impl Attempt {
    /// A retry after so many attempts.
    #[must_use]
    pub fn retry(previous: u32) -> Self {
        Self {
            previous,
            charged: None,
            deadline: None,
            hop: Hop::default(),
            needs: NextAttempt::default(),
            hedge: false,
        }
    }

    /// A retry by another loop, which the budget was charged for.
    pub(crate) fn charged_elsewhere(previous: u32, by: RegistryId) -> Self {
        Self {
            charged: Some(by),
            ..Self::retry(previous)
        }
    }

    /// The same, of a call that has until then. Its number counts the attempts of its caller already.
    pub(crate) fn within(self, deadline: Instant, hop: Hop) -> Self {
        Self {
            deadline: Some(deadline),
            hop: Hop { previous: 0, ..hop },
            ..self
        }
    }

    /// A retry which the budget was charged for.
    pub(crate) fn charged(
        previous: u32,
        by: RegistryId,
        deadline: Instant,
        hop: Hop,
        needs: NextAttempt,
    ) -> Self {
        Self {
            previous,
            charged: Some(by),
            deadline: Some(deadline),
            hop,
            needs,
            hedge: false,
        }
    }

    /// A hedge, which the budget is charged for when it goes out, of a first attempt or of a retry.
    pub(crate) fn of_hedge(of: Option<Self>, by: RegistryId, deadline: Instant, hop: Hop) -> Self {
        let previous = of.map_or(0, |of| of.previous);
        let needs = NextAttempt {
            credentials: false,
            fresh_id: of.is_some_and(|of| of.needs.fresh_id),
        };
        Self {
            hedge: true,
            ..Self::charged(previous.saturating_add(1), by, deadline, hop, needs)
        }
    }

    /// Returns whether it was sent while the one before was still out, by a
    /// [`HedgeLayer`](crate::HedgeLayer).
    #[must_use]
    pub fn is_hedge(&self) -> bool {
        self.hedge
    }

    /// Attempts before this one.
    #[must_use]
    pub fn previous(&self) -> u32 {
        self.previous
    }

    /// Returns whether the one before was refused for its credentials.
    #[must_use]
    pub fn wants_credentials(&self) -> bool {
        self.needs.credentials
    }

    /// Returns whether one before was refused for its request id. The header has a fresh one already;
    /// an id inside the body is for a [`PrepareAttempt`](crate::client::retry::PrepareAttempt) hook to renew.
    #[must_use]
    pub fn wants_fresh_id(&self) -> bool {
        self.needs.fresh_id
    }

    /// Marks a request as this attempt, with the time that is left for it.
    pub(crate) fn mark<B>(
        self,
        request: &mut Request<B>,
        send_attempt_count: bool,
        deadline_header: &HeaderName,
    ) {
        let Self { hop, .. } = self;
        hop.write_attempt(request, self.previous, send_attempt_count);
        hop.write_deadline(request, self.deadline, deadline_header);
        request.extensions_mut().insert(self);
    }

    /// This attempt's number; the first is 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.previous.saturating_add(1)
    }
}
