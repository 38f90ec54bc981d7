//! Facts about one call that layers pass to each other.
//!
//! Layers never know each other's types. Their messages to each other travel with the call:
//! [`Attempt`], [`CallerContext`] and [`RetryOverride`] in the extensions of a request,
//! [`RetryOutcome`] in those of a response or in the chain of an error, and a [`Verdict`] from the layer that classified a
//! result to those that act on it.

pub(crate) mod attempt;
pub(crate) mod attempt_headers;
pub(crate) mod budget_mark;
pub(crate) mod caller;
mod deadline;
mod effect;
mod guidance;
pub(crate) mod hedged;
pub(crate) mod hop;
pub(crate) mod key;
pub(crate) mod oneshot;
mod outcome;
mod overrides;
mod readiness;
#[cfg(feature = "server")]
mod replay_attempt;
mod verdict;

#[cfg(any(feature = "server", feature = "forrst"))]
pub(crate) use self::guidance::KeptReply;
#[cfg(feature = "server")]
pub(crate) use self::readiness::take_ready;
#[cfg(feature = "server")]
pub(crate) use self::replay_attempt::ReplayAttempt;
#[cfg(feature = "delivery")]
pub(crate) use self::replay_attempt::{AttemptedAgain, ReplayKey, Suspended};
pub use self::{
    attempt::Attempt,
    caller::CallerContext,
    guidance::Guidance,
    key::IdempotencyKey,
    outcome::{ErrorRecord, FailedAttempts, PrepareError, RetryError, RetryOutcome, StopReason},
    overrides::RetryOverride,
    verdict::{Cause, Health, Retryable, Verdict},
};
pub(crate) use self::{deadline::CallDeadline, effect::Effect, readiness::release};
