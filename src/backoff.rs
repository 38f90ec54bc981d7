//! The wait before a retry, where the server gives no guidance.
//!
//! Clients that fail together retry together, unless each waits for a random time. *Full jitter*
//! draws the whole wait below an exponentially growing bound, which makes the least work for a
//! service in trouble; *decorrelated* jitter grows from the last wait instead. There is no fixed
//! interval, and no jitter that keeps half of the wait: both bring the herd back.
//!
//! A [`Backoff`] is a pure function of the retry's number, the last wait and one uniform draw, so
//! that it can be tested without a clock and without a generator:
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::backoff::{Backoff, FullJitter};
//!
//! let backoff = FullJitter::default();
//! let half = backoff.delay(3, Duration::ZERO, 0.5);
//! assert_eq!(half, Duration::from_secs(4)); // half of 1 s · 2³
//! assert!(backoff.delay(1000, Duration::ZERO, 0.999) < Duration::from_secs(30));
//! ```
//!
//! # The standard mode of the AWS SDKs
//!
//! The retry mode that the AWS SDKs share since 2026 waits 50 ms at first after a transient failure and
//! a second after throttling. As a policy:
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{Policy, policy::RetryQuota};
//!
//! let policy = Policy::http()
//!     .retry_quota(RetryQuota::default())
//!     .max_retries(2)
//!     .base(Duration::from_millis(50))
//!     .throttled_base(Duration::from_secs(1))
//!     .cap(Duration::from_secs(20))
//!     .build()?;
//! assert!(policy.audit().is_compliant());
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! | there | here |
//! | --- | --- |
//! | 3 attempts, 4 for DynamoDB | passes: `max_retries` of 2 or 3 (R-2: 1 to 5) |
//! | full jitter below `min(20 s, base · 2ⁿ)` | passes: R-1 |
//! | base of 50 ms for transient failures, 25 ms for DynamoDB | passes: [`base`](crate::policy::PolicyBuilder::base) |
//! | base of 1 s for throttling | passes: [`throttled_base`](crate::policy::PolicyBuilder::throttled_base) (B-5) |
//! | 429 is throttling | passes |
//! | 500, 502, 503, 504, I/O errors are transient | passes; a 503 that says when to come back is throttling; DNS failures get two attempts (C-3) |
//! | `ThrottlingException`, `SlowDown` and other codes are throttling, at any status | passes: [`Codes::throttled`](crate::classify::Codes::throttled) |
//! | `x-amz-retry-after`, at most 5 s beyond the backoff | passes as a floor; the bound is refused by R-5: the delay is kept, or the call fails at once |
//! | every operation is retried | refused by R-6: POST takes a key or a declaration (C-5) |
//! | 500 tokens, 14 for a transient retry, 5 for throttling | passes beside the budget: [`retry_quota`](crate::policy::PolicyBuilder::retry_quota) (G-9) |
//! | a retry that succeeds gives its tokens back, any other success gives one | passes (G-9) |
//! | tokens are the only bound | refused by R-7: the budget of 20 % holds as well |
//! | an exhausted quota returns the error at once | passes (G-4) |
//! | a long poll waits before it returns that error | refused by G-4: no error is delayed; [`poll_after`](crate::RetryOutcome::poll_after) tells the poller how long to wait |
//! | before 2026: 5 tokens for a retry, 10 after a time-out | passes: [`RetryQuota`](crate::policy::RetryQuota) |

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// The default base of both strategies.
pub const DEFAULT_BASE: Duration = Duration::from_secs(1);
/// The default cap of both strategies.
pub const DEFAULT_CAP: Duration = Duration::from_secs(30);

/// Computes the wait before a retry.
///
/// A strategy of your own must spread its waits: [`Policy::audit`](crate::policy::Policy::audit) samples
/// it and reports waits that are constant or that keep a fixed part.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a backoff strategy",
    note = "use `FullJitter` or `Decorrelated`, or implement `Backoff`"
)]
pub trait Backoff: fmt::Debug + Send + Sync + 'static {
    /// Returns the wait before retry number `retry` (0 is the first), after a wait of `previous`
    /// (zero before the first), given `uniform`, drawn anew from [0, 1) for every wait.
    fn delay(&self, retry: u32, previous: Duration, uniform: f64) -> Duration;
}

/// Uniform in `[0, min(cap, base · 2ⁿ))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullJitter {
    /// The bound before the first retry.
    pub base: Duration,
    /// The bound that is never exceeded.
    pub cap: Duration,
}

impl Default for FullJitter {
    fn default() -> Self {
        Self {
            base: DEFAULT_BASE,
            cap: DEFAULT_CAP,
        }
    }
}

impl Backoff for FullJitter {
    fn delay(&self, retry: u32, _previous: Duration, uniform: f64) -> Duration {
        let factor = 1_u32.checked_shl(retry).unwrap_or(u32::MAX);
        below(self.base.saturating_mul(factor).min(self.cap), uniform)
    }
}

/// The first wait is uniform in `[base, 3 · base]`, each later one in `[base, 3 · previous]`,
/// never more than `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decorrelated {
    /// The shortest wait.
    pub base: Duration,
    /// The longest wait.
    pub cap: Duration,
}

impl Default for Decorrelated {
    fn default() -> Self {
        Self {
            base: DEFAULT_BASE,
            cap: DEFAULT_CAP,
        }
    }
}

impl Backoff for Decorrelated {
    fn delay(&self, _retry: u32, previous: Duration, uniform: f64) -> Duration {
        let top = previous.max(self.base).saturating_mul(3);
        let span = top.saturating_sub(self.base);
        self.base.saturating_add(below(span, uniform)).min(self.cap)
    }
}

/// Returns a point of `[0, bound)`, in whole nanoseconds.
pub(crate) fn below(bound: Duration, uniform: f64) -> Duration {
    let point = Duration::try_from_secs_f64(bound.as_secs_f64() * uniform.clamp(0.0, 1.0));
    let last = bound.saturating_sub(Duration::from_nanos(1));
    point.unwrap_or(last).min(last)
}

/// The source of uniform draws: each thread's own generator, or one seeded for a test.
#[derive(Debug)]
pub(crate) struct Jitter(Option<Mutex<StdRng>>);

impl Jitter {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self(seed.map(|seed| Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub(crate) fn draw(&self) -> f64 {
        match &self.0 {
            None => rand::random(),
            Some(seeded) => seeded
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .random(),
        }
    }
}

/// Returns the random part of a wait, so that callers do not wake together: up to a tenth of the
/// wait asked for, and never more than `limit`.
pub(crate) fn spread(asked: Duration, limit: Duration, uniform: f64) -> Duration {
    below((asked / 10).min(limit), uniform)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b_4_draws_differ_and_are_below_one_and_a_seed_repeats_them() {
        let draws = |jitter: Jitter| -> Vec<f64> { (0..100).map(|_| jitter.draw()).collect() };
        let seeded = draws(Jitter::new(Some(7)));
        assert_eq!(seeded, draws(Jitter::new(Some(7))));
        assert_ne!(seeded, draws(Jitter::new(Some(8))));
        for drawn in [seeded, draws(Jitter::new(None))] {
            assert!(drawn.iter().all(|draw| (0.0..1.0).contains(draw)));
            assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn ra_9_callers_are_spread_by_a_tenth_of_what_was_asked_up_to_a_limit() {
        let limit = Duration::from_secs(1);
        for (asked, half) in [(0, 0), (2000, 100), (10_000, 500), (60_000, 500)] {
            let spread = spread(Duration::from_millis(asked), limit, 0.5);
            assert_eq!(spread, Duration::from_millis(half), "{asked} ms");
        }
    }
}
