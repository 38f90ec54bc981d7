//! The effects of operations, and the replies that callers got.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tower_reprise::store::RecordKey;

/// The world outside of the servers, which no crash undoes.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Account>>);

pub(crate) struct Account {
    /// Effects by operation, each with the token of its execution.
    pub(crate) effects: BTreeMap<usize, Vec<u64>>,
    /// Writes of owners that had lost their lease.
    pub(crate) fenced: usize,
    /// Keys that came with an operation.
    pub(crate) keys: BTreeMap<usize, Vec<String>>,
    /// The record of an operation.
    pub(crate) records: BTreeMap<usize, RecordKey>,
    /// Executions whose end the store has taken, by their record and token.
    pub(crate) settled: HashSet<(RecordKey, u64)>,
    /// Executions that were begun.
    pub(crate) begun: usize,
    /// The outcomes of the clients' calls, by operation.
    pub(crate) told: BTreeMap<usize, Told>,
    /// The replies to repeats after the run, by operation.
    pub(crate) audited: BTreeMap<usize, Reply>,
    /// Clocks that are to leap.
    pub(crate) leaps: Vec<(&'static str, Duration)>,
    /// The time that each of the next executions takes before and after its effect, in
    /// milliseconds.
    pub(crate) script: VecDeque<(u64, u64)>,
    random: StdRng,
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) took: Duration,
    pub(crate) attempts: u32,
    pub(crate) reply: Result<Reply, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    /// None if it did not come to its end.
    pub(crate) body: Option<String>,
}

impl Witness {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Account {
            effects: BTreeMap::new(),
            fenced: 0,
            keys: BTreeMap::new(),
            records: BTreeMap::new(),
            settled: HashSet::new(),
            begun: 0,
            told: BTreeMap::new(),
            audited: BTreeMap::new(),
            leaps: Vec::new(),
            script: VecDeque::new(),
            random: StdRng::seed_from_u64(!seed),
        })))
    }

    pub(crate) fn look(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap()
    }
}

impl Account {
    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.random.random_range(0..below)
    }

    /// Whether the store has taken the end of the execution that a reply is of.
    pub(crate) fn is_settled(&self, operation: usize, reply: &Reply) -> bool {
        let token = reply.body.as_ref().and_then(|token| token.parse().ok());
        let execution = self.records.get(&operation).copied().zip(token);
        execution.is_some_and(|execution| self.settled.contains(&execution))
    }

    /// An effect. If it is fenced, one of an older execution than the last is refused.
    pub(crate) fn write(&mut self, operation: usize, token: u64, fenced: bool) -> bool {
        let effects = self.effects.entry(operation).or_default();
        if fenced && effects.last().is_some_and(|last| *last > token) {
            self.fenced += 1;
            return false;
        }
        effects.push(token);
        true
    }
}

/// Prints the part that is the same whenever a run is repeated. Tokens differ, only their order is
/// the same.
impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = self.look();
        for (operation, told) in &account.told {
            let effects = account.effects.get(operation).map_or(0, Vec::len);
            let audited = account.audited.get(operation);
            let audited = audited.map(|reply| (reply.status, reply.replayed));
            let reply = told
                .reply
                .as_ref()
                .map(|reply| (reply.status, reply.replayed));
            writeln!(
                f,
                "{operation}: {reply:?} after {} attempts and {:?}, {effects} effects, {audited:?}",
                told.attempts, told.took,
            )?;
        }
        Ok(())
    }
}
