//! The invariants that hold in every run.

use tower_reprise::store::CrashPolicy;

use crate::{
    ledger::{Account, Reply, Witness},
    schedule::{Operation, Schedule, TICK, TOTAL},
};

/// Counts of the events that were seen, so that schedules under which nothing happens prove
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) operations: usize,
    pub(crate) acknowledged: usize,
    pub(crate) given_up: usize,
    pub(crate) retried: usize,
    /// Cut off by the deadline.
    pub(crate) cut_off: usize,
    /// Acknowledged by a reply that was replayed: the first one got lost.
    pub(crate) replayed: usize,
    /// Took effect, and the caller does not know.
    pub(crate) unheard: usize,
    pub(crate) unknown: usize,
    pub(crate) executed_again: usize,
    pub(crate) fenced: usize,
    /// Acknowledged by an owner that could not tell the store.
    pub(crate) unsettled: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.acknowledged += other.acknowledged;
        self.given_up += other.given_up;
        self.retried += other.retried;
        self.cut_off += other.cut_off;
        self.replayed += other.replayed;
        self.unheard += other.unheard;
        self.unknown += other.unknown;
        self.executed_again += other.executed_again;
        self.fenced += other.fenced;
        self.unsettled += other.unsettled;
    }

    pub(crate) fn saw_it_all(&self) {
        assert!(self.acknowledged > self.operations / 2, "{self:?}");
        let seen = [
            self.given_up,
            self.retried,
            self.cut_off,
            self.replayed,
            self.unheard,
        ];
        assert!(seen.iter().all(|seen| *seen > 0), "{self:?}");
    }
}

pub(crate) fn judge(schedule: &Schedule, witness: &Witness) -> Result<Tally, String> {
    let account = witness.look();
    let mut tally = Tally {
        fenced: account.fenced,
        ..Tally::default()
    };
    for operation in &schedule.operations {
        let judged = judge_one(schedule, operation, &account, &mut tally);
        judged.map_err(|error| {
            let number = operation.number;
            let told = &account.told.get(&number);
            let effects = &account.effects.get(&number);
            let audited = &account.audited.get(&number);
            format!("operation {number}: {error}: {told:?}, effects {effects:?}, {audited:?}")
        })?;
    }
    Ok(tally)
}

fn that(holds: bool, otherwise: &str) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| otherwise.to_owned())
}

fn judge_one(
    schedule: &Schedule,
    operation: &Operation,
    account: &Account,
    tally: &mut Tally,
) -> Result<(), String> {
    let number = operation.number;
    let told = account.told.get(&number).ok_or("it never ended")?;
    let effects = account.effects.get(&number).map_or(&[][..], Vec::as_slice);
    let keys = account.keys.get(&number).map_or(&[][..], Vec::as_slice);
    let acknowledged = told.reply.as_ref().ok().filter(|reply| reply.status == 201);

    that(told.took <= TOTAL + TICK, "it ended too late")?;
    that(told.attempts <= 4, "too many attempts")?;
    that(keys.windows(2).all(|pair| pair[0] == pair[1]), "two keys")?;
    that(
        schedule.crash_policy == CrashPolicy::Reexecute || effects.len() <= 1,
        "it took effect twice",
    )?;
    that(
        effects.windows(2).all(|pair| pair[0] < pair[1]),
        "an owner wrote that had lost its lease",
    )?;
    if let Some(reply) = acknowledged {
        that(is_among(effects, reply), "acknowledged, and not done")?;
    }
    match account.audited.get(&number) {
        None => that(effects.is_empty(), "done by nobody")?,
        Some(audited) => judge_audit(schedule, effects, audited)?,
    }
    // An owner that is cut off from its store acknowledges all the same (I-22), and is an orphan if
    // that lasts for longer than its lease. What the store has taken stands.
    if let Some(reply) = acknowledged {
        let settled = account.is_settled(number, reply);
        tally.unsettled += usize::from(!settled && reply.body.is_some());
        let audited = account.audited.get(&number);
        let stands = |audited: &Reply| {
            audited.status == 201 && audited.replayed && audited.body == reply.body
        };
        that(
            !settled || audited.is_some_and(stands),
            "who asks again is told something else",
        )?;
    }

    let unknown = account.audited.get(&number);
    let unknown = unknown.is_some_and(|reply| reply.says("outcome-unknown"));
    tally.operations += 1;
    tally.acknowledged += usize::from(acknowledged.is_some());
    tally.given_up += usize::from(told.reply.is_err());
    tally.cut_off += usize::from(told.took >= TOTAL);
    tally.retried += usize::from(told.attempts > 1);
    tally.replayed += usize::from(acknowledged.is_some_and(|reply| reply.replayed));
    tally.unheard += usize::from(acknowledged.is_none() && !effects.is_empty());
    tally.unknown += usize::from(unknown);
    tally.executed_again += usize::from(effects.len() > 1);
    Ok(())
}

/// Whether the execution that a reply is of took effect. What a reply did not say can't be wrong.
fn is_among(effects: &[u64], reply: &Reply) -> bool {
    match &reply.body {
        Some(token) => effects.iter().any(|effect| effect.to_string() == *token),
        None => !effects.is_empty(),
    }
}

/// Checks that the reply to a repeat after the run is true.
fn judge_audit(schedule: &Schedule, effects: &[u64], audited: &Reply) -> Result<(), String> {
    let last = effects.last().map(u64::to_string);
    match (audited.status, schedule.crash_policy) {
        (201 | 500, _) => that(
            audited.body == last,
            "another effect than the reply tells of",
        ),
        (409, CrashPolicy::Unknown) if audited.says("outcome-unknown") => Ok(()),
        (409, CrashPolicy::Reexecute) if !audited.replayed => Ok(()),
        _ => Err("an answer that does not fit".into()),
    }
}
