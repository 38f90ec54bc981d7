use std::{ops::Sub, time::Duration};

use super::breaker::nanos;

pub(super) const SLOTS: u64 = 20;
/// The calls from which on a share of them is shed. What fewer calls show may be chance.
const ENOUGH: u64 = 10;
/// The calls that are sent for each that is accepted, while others time out.
const FACTOR_OF_TIMEOUTS: f64 = 1.0;

/// Counts of the last while, in slots. Calls are not counted by slot: the value of the running
/// total when the slot began is enough.
#[derive(Debug, Default)]
pub(super) struct Window {
    slots: [Slot; SLOTS as usize],
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Slot {
    number: u64,
    calls_before: u64,
    pub(super) failures: u32,
    /// Calls that the dependency turned away as too many, which are no failures.
    pub(super) rejected: u32,
    /// Failures that are a sign of overload.
    pub(super) timed_out: u32,
    /// Calls that the throttle did not send.
    pub(super) shed: u32,
}

/// The sum of slots.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Calls that ended in a success or a failure.
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) rejected: u64,
    pub(super) timed_out: u64,
    pub(super) shed: u64,
}

/// The outcomes of a dependency's calls in the window of its breaker (`breaker.window`, 30 s by
/// default). Results that say nothing about its health are in none of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowCounts {
    /// Calls that ended in a success or a failure.
    pub calls: u64,
    /// Failures.
    pub failures: u64,
    /// Failures since the last success, however long ago that was.
    pub failures_in_a_row: u64,
    /// Calls that it turned away as too many, which are neither success nor failure.
    pub rejected: u64,
    /// Failures that are a sign of overload.
    pub timed_out: u64,
    /// Calls that the throttle did not send.
    pub shed: u64,
}

impl Window {
    /// Begins a slot, unless it has begun. Returns whether it begins.
    pub(super) fn begin(&mut self, number: u64, calls_before: u64) -> bool {
        let slot = &mut self.slots[(number % SLOTS) as usize];
        let begins = slot.number < number;
        if begins {
            *slot = Slot {
                number,
                calls_before,
                ..Slot::default()
            };
        }
        begins
    }

    /// Returns a slot that has begun, unless a later one has taken its place.
    pub(super) fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let slot = &mut self.slots[(number % SLOTS) as usize];
        (slot.number == number).then_some(slot)
    }

    /// Returns whether no slot is later than this one.
    #[cfg(reprise_loom)]
    pub(super) fn is_up_to(&self, number: u64) -> bool {
        self.slots.iter().all(|slot| slot.number <= number)
    }

    /// Sums the newest slots up to this one, given the running total of calls.
    pub(super) fn sum(&self, number: u64, slots: u64, calls: u64) -> Counts {
        let recent = self
            .slots
            .iter()
            .filter(|slot| slot.number + slots > number);
        let none = (Counts::default(), calls);
        let (counts, before) = recent.fold(none, |(mut counts, before), slot| {
            counts.failures += u64::from(slot.failures);
            counts.rejected += u64::from(slot.rejected);
            counts.timed_out += u64::from(slot.timed_out);
            counts.shed += u64::from(slot.shed);
            (counts, before.min(slot.calls_before))
        });
        Counts {
            calls: calls.saturating_sub(before),
            ..counts
        }
    }
}

impl Counts {
    /// Returns the share of calls that is not sent, so that not more than `factor` are sent for each
    /// that is accepted (Google's "Site Reliability Engineering", chapter 21). Calls that time out
    /// cost the dependency as much as those that it serves, so for them the factor is smaller.
    pub(super) fn shed_share(&self, factor: f64) -> f64 {
        let accepted = self.calls.saturating_sub(self.timed_out) as f64;
        let share = |others: u64, factor: f64| {
            let all = accepted + others as f64;
            ((all - factor * accepted) / (all + 1.0)).max(0.0)
        };
        let turned_away = share(self.rejected + self.timed_out + self.shed, factor);
        match self.timed_out {
            0 => turned_away,
            timed_out => turned_away.max(share(timed_out + self.shed, FACTOR_OF_TIMEOUTS)),
        }
    }

    /// Returns whether there is a sign of overload, and calls enough to tell it from chance.
    pub(super) fn shows_overload(&self) -> bool {
        self.has_signs() && self.calls + self.rejected + self.shed >= ENOUGH
    }

    /// Returns whether there is any sign of overload.
    pub(super) fn has_signs(&self) -> bool {
        self.rejected + self.timed_out > 0
    }

    /// Returns the counts with a part of those of the time before, as a window that glides has.
    pub(super) fn and_part_of(self, before: Self, part: f64) -> Self {
        let sum = |now: u64, before: u64| now + (before as f64 * part).round() as u64;
        Self {
            calls: sum(self.calls, before.calls),
            failures: sum(self.failures, before.failures),
            rejected: sum(self.rejected, before.rejected),
            timed_out: sum(self.timed_out, before.timed_out),
            shed: sum(self.shed, before.shed),
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, part: Self) -> Self {
        Self {
            calls: self.calls - part.calls,
            failures: self.failures - part.failures,
            rejected: self.rejected - part.rejected,
            timed_out: self.timed_out - part.timed_out,
            shed: self.shed - part.shed,
        }
    }
}

/// Returns the length of a slot.
pub(super) fn width(window: Duration) -> u64 {
    nanos(window) / SLOTS
}
