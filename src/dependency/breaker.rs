use std::{sync::Arc, time::Duration};

use super::shard::CacheLine;
use crate::{
    backoff::below,
    call::Health,
    policy::{BreakerPolicy, Exhaustion},
    sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock},
};

const SLOTS: u64 = 10;

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const PROBING: u64 = 2;
const STATE: u64 = 0b11;

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused for this much longer.
    Open(Duration),
    /// One call is out to see whether the dependency is back; all others are refused.
    Probing,
}

/// A circuit breaker: stops calls to a dependency that fails, and sends one probe at a time to see
/// whether it is back.
///
/// While it is closed, a call costs one atomic load before, and a load and an add after.
/// Everything else happens under a lock. Breakers of several policies may share their state; each
/// changes it by its own limits.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    /// The time after which an unanswered probe makes way for the next one.
    longest_probe: u64,
    shared: Arc<SharedBreaker>,
}

/// The state that the breakers of a dependency share.
///
/// # Invariants
///
/// - `word` changes only with `inner` locked, and each change begins a generation. A result counts
///   only while `word` is what its ticket says, so that results of calls from before a change
///   decide nothing.
/// - `word` is stored with Release, after the window was emptied, and loaded with Acquire: a success
///   of a new generation does not see the `latest` of the one before. If it did, it would not begin
///   its slot, and failures would be held against calls from before the outage.
/// - A success takes no lock, so the breaker may open between its look at `word` and its count. Then
///   `calls`, of which windows take differences, is one more than it should be, and `streak` loses
///   failures that came at the same time as a success. Neither keeps a breaker from opening at the
///   next failure, or from closing.
/// - `width` and `latest` change only with `inner` locked, and are read again under the lock before
///   a slot begins, so that the window never has slots of two widths.
/// - `calls`, which every success writes, has a cache line of its own. Beside `word`, which every
///   call reads, each success would make the calls of all other cores wait for the line.
#[derive(Debug)]
struct SharedBreaker {
    /// The generation above, the state in the lowest two bits.
    word: AtomicU64,
    /// Failures since the last success.
    streak: AtomicU32,
    /// The newest slot of the window.
    latest: AtomicU64,
    /// The length of a slot of the window.
    width: AtomicU64,
    /// Calls that ended in a success or a failure.
    calls: CacheLine<AtomicU64>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The end of the cooldown, or the time after which a probe is overdue.
    until: u64,
    /// Openings since the breaker was last closed.
    openings: u32,
    slots: [Slot; SLOTS as usize],
}

/// Failures in a part of the window. Calls are not counted by slot: the value of `calls` when the
/// slot began is enough.
#[derive(Debug, Default, Clone, Copy)]
struct Slot {
    number: u64,
    calls_before: u64,
    failures: u64,
}

/// The right to make one call, with the generation that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    fn is_probe(self) -> bool {
        state(self.0) == PROBING
    }
}

impl Breaker {
    /// Makes a closed breaker whose probes may take as long as `longest_probe`.
    pub(crate) fn new(policy: BreakerPolicy, longest_probe: Duration) -> Self {
        let shared = SharedBreaker {
            word: AtomicU64::new(CLOSED),
            streak: AtomicU32::new(0),
            latest: AtomicU64::new(0),
            width: AtomicU64::new(width(policy.window)),
            calls: CacheLine(AtomicU64::new(0)),
            inner: Mutex::new(Inner::default()),
        };
        Self {
            policy,
            longest_probe: nanos(longest_probe),
            shared: Arc::new(shared),
        }
    }

    /// Returns a breaker with another policy and the same state. A window of another length begins
    /// anew; failures in a row, and a cooldown that has begun, stay.
    pub(crate) fn with_policy(&self, policy: BreakerPolicy, longest_probe: Duration) -> Self {
        let shared = &self.shared;
        let mut inner = lock(&shared.inner);
        let width = width(policy.window);
        if shared.width.load(Ordering::Relaxed) != width {
            shared.width.store(width, Ordering::Relaxed);
            shared.latest.store(0, Ordering::Relaxed);
            inner.slots = Default::default();
        }
        Self {
            policy,
            longest_probe: nanos(longest_probe),
            shared: Arc::clone(shared),
        }
    }

    /// Reads the words that admitting and reporting read first.
    pub(super) fn word(&self) -> u64 {
        self.shared.word.load(Ordering::Relaxed) ^ self.shared.latest.load(Ordering::Relaxed)
    }

    /// Admits a call, or returns how much longer calls are refused; `None` while a probe is out.
    pub(crate) fn admit(&self, now: impl FnOnce() -> u64) -> Result<Ticket, Option<Duration>> {
        let word = self.shared.word.load(Ordering::Acquire);
        if state(word) == CLOSED {
            return Ok(Ticket(word));
        }
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        match state(word) {
            CLOSED => Ok(Ticket(word)),
            state => {
                let now = now();
                match inner.until.checked_sub(now) {
                    Some(left) if left > 0 => {
                        Err((state == OPEN).then(|| Duration::from_nanos(left)))
                    }
                    // The cooldown is over, or the last probe is overdue and counts no more.
                    _ => {
                        inner.until = now.saturating_add(self.longest_probe);
                        Ok(Ticket(self.enter(word, PROBING)))
                    }
                }
            }
        }
    }

    /// Records the result of an admitted call. Returns the new state if the breaker opened or
    /// closed by it.
    ///
    /// `seen_at` is a time during the call, if the clock was read: a success reads none itself.
    pub(crate) fn report(
        &self,
        ticket: Ticket,
        health: Health,
        seen_at: Option<u64>,
        now: impl FnOnce() -> u64,
        uniform: impl FnOnce() -> f64,
    ) -> Option<BreakerState> {
        if !ticket.is_probe() {
            match health {
                Health::Success => {
                    if self.shared.word.load(Ordering::Acquire) == ticket.0 {
                        let calls_before = self.shared.calls.0.fetch_add(1, Ordering::Relaxed);
                        if self.shared.streak.load(Ordering::Relaxed) != 0 {
                            self.shared.streak.store(0, Ordering::Relaxed);
                        }
                        if let Some(at) = seen_at {
                            self.turn(at, calls_before);
                        }
                    }
                    return None;
                }
                Health::Neutral => return None,
                Health::Failure => {}
            }
        }
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        if word != ticket.0 {
            return None;
        }
        match health {
            // Only a probe gets here with anything but a failure.
            Health::Success => {
                *inner = Inner::default();
                // `latest` too, since the window may begin anew in the middle of a slot.
                self.shared.latest.store(0, Ordering::Relaxed);
                self.shared.streak.store(0, Ordering::Relaxed);
                self.enter(word, CLOSED);
                Some(BreakerState::Closed)
            }
            // The next call is the next probe.
            Health::Neutral => {
                inner.until = 0;
                self.enter(word, OPEN);
                None
            }
            Health::Failure if ticket.is_probe() => {
                Some(self.open(&mut inner, word, now(), uniform()))
            }
            Health::Failure => {
                let now = now();
                let streak = self
                    .shared
                    .streak
                    .fetch_add(1, Ordering::Relaxed)
                    .saturating_add(1);
                let (failures, calls) = self.count_failure(&mut inner, now);
                let often = calls >= u64::from(self.policy.minimum_calls)
                    && self.is_failing(failures, calls);
                (often || streak >= self.policy.consecutive_failures)
                    .then(|| self.open(&mut inner, word, now, uniform()))
            }
        }
    }

    /// Opens the breaker because the retry budget is exhausted, if the policy says so.
    pub(crate) fn budget_exhausted(&self, now: u64, uniform: f64) -> Option<BreakerState> {
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        if state(word) != CLOSED {
            return None;
        }
        let opens = match self.policy.on_budget_exhausted {
            Exhaustion::Never => false,
            Exhaustion::Open => true,
            Exhaustion::OpenIfFailing => {
                let (failures, calls) = self.window(&inner, now);
                failures >= u64::from(self.policy.consecutive_failures)
                    && self.is_failing(failures, calls)
            }
        };
        opens.then(|| self.open(&mut inner, word, now, uniform))
    }

    /// Returns whether a call made at `at` is sure to be refused.
    pub(crate) fn refuses_at(&self, at: u64) -> bool {
        if state(self.shared.word.load(Ordering::Acquire)) == CLOSED {
            return false;
        }
        let inner = lock(&self.shared.inner);
        state(self.shared.word.load(Ordering::Acquire)) == OPEN && inner.until > at
    }

    pub(crate) fn state(&self, now: u64) -> BreakerState {
        let inner = lock(&self.shared.inner);
        match state(self.shared.word.load(Ordering::Acquire)) {
            CLOSED => BreakerState::Closed,
            OPEN => BreakerState::Open(Duration::from_nanos(inner.until.saturating_sub(now))),
            _ => BreakerState::Probing,
        }
    }

    /// Returns whether a new breaker would do as well: nothing failed in the window, and no
    /// cooldown or probe is under way.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let inner = lock(&self.shared.inner);
        inner.until <= now && self.window(&inner, now).0 == 0
    }

    /// Begins a generation in this state. Only with `inner` locked.
    fn enter(&self, word: u64, state: u64) -> u64 {
        let next = ((word >> 2) + 1) << 2 | state;
        self.shared.word.store(next, Ordering::Release);
        next
    }

    /// Opens for a cooldown that doubles with each opening in a row, less up to a fifth at random,
    /// so that the probes of many clients do not arrive together.
    fn open(&self, inner: &mut Inner, word: u64, now: u64, uniform: f64) -> BreakerState {
        let doubled = 1_u32.checked_shl(inner.openings).unwrap_or(u32::MAX);
        let longest = self
            .policy
            .cooldown
            .saturating_mul(doubled)
            .min(self.policy.max_cooldown);
        let cooldown = longest - below(longest / 5, uniform);
        inner.openings = inner.openings.saturating_add(1);
        inner.until = now.saturating_add(nanos(cooldown));
        self.enter(word, OPEN);
        BreakerState::Open(cooldown)
    }

    /// Begins a slot of the window with the first call seen in it.
    fn turn(&self, at: u64, calls_before: u64) {
        if self.shared.latest.load(Ordering::Relaxed) < self.slot(at) {
            let mut inner = lock(&self.shared.inner);
            // The slot is computed again: `with_policy` may just have changed the width.
            self.begin(&mut inner, self.slot(at), calls_before);
        }
    }

    fn begin(&self, inner: &mut Inner, number: u64, calls_before: u64) {
        let slot = &mut inner.slots[(number % SLOTS) as usize];
        if slot.number < number {
            *slot = Slot {
                number,
                calls_before,
                failures: 0,
            };
            self.shared.latest.store(number, Ordering::Relaxed);
        }
    }

    fn count_failure(&self, inner: &mut Inner, now: u64) -> (u64, u64) {
        let calls_before = self.shared.calls.0.fetch_add(1, Ordering::Relaxed);
        let number = self.slot(now);
        self.begin(inner, number, calls_before);
        let slot = &mut inner.slots[(number % SLOTS) as usize];
        slot.failures += u64::from(slot.number == number);
        self.window(inner, now)
    }

    /// Returns the failures and calls in the window. It begins with the first call in it whose time
    /// is known, which it is of every failure, and of every success that was pending once.
    fn window(&self, inner: &Inner, now: u64) -> (u64, u64) {
        let number = self.slot(now);
        let recent = || {
            inner
                .slots
                .iter()
                .filter(|slot| slot.number + SLOTS > number)
        };
        let failures = recent().map(|slot| slot.failures).sum();
        let calls = self.shared.calls.0.load(Ordering::Relaxed);
        let before = recent()
            .map(|slot| slot.calls_before)
            .min()
            .unwrap_or(calls);
        (failures, calls.saturating_sub(before))
    }

    fn is_failing(&self, failures: u64, calls: u64) -> bool {
        failures as f64 >= self.policy.failure_rate * calls as f64
    }

    fn slot(&self, now: u64) -> u64 {
        now / self.shared.width.load(Ordering::Relaxed).max(1) + SLOTS
    }
}

/// Returns the state in a word.
fn state(word: u64) -> u64 {
    word & STATE
}

fn width(window: Duration) -> u64 {
    nanos(window) / SLOTS
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(reprise_loom)]
pub(crate) mod model;
#[cfg(all(test, not(reprise_loom)))]
#[allow(clippy::expect_used, clippy::panic)]
mod tests;
