use std::{sync::Arc, time::Duration};

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

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused for so much longer.
    Open(Duration),
    /// One call is out to see whether the dependency is back; all others are refused.
    Probing,
}

/// Stops calls to a dependency that fails, and sends one at a time to see whether it is back.
///
/// While it is closed, a call costs one atomic load before, and a load and an add after.
/// Everything else happens under a lock. Each opening and each probe begins a new generation, and
/// a result counts only in the generation that its call was admitted in. Breakers of several
/// policies may share where they stand: each moves it by its own limits.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    /// How long a probe may be out before the next one is.
    longest_probe: u64,
    stand: Arc<Stand>,
}

/// Where a breaker stands.
#[derive(Debug)]
struct Stand {
    /// The generation above, the state in the lowest two bits.
    word: AtomicU64,
    /// Calls that came back with a success or a failure.
    calls: AtomicU64,
    /// Failures since the last success.
    streak: AtomicU32,
    /// The latest slot of the window that has begun.
    latest: AtomicU64,
    /// How long a slot of the window is. All slots are as long: with this they begin anew.
    width: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// When the cooldown ends, or when a probe has been out for too long.
    until: u64,
    /// Openings since the dependency was last well.
    openings: u32,
    slots: [Slot; SLOTS as usize],
}

/// Failures in a part of the window. Successes are not counted by slot: what the counter of
/// calls stood at when the slot began is enough.
#[derive(Debug, Default, Clone, Copy)]
struct Slot {
    number: u64,
    calls_before: u64,
    failures: u64,
}

/// Leave to make one call, with the generation it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    fn is_probe(self) -> bool {
        state(self.0) == PROBING
    }
}

impl Breaker {
    /// A closed breaker, whose probes may take as long as `longest_probe`.
    pub(crate) fn new(policy: BreakerPolicy, longest_probe: Duration) -> Self {
        let stand = Stand {
            word: AtomicU64::new(CLOSED),
            calls: AtomicU64::new(0),
            streak: AtomicU32::new(0),
            latest: AtomicU64::new(0),
            width: AtomicU64::new(width(policy.window)),
            inner: Mutex::new(Inner::default()),
        };
        Self {
            policy,
            longest_probe: nanos(longest_probe),
            stand: Arc::new(stand),
        }
    }

    /// Another policy for a breaker that stands where this one does. What was counted in a window
    /// of another length is forgotten; failures in a row, and a cooldown that has begun, are not.
    pub(crate) fn governed(&self, policy: BreakerPolicy, longest_probe: Duration) -> Self {
        let stand = &self.stand;
        let mut inner = lock(&stand.inner);
        let width = width(policy.window);
        if stand.width.load(Ordering::Relaxed) != width {
            stand.width.store(width, Ordering::Relaxed);
            stand.latest.store(0, Ordering::Relaxed);
            inner.slots = Default::default();
        }
        Self {
            policy,
            longest_probe: nanos(longest_probe),
            stand: Arc::clone(stand),
        }
    }

    /// What admitting reads first.
    pub(super) fn word(&self) -> u64 {
        self.stand.word.load(Ordering::Relaxed) ^ self.stand.latest.load(Ordering::Relaxed)
    }

    /// Lets a call through, or says how much longer none will be; `None` while a probe is out.
    pub(crate) fn admit(&self, now: impl FnOnce() -> u64) -> Result<Ticket, Option<Duration>> {
        let word = self.stand.word.load(Ordering::Acquire);
        if state(word) == CLOSED {
            return Ok(Ticket(word));
        }
        let mut inner = lock(&self.stand.inner);
        let word = self.stand.word.load(Ordering::Acquire);
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

    /// Takes in how an admitted call ended. Returns whether the breaker opened or closed by it.
    ///
    /// `seen_at` is a time during the call, if the clock was read: enough for a success, which
    /// reads no clock of its own.
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
                    if self.stand.word.load(Ordering::Acquire) == ticket.0 {
                        let calls_before = self.stand.calls.fetch_add(1, Ordering::Relaxed);
                        if self.stand.streak.load(Ordering::Relaxed) != 0 {
                            self.stand.streak.store(0, Ordering::Relaxed);
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
        let mut inner = lock(&self.stand.inner);
        let word = self.stand.word.load(Ordering::Acquire);
        if word != ticket.0 {
            return None;
        }
        match health {
            // Only a probe gets here with anything but a failure.
            Health::Success => {
                *inner = Inner::default();
                // The window begins anew, in the middle of a slot perhaps.
                self.stand.latest.store(0, Ordering::Relaxed);
                self.stand.streak.store(0, Ordering::Relaxed);
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
                    .stand
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

    /// The retry budget ran dry: opens the breaker if the policy says so.
    pub(crate) fn budget_exhausted(&self, now: u64, uniform: f64) -> Option<BreakerState> {
        let mut inner = lock(&self.stand.inner);
        let word = self.stand.word.load(Ordering::Acquire);
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

    /// Whether a call made at `at` is sure to be refused.
    pub(crate) fn refuses_at(&self, at: u64) -> bool {
        if state(self.stand.word.load(Ordering::Acquire)) == CLOSED {
            return false;
        }
        let inner = lock(&self.stand.inner);
        state(self.stand.word.load(Ordering::Acquire)) == OPEN && inner.until > at
    }

    pub(crate) fn state(&self, now: u64) -> BreakerState {
        let inner = lock(&self.stand.inner);
        match state(self.stand.word.load(Ordering::Acquire)) {
            CLOSED => BreakerState::Closed,
            OPEN => BreakerState::Open(Duration::from_nanos(inner.until.saturating_sub(now))),
            _ => BreakerState::Probing,
        }
    }

    /// Whether a breaker that nobody used for long would do as well new: nothing failed lately, and
    /// there is nothing to wait for. There never is while it is closed.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let inner = lock(&self.stand.inner);
        inner.until <= now && self.window(&inner, now).0 == 0
    }

    fn enter(&self, word: u64, state: u64) -> u64 {
        let next = ((word >> 2) + 1) << 2 | state;
        self.stand.word.store(next, Ordering::Release);
        next
    }

    /// Each opening in a row lasts twice as long as the one before, less up to a fifth at random:
    /// always longer, never at the same time as everybody else's.
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
        if self.stand.latest.load(Ordering::Relaxed) < self.slot(at) {
            let mut inner = lock(&self.stand.inner);
            // Slots may just have got another length.
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
            self.stand.latest.store(number, Ordering::Relaxed);
        }
    }

    fn count_failure(&self, inner: &mut Inner, now: u64) -> (u64, u64) {
        let calls_before = self.stand.calls.fetch_add(1, Ordering::Relaxed);
        let number = self.slot(now);
        self.begin(inner, number, calls_before);
        let slot = &mut inner.slots[(number % SLOTS) as usize];
        slot.failures += u64::from(slot.number == number);
        self.window(inner, now)
    }

    /// Failures and calls in the window. It begins with the first call in it whose time is known:
    /// that of every failure is, and of every success that was not there at once.
    fn window(&self, inner: &Inner, now: u64) -> (u64, u64) {
        let number = self.slot(now);
        let recent = || {
            inner
                .slots
                .iter()
                .filter(|slot| slot.number + SLOTS > number)
        };
        let failures = recent().map(|slot| slot.failures).sum();
        let calls = self.stand.calls.load(Ordering::Relaxed);
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
        now / self.stand.width.load(Ordering::Relaxed).max(1) + SLOTS
    }
}

/// The state in a word.
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
