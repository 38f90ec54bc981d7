mod by_hand;
mod probes;
mod ramp;
mod state;
mod waiting;

use std::{sync::Arc, time::Duration};

pub(super) use self::probes::CALLS_A_PROBE;
pub(crate) use self::state::{Arrival, Change, Denied, Report, Since};
pub use self::state::{BreakerReason, BreakerState};
use self::{
    probes::Probes,
    ramp::{Admitted, Ramp},
};
use super::{
    history::History,
    shard::CacheLine,
    window::{Counts, SLOTS, Window, WindowCounts, width},
};
use crate::{
    backoff::below,
    call::Health,
    policy::{BreakerPolicy, Exhaustion},
    sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock},
    telemetry::Unhedged,
};

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const RAMP: u64 = 2;
const STATE: u64 = 0b011;
/// A sign of overload is in the window, so that calls may be shed.
const OVERLOADED: u64 = 0b100;
const GENERATION: u32 = 3;

/// A success that was ready at once reads no clock but for each so many of them.
const UNTIMED: u64 = 64;
/// The slots of the window over which calls that the throttle kept back come again.
const SPREAD: u32 = 6;
/// The slots in which the dependency serves as many calls as the throttle lets wait. In the simulator
/// fewer are too few for a spike, and with more a long overload goes on in those that come again.
const WAITING: u64 = 2;

/// A circuit breaker and a throttle on one set of counts.
///
/// The breaker opens when nothing works. Then it lets single calls through, a few a second, until one
/// succeeds, and admits more and more calls after that. The throttle keeps a share of the calls from
/// a dependency that shows signs of overload.
///
/// While it is closed, a call costs one atomic load before, and a load and an add after. Everything
/// else happens under a lock. Breakers of several policies may share their state; each changes it by
/// its own limits.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    shared: Arc<SharedBreaker>,
}

/// The state that the breakers of a dependency share.
///
/// # Invariants
///
/// - `word` changes only with `inner` locked. Opening and closing begin a generation. A result
///   counts only in the generation of its ticket, so that results of calls from before a change
///   decide nothing.
/// - `word` is stored with Release, after the window was emptied, and loaded with Acquire: a success
///   of a new generation does not see the `latest` of the one before. If it did, it would not begin
///   its slot, and failures would be held against calls from before the outage.
/// - A success takes no lock, so the breaker may open between its look at `word` and its count. Then
///   `calls`, of which windows and runs of failures take differences, is one more than it should be.
///   This may end a run of failures, which then begins anew, but keeps no breaker from opening later
///   or from closing.
/// - `width` and `latest` change only with `inner` locked, and are read again under the lock before
///   a slot begins, so that the window never has slots of two widths.
/// - `calls`, which every success writes, has a cache line of its own. Beside `word`, which every
///   call reads, each success would make the calls of all other cores wait for the line.
#[derive(Debug)]
struct SharedBreaker {
    /// The generation above, the state in the lowest bits.
    word: AtomicU64,
    /// The newest slot of the window.
    latest: AtomicU64,
    /// The length of a slot of the window.
    width: AtomicU64,
    /// Not zero while the failures in the window would do, if there were more calls.
    watched: AtomicU32,
    /// Calls that ended in a success or a failure.
    calls: CacheLine<AtomicU64>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pinned: Option<Pin>,
    window: Window,
    history: History,
    probes: Probes,
    ramp: Ramp,
    /// The reason and the time of the last change.
    changed: Option<(BreakerReason, u64)>,
}

/// A state that only a person ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pin {
    Open,
    Closed,
}

/// The right to make one call, with the generation that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    fn is_probe(self) -> bool {
        state(self.0) == OPEN
    }

    fn is_of(self, word: u64) -> bool {
        self.0 >> GENERATION == word >> GENERATION
    }
}

impl Breaker {
    /// Makes a closed breaker.
    pub(crate) fn new(policy: BreakerPolicy) -> Self {
        let shared = SharedBreaker {
            word: AtomicU64::new(CLOSED),
            latest: AtomicU64::new(0),
            width: AtomicU64::new(width(policy.window)),
            watched: AtomicU32::new(0),
            calls: CacheLine(AtomicU64::new(0)),
            inner: Mutex::new(Inner::default()),
        };
        Self {
            policy,
            shared: Arc::new(shared),
        }
    }

    /// Returns a breaker with another policy and the same state. A window of another length begins
    /// anew; failures in a row, and a cooldown that has begun, stay.
    pub(crate) fn with_policy(&self, policy: BreakerPolicy) -> Self {
        let shared = &self.shared;
        let mut inner = lock(&shared.inner);
        let width = width(policy.window);
        if shared.width.load(Ordering::Relaxed) != width {
            shared.width.store(width, Ordering::Relaxed);
            shared.latest.store(0, Ordering::Relaxed);
            inner.window = Window::default();
        }
        Self {
            policy,
            shared: Arc::clone(shared),
        }
    }

    /// Reads the words that admitting and reporting read first.
    pub(super) fn word(&self) -> u64 {
        self.shared.word.load(Ordering::Relaxed) ^ self.shared.latest.load(Ordering::Relaxed)
    }

    /// Admits a call, or says why not.
    #[inline]
    pub(crate) fn admit(&self, arrival: impl FnOnce() -> Arrival) -> Result<Ticket, Denied> {
        let word = self.shared.word.load(Ordering::Acquire);
        match word & (STATE | OVERLOADED) {
            CLOSED => Ok(Ticket(word)),
            _ => self.admit_some(arrival()),
        }
    }

    /// Admits a call while not all calls pass.
    #[cold]
    fn admit_some(&self, arrival: Arrival) -> Result<Ticket, Denied> {
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        match state(word) {
            OPEN if inner.pinned.is_some() => Err(Denied::Open(None)),
            OPEN => match inner.probes.admit(&self.policy, arrival) {
                Ok(()) => Ok(Ticket(word)),
                Err(left) => Err(Denied::Open(Some(left))),
            },
            RAMP => match inner.ramp.admit(arrival.now) {
                Admitted::This => Ok(Ticket(word)),
                Admitted::All => {
                    // The same generation: calls of the ramp are calls of a closed breaker.
                    let word = word & !STATE | CLOSED;
                    self.shared.word.store(word, Ordering::Release);
                    Ok(Ticket(word))
                }
                Admitted::None(left) => Err(Denied::Open(Some(left))),
            },
            _ => self.admit_share(&mut inner, word, arrival),
        }
    }

    /// Admits a call to a dependency that is overloaded, unless it is one too many.
    fn admit_share(
        &self,
        inner: &mut Inner,
        word: u64,
        Arrival { now, uniform, .. }: Arrival,
    ) -> Result<Ticket, Denied> {
        let counts = self.signs(inner, now);
        if !counts.has_signs() {
            self.shared
                .word
                .store(word & !OVERLOADED, Ordering::Release);
            return Ok(Ticket(word));
        }
        if uniform >= self.share(counts) {
            return Ok(Ticket(word));
        }
        self.begin(inner, now, self.shared.calls.0.load(Ordering::Relaxed));
        if let Some(slot) = inner.window.slot(self.slot(now)) {
            slot.shed += 1;
        }
        Err(Denied::Overload)
    }

    /// Returns why no hedge goes out now: it is not closed, or there are signs of overload.
    pub(crate) fn forbids_hedges(&self) -> Option<Unhedged> {
        let word = self.shared.word.load(Ordering::Acquire);
        match (state(word), word & OVERLOADED) {
            (CLOSED, 0) => None,
            (CLOSED, _) => Some(Unhedged::Throttle),
            _ => Some(Unhedged::Breaker),
        }
    }

    /// Records the result of an admitted call. Returns the new state if the breaker opened or
    /// closed by it.
    ///
    /// `seen_at` is a time during the call, if the clock was read: most successes read none.
    #[inline]
    pub(crate) fn report(
        &self,
        ticket: Ticket,
        report: Report,
        seen_at: Option<u64>,
        now: impl Fn() -> u64,
        uniform: impl FnOnce() -> f64,
    ) -> Option<Change> {
        if !ticket.is_probe() {
            match report.health {
                Health::Success => {
                    if !ticket.is_of(self.shared.word.load(Ordering::Acquire)) {
                        return None;
                    }
                    let before = self.shared.calls.0.fetch_add(1, Ordering::Relaxed);
                    match seen_at {
                        Some(at) => self.turn(at, before),
                        None if before.is_multiple_of(UNTIMED) => self.turn(now(), before),
                        None => {}
                    }
                    let watched = self.shared.watched.load(Ordering::Relaxed) != 0;
                    return watched
                        .then(|| self.watch(ticket, now(), uniform))
                        .flatten();
                }
                Health::Neutral if !report.overload => return None,
                Health::Neutral | Health::Failure => {}
            }
        }
        self.report_change(ticket, report, now(), uniform)
    }

    /// Opens the breaker if a success is the call that makes the window's minimum.
    #[cold]
    fn watch(&self, ticket: Ticket, now: u64, uniform: impl FnOnce() -> f64) -> Option<Change> {
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        let opens = ticket.is_of(word) && inner.pinned.is_none() && self.fails_often(&inner, now);
        opens.then(|| self.open(&mut inner, word, now, uniform(), BreakerReason::FailureRate))
    }

    #[cold]
    fn report_change(
        &self,
        ticket: Ticket,
        report: Report,
        now: u64,
        uniform: impl FnOnce() -> f64,
    ) -> Option<Change> {
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        if !ticket.is_of(word) {
            return None;
        }
        match report.health {
            // Only a probe gets here with anything but a failure or an overload.
            Health::Success => Some(self.close(&mut inner, now)),
            // The next call is the next probe.
            Health::Neutral if ticket.is_probe() => {
                inner.probes.is_due();
                None
            }
            Health::Neutral => {
                let calls = self.shared.calls.0.load(Ordering::Relaxed);
                self.begin(&mut inner, now, calls);
                if let Some(slot) = inner.window.slot(self.slot(now)) {
                    slot.rejected += 1;
                }
                self.shared
                    .word
                    .store(word | self.overloaded(), Ordering::Release);
                None
            }
            Health::Failure if ticket.is_probe() => {
                inner.probes.failed(now);
                None
            }
            Health::Failure => {
                self.count_failure(&mut inner, now, report.overload);
                let word = match report.overload {
                    true => word | self.overloaded(),
                    false => word,
                };
                self.shared.word.store(word, Ordering::Release);
                let reason = if self.fails_always(&inner, word, now) {
                    BreakerReason::Failures
                } else if self.fails_often(&inner, now) {
                    BreakerReason::FailureRate
                } else {
                    return None;
                };
                let opens = inner.pinned.is_none();
                opens.then(|| self.open(&mut inner, word, now, uniform(), reason))
            }
        }
    }

    /// Returns the bit that makes calls look at the throttle, if there is one.
    fn overloaded(&self) -> u64 {
        u64::from(self.policy.throttle.is_some()) * OVERLOADED
    }

    /// Opens the breaker because the retry budget is exhausted, if the policy says so.
    pub(crate) fn budget_exhausted(&self, now: u64, uniform: f64) -> Option<Change> {
        let mut inner = lock(&self.shared.inner);
        let word = self.shared.word.load(Ordering::Acquire);
        if state(word) != CLOSED || inner.pinned.is_some() {
            return None;
        }
        let opens = match self.policy.on_budget_exhausted {
            Exhaustion::Never => false,
            Exhaustion::Open => true,
            Exhaustion::OpenIfFailing => {
                let counts = self.counts(&inner, now, SLOTS);
                // A rate of 1 is the other criterion by another name.
                counts.failures >= u64::from(self.policy.consecutive_failures)
                    && self.is_failing(counts)
                    && (self.policy.failure_rate < 1.0 || self.fails_always(&inner, word, now))
            }
        };
        let reason = BreakerReason::BudgetExhausted;
        opens.then(|| self.open(&mut inner, word, now, uniform, reason))
    }

    /// Returns the state, with the reason and the time of the last change.
    pub(crate) fn state(&self, now: u64) -> (BreakerState, Option<(BreakerReason, u64)>) {
        let inner = lock(&self.shared.inner);
        let state = match state(self.shared.word.load(Ordering::Acquire)) {
            CLOSED => BreakerState::Closed,
            OPEN => {
                let left = inner.probes.until.saturating_sub(now);
                // One that a person opened has no end that is known.
                BreakerState::Open(Duration::from_nanos(left).min(self.policy.max_cooldown))
            }
            _ => BreakerState::Recovering,
        };
        (state, inner.changed)
    }

    /// Returns the share of calls that the throttle sheds.
    pub(crate) fn shed_share(&self, now: u64) -> f64 {
        let inner = lock(&self.shared.inner);
        self.share(self.signs(&inner, now))
    }

    fn share(&self, counts: Counts) -> f64 {
        match self.policy.throttle {
            Some(factor) if counts.shows_overload() => counts.shed_share(factor),
            _ => 0.0,
        }
    }

    /// Returns whether a new breaker would do as well: nothing failed in the window, and no
    /// cooldown is under way.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let inner = lock(&self.shared.inner);
        let counts = self.counts(&inner, now, SLOTS);
        inner.pinned.is_none()
            && inner.probes.until <= now
            && counts.failures == 0
            && !counts.has_signs()
    }

    /// Begins a generation in this state. Only with `inner` locked.
    fn enter(&self, inner: &mut Inner, state: u64, reason: BreakerReason, now: u64) {
        inner.changed = Some((reason, now));
        let word = self.shared.word.load(Ordering::Acquire);
        let next = ((word >> GENERATION) + 1) << GENERATION | state;
        self.shared.word.store(next, Ordering::Release);
    }

    fn open(
        &self,
        inner: &mut Inner,
        word: u64,
        now: u64,
        uniform: f64,
        reason: BreakerReason,
    ) -> Change {
        debug_assert_ne!(state(word), OPEN);
        let cooldown = inner.probes.begin(&self.policy, now, uniform);
        self.enter(inner, OPEN, reason, now);
        let state = BreakerState::Open(cooldown);
        Change { state, reason }
    }

    fn close(&self, inner: &mut Inner, now: u64) -> Change {
        self.empty(inner);
        let calls = self.shared.calls.0.load(Ordering::Relaxed);
        inner.history.succeeded(calls);
        inner.ramp = Ramp::new(now);
        let reason = BreakerReason::Probe;
        self.enter(inner, RAMP, reason, now);
        Change {
            state: BreakerState::Recovering,
            reason,
        }
    }

    /// Empties the window, and forgets probes and ramp.
    fn empty(&self, inner: &mut Inner) {
        inner.window = Window::default();
        inner.probes = Probes::default();
        inner.ramp = Ramp::default();
        // `latest` too, since the window may begin anew in the middle of a slot.
        self.shared.latest.store(0, Ordering::Relaxed);
        self.shared.watched.store(0, Ordering::Relaxed);
    }

    /// Begins a slot of the window with the first call seen in it.
    #[inline]
    fn turn(&self, at: u64, calls_before: u64) {
        if self.shared.latest.load(Ordering::Relaxed) < self.slot(at) {
            self.begin(&mut lock(&self.shared.inner), at, calls_before);
        }
    }

    /// Begins the slot of that time. It is computed under the lock, since `with_policy` may just
    /// have changed the width.
    fn begin(&self, inner: &mut Inner, at: u64, calls_before: u64) {
        let number = self.slot(at);
        if inner.window.begin(number, calls_before) {
            self.shared.latest.store(number, Ordering::Relaxed);
        }
    }

    fn count_failure(&self, inner: &mut Inner, now: u64, overload: bool) {
        let calls_before = self.shared.calls.0.fetch_add(1, Ordering::Relaxed);
        self.begin(inner, now, calls_before);
        if let Some(slot) = inner.window.slot(self.slot(now)) {
            slot.failures += 1;
            slot.timed_out += u32::from(overload);
        }
        inner.history.failed(calls_before + 1, now);
        let counts = self.counts(inner, now, SLOTS);
        let enough = self.policy.failure_rate * f64::from(self.policy.minimum_calls);
        let watched =
            counts.calls < u64::from(self.policy.minimum_calls) && counts.failures as f64 >= enough;
        self.shared.watched.store(watched.into(), Ordering::Relaxed);
    }

    /// Returns the counts of the window.
    pub(crate) fn window(&self, now: u64) -> WindowCounts {
        let inner = lock(&self.shared.inner);
        let counts = self.counts(&inner, now, SLOTS);
        WindowCounts {
            calls: counts.calls,
            failures: counts.failures,
            failures_in_a_row: inner.history.run(),
            rejected: counts.rejected,
            timed_out: counts.timed_out,
            shed: counts.shed,
        }
    }

    fn counts(&self, inner: &Inner, now: u64, slots: u64) -> Counts {
        let calls = self.shared.calls.0.load(Ordering::Relaxed);
        inner.window.sum(self.slot(now), slots, calls)
    }

    /// Returns the counts that a throttle looks at: of the last slot's time, up to now.
    fn signs(&self, inner: &Inner, now: u64) -> Counts {
        let newest = self.counts(inner, now, 1);
        let before = self.counts(inner, now, 2) - newest;
        let width = self.shared.width.load(Ordering::Relaxed).max(1);
        newest.and_part_of(before, 1.0 - (now % width) as f64 / width as f64)
    }

    /// Returns whether nothing works: enough failures in a row, for long enough, and more than
    /// chance brings.
    fn fails_always(&self, inner: &Inner, word: u64, now: u64) -> bool {
        let (history, policy) = (&inner.history, &self.policy);
        if history.run() < u64::from(policy.consecutive_failures) {
            return false;
        }
        // In the ramp, a run that is no chance is evidence enough at once.
        let lasts = state(word) == RAMP || history.lasts(now) >= nanos(policy.no_success_for);
        policy.no_success_for.is_zero() || (lasts && history.is_no_chance())
    }

    /// Returns whether too large a share of the window's calls failed.
    fn fails_often(&self, inner: &Inner, now: u64) -> bool {
        let counts = self.counts(inner, now, SLOTS);
        counts.calls >= u64::from(self.policy.minimum_calls) && self.is_failing(counts)
    }

    fn is_failing(&self, counts: Counts) -> bool {
        counts.failures as f64 >= self.policy.failure_rate * counts.calls as f64
    }

    fn slot(&self, now: u64) -> u64 {
        now / self.shared.width.load(Ordering::Relaxed).max(1) + SLOTS
    }
}

/// Returns the state in a word.
fn state(word: u64) -> u64 {
    word & STATE
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
