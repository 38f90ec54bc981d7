//! The effects of operations and the answers to their callers, apart from any store.

use std::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use tower_reprise::{
    delivery::replay::ReplayId,
    store::{CrashPolicy, journal::Status},
};

use crate::report::Report;

/// The most operations of a run. All memory is taken at the start, so that a ledger does not grow.
const OPERATIONS: usize = 1 << 21;
const REPLAYS: usize = 1 << 18;
/// The answer to a caller is the number of an execution, or one of these.
const NONE: u32 = 0;
const OUTCOME_UNKNOWN: u32 = u32::MAX;
const ACCEPTED: u32 = u32::MAX - 1;

/// A service that operations go to, by its lease and crash policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The lease outlasts each outage, and orphans are executed again: there are none, so nothing is
    /// executed twice. With a shorter lease that policy allows two effects.
    Reexecute,
    /// The same, with orphans left alone: no outcome may be unknown either.
    Unknown,
    /// The lease is shorter than most outages, and orphans are left alone: an outcome may be unknown
    /// to the caller, and still there is no second effect.
    ShortLease,
    /// Behind a journal, which takes half of the requests.
    Journaled,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [
        Self::Reexecute,
        Self::Unknown,
        Self::ShortLease,
        Self::Journaled,
    ];

    pub(crate) fn crash_policy(self) -> CrashPolicy {
        match self {
            Self::Reexecute | Self::Journaled => CrashPolicy::Reexecute,
            Self::Unknown | Self::ShortLease => CrashPolicy::Unknown,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reexecute => "reexecute",
            Self::Unknown => "unknown",
            Self::ShortLease => "short_lease",
            Self::Journaled => "journaled",
        }
    }
}

/// The final answer to a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// The execution whose reply it got.
    Executed(u32),
    OutcomeUnknown,
    /// In the journal, see [`Replayed`].
    Accepted,
}

/// A replay that was accepted, and the first terminal status that was seen of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed {
    pub(crate) operation: u32,
    pub(crate) id: ReplayId,
    pub(crate) status: Status,
}

pub(crate) struct Ledger {
    operations: AtomicU32,
    executions: AtomicU32,
    kinds: Box<[AtomicU8]>,
    /// The number of effects of each operation, and the execution that made the last one.
    effects: Box<[AtomicU8]>,
    executed_by: Box<[AtomicU32]>,
    answers: Box<[AtomicU32]>,
    replays: Mutex<Vec<Replayed>>,
    pub(crate) answered: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) hung_up: AtomicU64,
    /// Replies that nobody expects.
    pub(crate) unexpected: AtomicU64,
    /// Answers to repeats after the run that are not the first answer.
    pub(crate) changed: AtomicU64,
    /// Operations under a short lease that were acknowledged, and whose outcome is unknown to the store.
    pub(crate) orphaned: AtomicU64,
}

fn zeros<T: Default>() -> Box<[T]> {
    (0..OPERATIONS).map(|_| T::default()).collect()
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            operations: AtomicU32::new(0),
            executions: AtomicU32::new(0),
            kinds: zeros(),
            effects: zeros(),
            executed_by: zeros(),
            answers: zeros(),
            replays: Mutex::new(Vec::with_capacity(REPLAYS)),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            hung_up: AtomicU64::new(0),
            unexpected: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            orphaned: AtomicU64::new(0),
        }
    }

    /// Returns the number of a new operation.
    pub(crate) fn begin(&self, kind: Kind) -> u32 {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        self.kinds[operation as usize].store(kind as u8, Ordering::Relaxed);
        operation
    }

    /// Returns the number of the execution that makes this effect.
    pub(crate) fn take_effect(&self, operation: u32) -> u32 {
        let execution = self.executions.fetch_add(1, Ordering::Relaxed) + 1;
        self.effects[operation as usize].fetch_add(1, Ordering::Relaxed);
        self.executed_by[operation as usize].store(execution, Ordering::Relaxed);
        execution
    }

    pub(crate) fn answer(&self, operation: u32, answer: Answer) {
        let answer = match answer {
            Answer::Executed(execution) => execution,
            Answer::OutcomeUnknown => OUTCOME_UNKNOWN,
            Answer::Accepted => ACCEPTED,
        };
        self.answers[operation as usize].store(answer, Ordering::Relaxed);
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, replayed: Replayed) {
        self.replays.lock().expect("no panic").push(replayed);
    }

    pub(crate) fn replays(&self) -> Vec<Replayed> {
        self.replays.lock().expect("no panic").clone()
    }

    /// Returns each operation whose caller got the reply of an execution, with that.
    pub(crate) fn acknowledged(&self) -> Vec<(u32, Kind, u32)> {
        let all = 0..self.operations.load(Ordering::Relaxed);
        all.filter_map(|operation| {
            let answer = self.answers[operation as usize].load(Ordering::Relaxed);
            let executed = !matches!(answer, NONE | OUTCOME_UNKNOWN | ACCEPTED);
            executed.then(|| (operation, self.kind(operation), answer))
        })
        .collect()
    }

    fn kind(&self, operation: u32) -> Kind {
        Kind::ALL[self.kinds[operation as usize].load(Ordering::Relaxed) as usize]
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        let (mut lost, mut twice, mut wrong) = (0, 0, 0);
        let mut ends = [[0_u32; 3]; Kind::ALL.len()];
        let operations = self.operations.load(Ordering::Relaxed);
        for operation in 0..operations {
            let place = operation as usize;
            let effects = self.effects[place].load(Ordering::Relaxed);
            let answer = self.answers[place].load(Ordering::Relaxed);
            let ends = &mut ends[self.kind(operation) as usize];
            twice += u32::from(effects > 1);
            match answer {
                NONE => lost += 1,
                OUTCOME_UNKNOWN => ends[1] += 1,
                // A replay that failed without an effect is a dead letter, which is not lost.
                ACCEPTED => ends[2] += 1,
                execution => {
                    ends[0] += 1;
                    lost += u32::from(effects == 0);
                    let executed_by = self.executed_by[place].load(Ordering::Relaxed);
                    wrong += u32::from(effects > 0 && executed_by != execution);
                }
            }
        }
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        report.note("operations", f64::from(operations));
        report.note("refusals", load(&self.refused));
        report.note("hang_ups", load(&self.hung_up));
        for kind in Kind::ALL {
            let [executed, unknown, _] = ends[kind as usize];
            let name = kind.name();
            report.at_least(&format!("{name}_acknowledged"), f64::from(executed), 100.0);
            let allowed = if kind == Kind::ShortLease { 1e9 } else { 0.0 };
            report.at_most(&format!("{name}_unknown"), f64::from(unknown), allowed);
        }
        self.judge_replays(report, ends[Kind::Journaled as usize][2]);
        report.at_most("lost", f64::from(lost), 0.0);
        report.at_most("twice", f64::from(twice), 0.0);
        report.at_most("wrong_replies", f64::from(wrong), 0.0);
        report.note("short_lease_orphaned", load(&self.orphaned));
        report.at_most("changed_answers", load(&self.changed), 0.0);
        report.at_most("unexpected_replies", load(&self.unexpected), 0.0);
    }

    fn judge_replays(&self, report: &mut Report, accepted: u32) {
        let (mut completed, mut dead, mut wrong) = (0, 0, 0);
        let replays = self.replays();
        for replayed in &replays {
            let effects = self.effects[replayed.operation as usize].load(Ordering::Relaxed);
            match (replayed.status, effects) {
                (Status::Completed, 1) => completed += 1,
                (Status::Failed, 0) => dead += 1,
                _ => wrong += 1,
            }
        }
        report.note("replays_accepted", f64::from(accepted));
        report.at_least("replays_completed", f64::from(completed), 100.0);
        report.note("replays_dead", f64::from(dead));
        let ended = replays.len() as f64;
        report.at_most("replays_lost", f64::from(accepted) - ended, 0.0);
        report.at_most("replays_wrong", f64::from(wrong), 0.0);
    }
}
