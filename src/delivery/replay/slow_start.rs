//! The pace at which the journal is drained to each target: gently after a recovery, so that it is
//! not a second outage.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::backoff::{Backoff, FullJitter};

/// The pause after a reply that says that the service can't serve: 1 s, and up to a minute as it
/// keeps saying so.
const PAUSE: FullJitter = FullJitter {
    base: Duration::from_secs(2),
    cap: Duration::from_secs(60),
};
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The drain rate is measured over the last one to two windows.
const WINDOW: Duration = Duration::from_secs(30);

/// The targets that are known before those are dropped that nothing was replayed to lately.
const MAX_TARGETS: usize = 1024;

/// The pace of each target.
#[derive(Debug)]
pub(super) struct Paces {
    most: usize,
    known: Mutex<HashMap<Box<str>, Arc<SlowStart>>>,
}

impl Paces {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            known: Mutex::default(),
        }
    }

    /// Returns the pace of a target.
    pub(super) fn of(&self, target: &str) -> Arc<SlowStart> {
        let mut known = self.lock();
        if let Some(pace) = known.get(target) {
            return Arc::clone(pace);
        }
        if known.len() >= MAX_TARGETS {
            known.retain(|_, pace| pace.is_in_use());
        }
        let pace = Arc::new(SlowStart::new(self.most));
        known.insert(target.into(), Arc::clone(&pace));
        pace
    }

    /// Lets all of them start over, and at once.
    pub(super) fn restart(&self) {
        self.lock().values().for_each(|pace| pace.restart());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<SlowStart>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pace of one target.
#[derive(Debug)]
pub(super) struct SlowStart {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number at a time: one after a recovery, then twice as many each time that so many
    /// succeeded.
    limit: usize,
    successes: usize,
    refusals: u32,
    paused_until: Option<Instant>,
    /// The start of the current window, and how many ended in it.
    window: (Instant, u32),
    /// The length of the window before, and how many ended in it.
    previous: (Duration, u32),
}

impl SlowStart {
    fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::new(State {
                limit: 1,
                successes: 0,
                refusals: 0,
                paused_until: None,
                window: (Instant::now(), 0),
                previous: (Duration::ZERO, 0),
            }),
        }
    }

    /// Returns how many may be replayed at a time; none during a pause.
    pub(super) fn limit(&self) -> usize {
        let state = self.lock();
        match state.paused_until {
            Some(until) if Instant::now() < until => 0,
            _ => state.limit,
        }
    }

    /// Returns whether it differs from a new one.
    fn is_in_use(&self) -> bool {
        let mut state = self.lock();
        state.roll();
        let is_paused = state
            .paused_until
            .is_some_and(|until| Instant::now() < until);
        is_paused || state.window.1 + state.previous.1 > 0
    }

    /// Starts over, and at once.
    fn restart(&self) {
        let mut state = self.lock();
        (state.limit, state.successes) = (1, 0);
        (state.refusals, state.paused_until) = (0, None);
    }

    /// Records that one was served, whatever the reply.
    pub(super) fn served(&self) {
        let mut state = self.lock();
        state.refusals = 0;
        state.successes += 1;
        if state.successes >= state.limit {
            state.successes = 0;
            state.limit = (state.limit * 2).min(self.most);
        }
        state.count();
    }

    /// Records that the service can't serve now, and returns how long to leave it alone.
    pub(super) fn refused(&self, asked: Option<Duration>) -> Duration {
        let mut state = self.lock();
        let pause = PAUSE.delay(state.refusals, Duration::ZERO, rand::random());
        let pause = pause.max(LEAST_PAUSE).max(asked.unwrap_or_default());
        state.refusals = state.refusals.saturating_add(1);
        (state.limit, state.successes) = (1, 0);
        let until = Instant::now() + pause.min(PAUSE.cap);
        state.paused_until = state.paused_until.max(Some(until));
        pause
    }

    /// Estimates how long so many entries take; `None` if nothing was replayed lately.
    pub(super) fn estimate(&self, entries: u32) -> Option<Duration> {
        let mut state = self.lock();
        state.roll();
        let (began, count) = state.window;
        let ended = state.previous.1 + count;
        let took = state.previous.0 + began.elapsed();
        (ended > 0).then(|| took.mul_f64(f64::from(entries) / f64::from(ended)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self) {
        self.roll();
        self.window.1 += 1;
    }

    fn roll(&mut self) {
        let (began, count) = self.window;
        let age = began.elapsed();
        if age >= WINDOW {
            // A window that ended long ago says nothing about now.
            self.previous = match age < 2 * WINDOW {
                true => (age, count),
                false => (Duration::ZERO, 0),
            };
            self.window = (Instant::now(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn j_5_a_drain_starts_gently_and_grows() {
        let pace = SlowStart::new(6);
        assert_eq!(pace.limit(), 1);
        let mut limits = Vec::new();
        for _ in 0..8 {
            pace.served();
            limits.push(pace.limit());
        }
        assert_eq!(limits, [2, 2, 4, 4, 4, 4, 6, 6]);
        let pause = pace.refused(None);
        assert_eq!(pace.limit(), 0, "left alone");
        tokio::time::advance(pause).await;
        assert_eq!(pace.limit(), 1, "and then gently again");
    }

    #[tokio::test(start_paused = true)]
    async fn j_5_targets_have_paces_of_their_own_and_idle_ones_are_dropped() {
        let paces = Paces::new(8);
        paces.of("down").refused(None);
        paces.of("up").served();
        assert_eq!((paces.of("down").limit(), paces.of("up").limit()), (0, 2));
        for n in 0..MAX_TARGETS {
            paces.of(&n.to_string());
        }
        assert!(paces.lock().len() < MAX_TARGETS, "those that are new");
        assert_eq!((paces.of("down").limit(), paces.of("up").limit()), (0, 2));
        paces.restart();
        assert_eq!((paces.of("down").limit(), paces.of("up").limit()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_are_bounded() {
        let pace = SlowStart::new(1);
        let hour = Duration::from_secs(3600);
        for _ in 0..50 {
            let pause = pace.refused(None);
            assert!((LEAST_PAUSE..=PAUSE.cap).contains(&pause));
        }
        assert_eq!(pace.refused(Some(hour)), hour, "the entry waits as asked");
        tokio::time::advance(PAUSE.cap).await;
        assert_eq!(pace.limit(), 1, "the others do not");
        pace.restart();
        assert_eq!(pace.limit(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn j_1_estimates_are_of_what_was_measured() {
        let pace = SlowStart::new(1);
        assert_eq!(pace.estimate(10), None);
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(1)).await;
            pace.served();
        }
        assert_eq!(pace.estimate(10), Some(Duration::from_secs(10)));
        tokio::time::advance(WINDOW * 3).await;
        assert_eq!(pace.estimate(10), None, "that was long ago");
    }
}
