/// Calls that the history remembers, roughly: beyond it, all counts are halved.
const MEMORY: u32 = 256;
/// Calls that are taken to have failed before the first one, so that little knowledge is not taken
/// for a good record.
const DOUBT: u64 = 4;
/// The successes that a run of failures must have been expected to bring. None came by chance in one
/// of e⁹ = 8,000 such runs.
const EXPECTED: u64 = 9;

/// The present run of failures, and the record of the calls before it. It tells a dependency that is
/// down from one that fails often: in the first no call succeeds, in the second none does now and
/// then, by chance.
#[derive(Debug, Default)]
pub(super) struct History {
    calls: u32,
    successes: u32,
    /// Failures since the last success.
    run: u64,
    /// The time of the first of them.
    began: u64,
    /// The running total of calls after the last failure. Calls beyond it succeeded.
    seen: u64,
}

impl History {
    /// Begins with this running total of calls.
    pub(super) fn from(calls: u64) -> Self {
        Self {
            seen: calls,
            ..Self::default()
        }
    }

    /// Records a failure, after which the running total is `calls`.
    pub(super) fn failed(&mut self, calls: u64, now: u64) {
        let succeeded = calls.saturating_sub(self.seen).saturating_sub(1);
        if succeeded > 0 {
            self.end_run(succeeded);
        }
        if self.run == 0 {
            self.began = now;
        }
        self.run += 1;
        self.seen = calls;
    }

    /// Records a success that is not in the running total, which ends the run.
    pub(super) fn succeeded(&mut self, calls: u64) {
        self.end_run(1);
        self.seen = calls;
    }

    fn end_run(&mut self, succeeded: u64) {
        let clamp = |count: u64| u32::try_from(count).unwrap_or(MEMORY).min(MEMORY);
        let (failures, successes) = (clamp(self.run), clamp(succeeded));
        self.calls += failures + successes;
        self.successes += successes;
        while self.calls > MEMORY {
            self.calls /= 2;
            self.successes = self.successes.div_ceil(2);
        }
        self.run = 0;
    }

    /// Returns the failures since the last success.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// Returns the time since the first failure of the run.
    pub(super) fn lasts(&self, now: u64) -> u64 {
        now.saturating_sub(self.began)
    }

    /// Returns whether the run is longer than chance explains, by the record before it. Without a
    /// record it may be anything.
    pub(super) fn is_no_chance(&self) -> bool {
        let expected = self.run.saturating_mul(u64::from(self.successes));
        self.successes == 0 || expected >= EXPECTED * (u64::from(self.calls) + DOUBT)
    }
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use super::*;

    /// Returns the failures in a row that are more than chance, after a record of this share.
    fn needed(successes: u64, of: u64) -> u64 {
        let mut history = History::default();
        let mut calls = 0;
        for round in 0..of * 20 {
            calls += 1;
            if round % of >= successes {
                history.failed(calls, 0);
            }
        }
        calls += 1;
        (1..)
            .find(|run| {
                history.failed(calls + run, 0);
                history.is_no_chance()
            })
            .unwrap_or_default()
    }

    #[test]
    fn cb_8_a_worse_record_takes_a_longer_run() {
        for (of, least, most) in [(1, 10, 11), (2, 18, 22), (4, 36, 44), (100, 600, 2400)] {
            let needed = needed(1, of);
            assert!((least..=most).contains(&needed), "1 of {of}: {needed}");
        }
    }

    #[test]
    fn cb_8_without_a_record_any_run_counts() {
        let mut history = History::from(7);
        history.failed(8, 0);
        assert!(history.is_no_chance());
        history.succeeded(8);
        history.failed(9, 0);
        assert!(!history.is_no_chance(), "one success is a record");
    }
}
