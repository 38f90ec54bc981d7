//! The retry loop and the timeout that the stores across a network share.
//!
//! Every verb is safe to repeat, so a lost connection is retried within the verb's deadline.

use std::{future::Future, time::Duration};

use tokio::time::Instant;

use super::{StoreError, StoreErrorKind};
use crate::{
    backoff::{Backoff, FullJitter},
    error::ConfigError,
    sync::{AtomicU64, Ordering},
};

/// The default limit of a verb, retries included.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);
/// A PostgreSQL claim draws its token before it may have to wait for a lock; expired rows outlast
/// any such wait (`GRACE_MICROS`).
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

const RETRIES: u32 = 2;
const PAUSE: FullJitter = FullJitter {
    base: Duration::from_millis(50),
    cap: Duration::from_millis(500),
};

/// Returns the error of a transition that was sent and not responded to in time.
pub(super) fn no_response() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, "no response in time").in_doubt()
}

/// Runs `attempt` until it succeeds, fails with anything but [`StoreErrorKind::Unavailable`], or
/// the retries or the time run out. The error is in doubt if any attempt was.
pub(super) async fn with_retries<T, Fut>(
    timeout: Duration,
    mut attempt: impl FnMut(Instant) -> Fut,
) -> Result<T, StoreError>
where
    Fut: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + timeout;
    let mut in_doubt = false;
    let mut retry = 0;
    loop {
        let error = match attempt(deadline).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        in_doubt |= error.may_have_happened();
        let pause = PAUSE.delay(retry, Duration::ZERO, rand::random());
        if error.kind() != StoreErrorKind::Unavailable
            || retry == RETRIES
            || Instant::now() + pause >= deadline
        {
            return Err(error.in_doubt_if(in_doubt));
        }
        tokio::time::sleep(pause).await;
        retry += 1;
    }
}

/// Work that recurs while a store is in use, one task at a time.
pub(super) struct Recurring {
    started: Instant,
    every: Duration,
    /// In microseconds after `started`.
    due: AtomicU64,
}

impl Recurring {
    /// Returns work that is due at once, and then after each `every`.
    pub(super) fn new(every: Duration) -> Self {
        Self {
            started: Instant::now(),
            every,
            due: AtomicU64::new(0),
        }
    }

    /// Returns whether the caller has to do it now.
    pub(super) fn is_due(&self) -> bool {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let now = micros(self.started.elapsed());
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(micros(self.every));
        let (taken, relaxed) = (Ordering::Relaxed, Ordering::Relaxed);
        now >= due && self.due.compare_exchange(due, next, taken, relaxed).is_ok()
    }
}

pub(super) fn check_timeout(field: &'static str, timeout: Duration) -> Result<(), ConfigError> {
    if (SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&timeout) {
        return Ok(());
    }
    let allowed = format!("{SHORTEST_TIMEOUT:?} to {LONGEST_TIMEOUT:?}");
    let value = format!("{timeout:?}");
    Err(ConfigError::new(None, field, value, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn attempts(
        mut outcome: impl FnMut(u32) -> Result<u32, StoreError>,
    ) -> (u32, Result<u32, StoreError>) {
        let mut attempts = 0;
        let result = with_retries(TIMEOUT, |_| {
            attempts += 1;
            std::future::ready(outcome(attempts))
        })
        .await;
        (attempts, result)
    }

    fn lost() -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "connection lost")
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_is_tried_again_and_doubt_stays() {
        let (made, result) = attempts(|n| if n < 3 { Err(lost()) } else { Ok(n) }).await;
        assert_eq!((made, result.ok()), (3, Some(3)));

        let doubt_first = |n| Err(if n == 1 { lost().in_doubt() } else { lost() });
        let (made, result) = attempts(doubt_first).await;
        assert_eq!(made, 3);
        assert!(result.is_err_and(|error| error.may_have_happened()));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_else_is_tried_again() {
        for kind in [
            StoreErrorKind::Timeout,
            StoreErrorKind::PoolExhausted,
            StoreErrorKind::Full,
            StoreErrorKind::Other,
        ] {
            let (made, result) = attempts(|_| Err(StoreError::new(kind, "no"))).await;
            assert_eq!(made, 1);
            assert!(result.is_err_and(|error| !error.may_have_happened()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_recurs_is_done_once_at_a_time() {
        let work = Recurring::new(Duration::from_secs(10));
        assert_eq!([(); 3].map(|()| work.is_due()), [true, false, false]);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!work.is_due());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!([(); 3].map(|()| work.is_due()), [true, false, false]);
    }

    #[test]
    fn a_timeout_is_bounded() {
        assert!(check_timeout("redis.timeout", TIMEOUT).is_ok());
        let error = check_timeout("redis.timeout", Duration::from_secs(60)).unwrap_err();
        let message = "redis.timeout is 60s, allowed: 10ms to 30s";
        assert_eq!(error.to_string(), message);
        assert!(check_timeout("redis.timeout", Duration::ZERO).is_err());
    }
}
