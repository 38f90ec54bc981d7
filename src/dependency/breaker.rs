use std::time::Duration;

use crate::{
    backoff::below,
    classify::Health,
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
/// a result counts only in the generation that its call was admitted in.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    /// The generation above, the state in the lowest two bits.
    word: AtomicU64,
    /// Calls that came back with a success or a failure.
    calls: AtomicU64,
    /// Failures since the last success.
    streak: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// When the cooldown ends.
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
        self.0 & STATE == PROBING
    }
}

impl Breaker {
    pub(crate) fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            word: AtomicU64::new(CLOSED),
            calls: AtomicU64::new(0),
            streak: AtomicU32::new(0),
            inner: Mutex::new(Inner::default()),
        }
    }

    /// Lets a call through, or says how much longer none will be; `None` while a probe is out.
    pub(crate) fn admit(&self, now: impl FnOnce() -> u64) -> Result<Ticket, Option<Duration>> {
        let word = self.word.load(Ordering::Acquire);
        if word & STATE == CLOSED {
            return Ok(Ticket(word));
        }
        let inner = lock(&self.inner);
        let word = self.word.load(Ordering::Acquire);
        match word & STATE {
            CLOSED => Ok(Ticket(word)),
            OPEN => match inner.until.checked_sub(now()) {
                Some(left) if left > 0 => Err(Some(Duration::from_nanos(left))),
                _ => Ok(Ticket(self.enter(word, PROBING))),
            },
            _ => Err(None),
        }
    }

    /// Takes in how an admitted call ended. Returns whether the breaker opened or closed by it.
    pub(crate) fn report(
        &self,
        ticket: Ticket,
        health: Health,
        now: impl FnOnce() -> u64,
        uniform: impl FnOnce() -> f64,
    ) -> Option<BreakerState> {
        if !ticket.is_probe() {
            match health {
                Health::Success => {
                    if self.word.load(Ordering::Acquire) == ticket.0 {
                        self.calls.fetch_add(1, Ordering::Relaxed);
                        if self.streak.load(Ordering::Relaxed) != 0 {
                            self.streak.store(0, Ordering::Relaxed);
                        }
                    }
                    return None;
                }
                Health::Neutral => return None,
                Health::Failure => {}
            }
        }
        let mut inner = lock(&self.inner);
        let word = self.word.load(Ordering::Acquire);
        if word != ticket.0 {
            return None;
        }
        match health {
            // Only a probe gets here with anything but a failure.
            Health::Success => {
                *inner = Inner::default();
                self.streak.store(0, Ordering::Relaxed);
                self.enter(word, CLOSED);
                Some(BreakerState::Closed)
            }
            // The cooldown is over already, so the next call is the next probe.
            Health::Neutral => {
                self.enter(word, OPEN);
                None
            }
            Health::Failure if ticket.is_probe() => {
                Some(self.open(&mut inner, word, now(), uniform()))
            }
            Health::Failure => {
                let now = now();
                let streak = self
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
        let mut inner = lock(&self.inner);
        let word = self.word.load(Ordering::Acquire);
        if word & STATE != CLOSED {
            return None;
        }
        let opens = match self.policy.on_budget_exhausted {
            Exhaustion::Never => false,
            Exhaustion::Open => true,
            Exhaustion::OpenIfFailing => {
                let (failures, calls) = self.window(&inner, now);
                failures > 0 && self.is_failing(failures, calls)
            }
        };
        opens.then(|| self.open(&mut inner, word, now, uniform))
    }

    /// Whether a call made at `at` is sure to be refused.
    pub(crate) fn refuses_at(&self, at: u64) -> bool {
        if self.word.load(Ordering::Acquire) & STATE == CLOSED {
            return false;
        }
        let inner = lock(&self.inner);
        self.word.load(Ordering::Acquire) & STATE == OPEN && inner.until > at
    }

    pub(crate) fn state(&self, now: u64) -> BreakerState {
        let inner = lock(&self.inner);
        match self.word.load(Ordering::Acquire) & STATE {
            CLOSED => BreakerState::Closed,
            OPEN => BreakerState::Open(Duration::from_nanos(inner.until.saturating_sub(now))),
            _ => BreakerState::Probing,
        }
    }

    /// Whether a new breaker would be no different.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        let inner = lock(&self.inner);
        self.word.load(Ordering::Acquire) & STATE == CLOSED
            && self.streak.load(Ordering::Relaxed) == 0
            && self.window(&inner, now).0 == 0
    }

    fn enter(&self, word: u64, state: u64) -> u64 {
        let next = ((word >> 2) + 1) << 2 | state;
        self.word.store(next, Ordering::Release);
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

    fn count_failure(&self, inner: &mut Inner, now: u64) -> (u64, u64) {
        let calls_before = self.calls.fetch_add(1, Ordering::Relaxed);
        let number = self.slot(now);
        let slot = &mut inner.slots[(number % SLOTS) as usize];
        if slot.number < number {
            *slot = Slot {
                number,
                calls_before,
                failures: 0,
            };
        }
        slot.failures += 1;
        self.window(inner, now)
    }

    /// Failures and calls in the window, which begins with the first failure in it.
    fn window(&self, inner: &Inner, now: u64) -> (u64, u64) {
        let number = self.slot(now);
        let recent = || {
            inner
                .slots
                .iter()
                .filter(|slot| slot.number + SLOTS > number)
        };
        let failures = recent().map(|slot| slot.failures).sum();
        let calls = self.calls.load(Ordering::Relaxed);
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
        now / (nanos(self.policy.window) / SLOTS).max(1) + SLOTS + 1
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(all(test, not(reprise_loom)))]
#[allow(clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn breaker() -> Breaker {
        Breaker::new(BreakerPolicy::default())
    }

    fn call(breaker: &Breaker, health: Health, now: u64) -> Option<BreakerState> {
        let ticket = breaker.admit(|| now).expect("admitted");
        breaker.report(ticket, health, || now, || 0.0)
    }

    fn trip(breaker: &Breaker, now: u64) -> u64 {
        for _ in 0..5 {
            call(breaker, Health::Failure, now);
        }
        match breaker.state(now) {
            BreakerState::Open(cooldown) => now + nanos(cooldown),
            state => panic!("{state:?}"),
        }
    }

    #[test]
    fn cb_1_five_failures_in_a_row_open_it() {
        let breaker = breaker();
        for _ in 0..4 {
            assert_eq!(call(&breaker, Health::Failure, 0), None);
        }
        call(&breaker, Health::Success, 0);
        for _ in 0..4 {
            assert_eq!(call(&breaker, Health::Failure, 0), None);
        }
        assert!(matches!(
            call(&breaker, Health::Failure, 0),
            Some(BreakerState::Open(_))
        ));
    }

    #[test]
    fn cb_1_a_failure_rate_over_the_window_opens_it() {
        let breaker = breaker();
        let mut opened = None;
        for i in 0..20 {
            opened = call(
                &breaker,
                if i % 2 == 0 {
                    Health::Failure
                } else {
                    Health::Success
                },
                i * SECOND / 10,
            );
            assert!(
                opened.is_none() || i >= 18,
                "opened at call {i}, before the minimum count"
            );
            if opened.is_some() {
                break;
            }
        }
        // Half of 20 calls failed, but the 20th is a success; the next failure tips it.
        let opened = opened.or_else(|| call(&breaker, Health::Failure, 2 * SECOND));
        assert!(matches!(opened, Some(BreakerState::Open(_))));
    }

    #[test]
    fn cb_1_old_failures_leave_the_window() {
        let breaker = breaker();
        for i in 0..200 {
            call(&breaker, Health::Failure, i * 40 * SECOND);
            call(&breaker, Health::Success, i * 40 * SECOND);
            assert_eq!(breaker.state(i * 40 * SECOND), BreakerState::Closed);
        }
    }

    #[test]
    fn cb_1_a_low_rate_never_opens_it() {
        let breaker = breaker();
        for i in 0..10_000 {
            let health = if i % 4 == 0 {
                Health::Failure
            } else {
                Health::Success
            };
            assert_eq!(call(&breaker, health, i * SECOND / 100), None);
        }
    }

    #[test]
    fn cb_2_open_refuses_with_what_is_left_of_the_cooldown() {
        let breaker = breaker();
        let until = trip(&breaker, 0);
        let refused = breaker.admit(|| until - SECOND).unwrap_err();
        assert_eq!(refused, Some(Duration::from_secs(1)));
        assert!(breaker.refuses_at(until - 1));
        assert!(!breaker.refuses_at(until));
    }

    #[test]
    fn cb_3_one_probe_at_a_time() {
        let breaker = breaker();
        let until = trip(&breaker, 0);
        let probe = breaker.admit(|| until).unwrap();
        assert!(probe.is_probe());
        for _ in 0..10 {
            assert_eq!(breaker.admit(|| until + 100 * SECOND), Err(None));
        }
    }

    #[test]
    fn cb_4_a_good_probe_closes_and_resets() {
        let breaker = breaker();
        let until = trip(&breaker, 0);
        assert_eq!(
            call(&breaker, Health::Success, until),
            Some(BreakerState::Closed)
        );
        assert!(breaker.is_idle(until));
        for _ in 0..4 {
            assert_eq!(call(&breaker, Health::Failure, until), None);
        }
    }

    #[test]
    fn cb_4_a_bad_probe_opens_it_for_longer_up_to_the_cap() {
        let breaker = breaker();
        let mut until = trip(&breaker, 0);
        let mut last = Duration::from_nanos(until);
        for round in 0..20 {
            let Some(BreakerState::Open(cooldown)) = call(&breaker, Health::Failure, until) else {
                panic!()
            };
            assert!(
                cooldown > last || cooldown == breaker.policy.max_cooldown,
                "round {round}"
            );
            last = cooldown;
            until += nanos(cooldown);
        }
        assert_eq!(last, breaker.policy.max_cooldown);
    }

    #[test]
    fn cb_4_cooldowns_are_jittered() {
        let cooldown = |uniform: f64| {
            let breaker = breaker();
            let mut inner = lock(&breaker.inner);
            breaker.open(&mut inner, 0, 0, uniform)
        };
        assert_ne!(cooldown(0.1), cooldown(0.9));
    }

    #[test]
    fn cb_5_a_neutral_probe_frees_its_slot() {
        let breaker = breaker();
        let until = trip(&breaker, 0);
        assert_eq!(call(&breaker, Health::Neutral, until), None);
        assert_eq!(
            call(&breaker, Health::Success, until),
            Some(BreakerState::Closed)
        );
    }

    #[test]
    fn cb_5_late_results_of_an_older_generation_change_nothing() {
        let breaker = breaker();
        let late: Vec<_> = (0..3).map(|_| breaker.admit(|| 0).unwrap()).collect();
        let until = trip(&breaker, 0);
        assert_eq!(breaker.report(late[0], Health::Success, || 0, || 0.0), None);
        assert!(matches!(breaker.state(0), BreakerState::Open(_)));
        let probe = breaker.admit(|| until).unwrap();
        assert_eq!(
            breaker.report(late[1], Health::Success, || until, || 0.0),
            None
        );
        assert_eq!(breaker.state(until), BreakerState::Probing);
        breaker.report(probe, Health::Success, || until, || 0.0);
        for _ in 0..9 {
            breaker.report(late[2], Health::Failure, || until, || 0.0);
        }
        assert_eq!(breaker.state(until), BreakerState::Closed);
    }

    #[test]
    fn g_5_exhaustion_opens_only_a_failing_dependency() {
        let run = |on_budget_exhausted, failures: u64| {
            let breaker = Breaker::new(BreakerPolicy {
                on_budget_exhausted,
                ..BreakerPolicy::default()
            });
            for i in 0..8 {
                let health = if i % 8 < failures {
                    Health::Failure
                } else {
                    Health::Success
                };
                call(&breaker, health, 0);
            }
            breaker.budget_exhausted(0, 0.0).is_some()
        };
        assert!(!run(Exhaustion::OpenIfFailing, 0));
        assert!(
            !run(Exhaustion::OpenIfFailing, 2),
            "a quarter fails: no reason for a full outage"
        );
        assert!(run(Exhaustion::OpenIfFailing, 4));
        assert!(run(Exhaustion::Open, 0));
        assert!(!run(Exhaustion::Never, 4));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Whatever happened before, a dependency that is well is reached again.
        #[test]
        fn cb_6_never_wedges(steps in proptest::collection::vec((0_u64..20_000, 0_u8..5), 0..200)) {
            let breaker = breaker();
            let (mut now, mut out) = (0, Vec::new());
            for (millis, step) in steps {
                now += millis * 1_000_000;
                match step {
                    0 => out.extend(breaker.admit(|| now).ok()),
                    1 => { breaker.budget_exhausted(now, 0.5); }
                    _ => if let Some(ticket) = out.pop() {
                        let health = [Health::Success, Health::Failure, Health::Neutral][usize::from(step) - 2];
                        breaker.report(ticket, health, || now, || 0.5);
                    }
                }
            }
            for ticket in out {
                breaker.report(ticket, Health::Neutral, || now, || 0.5);
            }
            now += nanos(breaker.policy.max_cooldown);
            call(&breaker, Health::Success, now);
            proptest::prop_assert_eq!(breaker.state(now), BreakerState::Closed);
        }
    }
}

#[cfg(all(test, reprise_loom))]
mod model {
    use loom::{sync::Arc, thread};

    use super::*;

    fn opened() -> Arc<Breaker> {
        let breaker = Arc::new(Breaker::new(BreakerPolicy {
            consecutive_failures: 1,
            ..BreakerPolicy::default()
        }));
        let ticket = breaker.admit(|| 0).unwrap();
        breaker.report(ticket, Health::Failure, || 0, || 0.0);
        breaker
    }

    const LATER: u64 = 3_600_000_000_000;

    #[test]
    fn cb_3_racing_calls_make_one_probe() {
        loom::model(|| {
            let breaker = opened();
            let other = Arc::clone(&breaker);
            let thread = thread::spawn(move || other.admit(|| LATER).is_ok());
            let mine = breaker.admit(|| LATER).is_ok();
            assert!(mine ^ thread.join().unwrap());
        });
    }

    #[test]
    fn cb_5_a_freed_probe_is_taken_once() {
        loom::model(|| {
            let breaker = opened();
            let probe = breaker.admit(|| LATER).unwrap();
            let other = Arc::clone(&breaker);
            let thread = thread::spawn(move || {
                other.report(probe, Health::Neutral, || LATER, || 0.0);
            });
            let early = breaker.admit(|| LATER).is_ok();
            thread.join().unwrap();
            assert_eq!(breaker.admit(|| LATER).is_ok(), !early);
        });
    }

    #[test]
    fn cb_6_a_success_racing_a_failure_leaves_it_reachable() {
        loom::model(|| {
            let breaker = Arc::new(Breaker::new(BreakerPolicy {
                consecutive_failures: 1,
                ..BreakerPolicy::default()
            }));
            let (good, bad) = (breaker.admit(|| 0).unwrap(), breaker.admit(|| 0).unwrap());
            let other = Arc::clone(&breaker);
            let thread = thread::spawn(move || {
                other.report(good, Health::Success, || 0, || 0.0);
            });
            breaker.report(bad, Health::Failure, || 0, || 0.0);
            thread.join().unwrap();
            let probe = breaker.admit(|| LATER).unwrap();
            breaker.report(probe, Health::Success, || LATER, || 0.0);
            assert_eq!(breaker.state(LATER), BreakerState::Closed);
        });
    }
}
