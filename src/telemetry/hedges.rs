//! Logs and metrics of hedges.

use std::time::Duration;

use super::Target;
#[cfg(feature = "metrics")]
use super::count;

/// The result of a hedge that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hedged {
    /// Its answer was the call's.
    Won,
    /// The first attempt answered before it, and it was dropped.
    Lost,
    /// It failed.
    Failed,
    /// The caller left, or ran out of time.
    Cancelled,
}

/// The reason why a call that was late got no hedge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unhedged {
    /// It is not safe to repeat.
    NotIdempotent,
    /// Retries are off for it.
    Off,
    /// Its request can't be sent once more.
    NotReplayable,
    /// Many attempts are late.
    Slow,
    /// The breaker is not closed.
    Breaker,
    /// There are signs of overload.
    Throttle,
    /// The dependency asked to be left alone.
    RetryAfter,
    /// Retries and hedges have used up the budget, or the half of it that hedges may use.
    Budget,
    /// The call is out of time.
    Deadline,
    /// The service failed to become ready, or was not before the first attempt ended.
    NotReady,
    /// A layer below refused it.
    Refused,
}

impl Hedged {
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    fn as_str(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Unhedged {
    #[cfg_attr(not(any(feature = "metrics", feature = "tracing")), allow(dead_code))]
    fn as_str(self) -> &'static str {
        match self {
            Self::NotIdempotent => "not_idempotent",
            Self::Off => "off",
            Self::NotReplayable => "not_replayable",
            Self::Slow => "slow",
            Self::Breaker => "breaker",
            Self::Throttle => "throttle",
            Self::RetryAfter => "retry_after",
            Self::Budget => "budget",
            Self::Deadline => "deadline",
            Self::NotReady => "not_ready",
            Self::Refused => "refused",
        }
    }
}

/// Records that a hedge goes out.
pub(crate) fn hedge_sent(target: Target<'_>, after: Duration) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        target: "tower_reprise",
        dependency = target.dependency,
        after_ms = after.as_secs_f64() * 1000.0,
        "hedge sent"
    );
}

/// Records the end of a hedge.
pub(crate) fn hedge_ended(target: Target<'_>, result: Hedged) {
    #[cfg(feature = "metrics")]
    count::of(target, "hedges_total", Some(("result", result.as_str())));
}

/// Records that a late call got no hedge.
pub(crate) fn not_hedged(target: Target<'_>, reason: Unhedged) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        target: "tower_reprise",
        dependency = target.dependency,
        reason = reason.as_str(),
        "no hedge"
    );
    #[cfg(feature = "metrics")]
    count::of(
        target,
        "hedges_suppressed_total",
        Some(("reason", reason.as_str())),
    );
}
