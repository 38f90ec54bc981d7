//! What happens when, and what was counted when.

use std::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Everything is counted in slots of this length. Phases are whole numbers of it.
pub(crate) const SLOT: Duration = Duration::from_millis(500);

/// How long each phase takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) healthy: Duration,
    pub(crate) outage: Duration,
    pub(crate) recovery: Duration,
}

impl Plan {
    pub(crate) const FULL: Self = Self {
        healthy: Duration::from_secs(3),
        outage: Duration::from_secs(5),
        recovery: Duration::from_secs(6),
    };

    pub(crate) const QUICK: Self = Self {
        healthy: Duration::from_millis(500),
        outage: Duration::from_millis(1500),
        recovery: Duration::from_millis(1500),
    };

    pub(crate) fn outage_end(&self) -> Duration {
        self.healthy + self.outage
    }

    pub(crate) fn end(&self) -> Duration {
        self.outage_end() + self.recovery
    }

    pub(crate) fn phase(&self, at: Duration) -> Phase {
        if at < self.healthy {
            Phase::Healthy
        } else if at < self.outage_end() {
            Phase::Outage
        } else {
            Phase::Recovery
        }
    }

    /// The slots of a phase.
    pub(crate) fn slots(&self, phase: Phase) -> Range<usize> {
        match phase {
            Phase::Healthy => 0..slot(self.healthy),
            Phase::Outage => slot(self.healthy)..slot(self.outage_end()),
            Phase::Recovery => slot(self.outage_end())..slot(self.end()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Healthy,
    Outage,
    Recovery,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Healthy, Self::Outage, Self::Recovery];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Outage => "outage",
            Self::Recovery => "recovery",
        }
    }
}

/// One fleet's run: the clock that server and clients share, and what they count.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) plan: Plan,
    start: Instant,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    calls: AtomicU32,
    upstream: AtomicU32,
    ended: AtomicU32,
    succeeded: AtomicU32,
}

/// What was counted in one slot, or in several.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    /// Calls that were made.
    pub(crate) calls: u32,
    /// Requests that reached the server.
    pub(crate) upstream: u32,
    /// Calls whose caller got an answer or an error.
    pub(crate) ended: u32,
    /// Calls whose caller got a good answer.
    pub(crate) succeeded: u32,
}

impl Counts {
    /// The share of the callers that were served; zero if nobody heard anything.
    pub(crate) fn success(&self) -> f64 {
        f64::from(self.succeeded) / f64::from(self.ended.max(1))
    }
}

impl Timeline {
    pub(crate) fn start(plan: Plan) -> Self {
        Self {
            plan,
            start: Instant::now(),
            slots: (0..slot(plan.end())).map(|_| Slot::default()).collect(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.elapsed() >= self.plan.end()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.plan.phase(self.elapsed())
    }

    pub(crate) fn call_made(&self) {
        self.count(|slot| &slot.calls);
    }

    pub(crate) fn request_arrived(&self) {
        self.count(|slot| &slot.upstream);
    }

    pub(crate) fn call_ended(&self, succeeded: bool) {
        self.count(|slot| &slot.ended);
        if succeeded {
            self.count(|slot| &slot.succeeded);
        }
    }

    fn count(&self, counter: impl FnOnce(&Slot) -> &AtomicU32) {
        if let Some(slot) = self.slots.get(slot(self.elapsed())) {
            counter(slot).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Slot by slot.
    pub(crate) fn counts(&self) -> Vec<Counts> {
        let read = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let slots = self.slots.iter().map(|slot| Counts {
            calls: read(&slot.calls),
            upstream: read(&slot.upstream),
            ended: read(&slot.ended),
            succeeded: read(&slot.succeeded),
        });
        slots.collect()
    }

    /// The slots of that range together.
    pub(crate) fn sum(&self, range: Range<usize>) -> Counts {
        let counts = self.counts();
        let slots = counts.get(range).unwrap_or_default();
        slots.iter().fold(Counts::default(), |sum, slot| Counts {
            calls: sum.calls + slot.calls,
            upstream: sum.upstream + slot.upstream,
            ended: sum.ended + slot.ended,
            succeeded: sum.succeeded + slot.succeeded,
        })
    }
}

/// The number of the slot that begins at that time or holds it.
pub(crate) fn slot(at: Duration) -> usize {
    usize::try_from(at.as_nanos() / SLOT.as_nanos()).unwrap_or(usize::MAX)
}
