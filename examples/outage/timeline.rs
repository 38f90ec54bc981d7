//! The phases of a run, and the counts of one fleet in them.

use std::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Everything is counted in slots of this length. A phase is a whole number of them.
pub(crate) const SLOT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Blips,
    Half,
    Outage,
    Recovery,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::Blips, Self::Half, Self::Outage, Self::Recovery];

    /// The start and the end of the phase, in fifths of the unit of its plan. The blips have a calm
    /// time before and after, as those who call have in the world: without it, the fleets would be
    /// measured by calls that are the first of all, and by retries that meet the half failure.
    fn fifths(self) -> Range<u32> {
        match self {
            Self::Blips => 1..6,
            Self::Half => 7..17,
            Self::Outage => 17..27,
            Self::Recovery => 27..37,
        }
    }

    /// The share of requests that fail.
    pub(crate) fn failing(self) -> f64 {
        match self {
            Self::Blips => 0.1,
            Self::Half => 0.5,
            Self::Outage => 1.0,
            Self::Recovery => 0.0,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blips => "blips",
            Self::Half => "half",
            Self::Outage => "outage",
            Self::Recovery => "recovery",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Blips => "blips: 10 % fail",
            Self::Half => "half failure: 50 % fail",
            Self::Outage => "outage: all fail",
            Self::Recovery => "recovery: none fails",
        }
    }
}

/// The clock of one fleet and its server, and their counts.
#[derive(Debug)]
pub(crate) struct Timeline {
    unit: Duration,
    start: Instant,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    calls: AtomicU32,
    succeeded: AtomicU32,
    requests: AtomicU32,
}

/// The counts of some slots.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    /// Calls made in these slots.
    pub(crate) calls: u32,
    /// Those of them that succeeded, then or later.
    succeeded: u32,
    /// Requests that reached the server in these slots.
    requests: u32,
}

impl Counts {
    pub(crate) fn success(self) -> f64 {
        f64::from(self.succeeded) / f64::from(self.calls.max(1))
    }

    /// Requests a call.
    pub(crate) fn load(self) -> f64 {
        f64::from(self.requests) / f64::from(self.calls.max(1))
    }
}

impl Timeline {
    /// Starts a run whose phases take one, two, two and two of these units.
    pub(crate) fn start(unit: Duration) -> Self {
        let slots = slots(unit * Phase::Recovery.fifths().end / 5);
        Self {
            unit,
            start: Instant::now(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The slot of this moment; `None` after the last phase.
    pub(crate) fn now(&self) -> Option<usize> {
        let slot = slots(self.elapsed());
        (slot < self.slots.len()).then_some(slot)
    }

    /// The phase of this moment; `None` while all is well before and after the blips.
    pub(crate) fn phase(&self) -> Option<Phase> {
        let now = slots(self.elapsed());
        let mut phases = Phase::ALL.into_iter();
        phases.find(|phase| self.of(*phase).contains(&now))
    }

    pub(crate) fn call_made(&self, slot: usize) {
        self.slots[slot].calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn call_succeeded(&self, made: usize) {
        self.slots[made].succeeded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn request_arrived(&self) {
        if let Some(slot) = self.now() {
            self.slots[slot].requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The slots of a phase.
    pub(crate) fn of(&self, phase: Phase) -> Range<usize> {
        let Range { start, end } = phase.fifths();
        slots(self.unit * start / 5)..slots(self.unit * end / 5)
    }

    /// The number of all slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slots of a range together.
    pub(crate) fn sum(&self, range: Range<usize>) -> Counts {
        let read = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let slots = self.slots.get(range).unwrap_or_default();
        slots.iter().fold(Counts::default(), |sum, slot| Counts {
            calls: sum.calls + read(&slot.calls),
            succeeded: sum.succeeded + read(&slot.succeeded),
            requests: sum.requests + read(&slot.requests),
        })
    }
}

/// Whole slots in a time.
pub(crate) fn slots(time: Duration) -> usize {
    usize::try_from(time.as_nanos() / SLOT.as_nanos()).unwrap_or(usize::MAX)
}
