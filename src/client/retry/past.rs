use std::time::Duration;

use crate::call::attempt::Wants;
use crate::{
    call::{Cause, Effect},
    dependency::Charge,
    error::BoxError,
};

/// What a call remembers of attempts that failed.
pub(super) struct Past<S, Res> {
    /// The service that retries call, once there is one.
    pub(super) service: Option<S>,
    /// Attempts that went out.
    pub(super) attempts: u32,
    pub(super) retries: u32,
    /// The last failure of a sort that is retried a limited number of times, and how often it was.
    pub(super) limited: (Cause, u32),
    /// A retry was made for new credentials.
    pub(super) refreshed: bool,
    /// What the next attempt needs that the last did not have.
    pub(super) wants: Wants,
    pub(super) previous_wait: Duration,
    /// The next retry, granted by the budget but not sent yet.
    pub(super) charge: Option<Charge>,
    /// What the last attempt failed of.
    pub(super) last_cause: Cause,
    /// The last real result, for when the next attempt brings none.
    pub(super) last: Option<Result<Res, BoxError>>,
    /// What that attempt may have brought about, and those before it.
    pub(super) last_effect: Effect,
    pub(super) before_last: Effect,
}

impl<S, Res> Past<S, Res> {
    /// How often this sort of failure was retried.
    pub(super) fn repeats_of(&self, cause: Cause) -> u32 {
        let (last, times) = self.limited;
        if last == cause { times } else { 0 }
    }

    /// What all attempts may have brought about that were kept so far.
    pub(super) fn effect(&self) -> Effect {
        self.before_last.max(self.last_effect)
    }
}

impl<S, Res> Default for Past<S, Res> {
    fn default() -> Self {
        Self {
            service: None,
            attempts: 1,
            retries: 0,
            limited: (Cause::Success, 0),
            refreshed: false,
            wants: Wants::default(),
            previous_wait: Duration::ZERO,
            charge: None,
            last_cause: Cause::Timeout,
            last: None,
            last_effect: Effect::None,
            before_last: Effect::None,
        }
    }
}
