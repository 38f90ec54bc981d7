//! The requests and their outcomes, as seen from outside of the layers.

use std::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

use tokio::time::Instant;

use crate::{
    DEPENDENCIES, KEYS,
    report::Report,
    table::{Figure, Table},
};

/// The budget's: in any 30 s, a fifth of the originals or ten. What is sent is sent a moment after it
/// was granted, and seconds here are whole ones; so what is held against that is retries of a bit less
/// than 30 s, and originals of a bit more.
const RETRIED_IN: u64 = 29;
const CALLED_IN: u64 = 32;
const FLOOR: f64 = 10.0;
const RATIO: f64 = 0.2;

/// The outcome of a call, in the order of the outcomes' names.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Served,
    Replayed,
    Failed,
    Refused,
    Broken,
    HungUp,
}

const ENDS: [&str; 6] = [
    "served",
    "from the store",
    "a reply that says no",
    "refused by a layer",
    "an error",
    "the customer hung up",
];

pub(crate) struct Witness {
    started: Instant,
    /// One for each dependency, and one for the names that are none.
    accounts: Vec<Mutex<Account>>,
    ends: [AtomicU64; ENDS.len()],
    originals: AtomicU64,
    retries: AtomicU64,
    /// Retries over what was allowed, in millionths; the most there was.
    worst: AtomicU64,
    /// The next key that was not used yet.
    next_key: AtomicUsize,
    /// The number of executions of each key that took effect.
    executed: Vec<AtomicU8>,
    executed_again: AtomicU64,
    wrong_replies: AtomicU64,
    no_room: AtomicU64,
}

/// Calls and retries by second.
#[derive(Default)]
struct Account([(u64, u64, u64); CALLED_IN as usize]);

impl Account {
    fn of(&mut self, second: u64) -> &mut (u64, u64, u64) {
        let place = &mut self.0[(second % CALLED_IN) as usize];
        if place.0 != second {
            *place = (second, 0, 0);
        }
        place
    }

    fn since(&self, first: u64, what: fn(&(u64, u64, u64)) -> u64) -> u64 {
        let recent = self.0.iter().filter(|(second, ..)| *second >= first);
        recent.map(what).sum()
    }
}

/// The name of a dependency.
pub(crate) fn name(dependency: usize) -> String {
    format!("d-{dependency}.soak")
}

/// Which one has that name.
pub(crate) fn number(host: &str) -> Option<usize> {
    host.strip_prefix("d-")?.strip_suffix(".soak")?.parse().ok()
}

impl Witness {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            accounts: (0..=DEPENDENCIES).map(|_| Mutex::default()).collect(),
            ends: Default::default(),
            originals: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            worst: AtomicU64::new(0),
            next_key: AtomicUsize::new(0),
            executed: (0..KEYS).map(|_| AtomicU8::new(0)).collect(),
            executed_again: AtomicU64::new(0),
            wrong_replies: AtomicU64::new(0),
            no_room: AtomicU64::new(0),
        }
    }

    /// A call begins.
    pub(crate) fn called(&self, host: &str) {
        self.originals.fetch_add(1, Ordering::Relaxed);
        self.account(host, |account, second| account.of(second).1 += 1);
    }

    /// A request goes out that went out before.
    pub(crate) fn retried(&self, host: &str) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        self.account(host, |account, second| {
            account.of(second).2 += 1;
            let retries = account.since((second + 1).saturating_sub(RETRIED_IN), |place| place.2);
            let calls = account.since((second + 1).saturating_sub(CALLED_IN), |place| place.1);
            let allowed = (calls as f64 * RATIO).max(FLOOR);
            let share = retries as f64 / allowed * 1e6;
            self.worst.fetch_max(share as u64, Ordering::Relaxed);
        });
    }

    fn account(&self, host: &str, change: impl FnOnce(&mut Account, u64)) {
        let number = number(host).unwrap_or(DEPENDENCIES);
        let second = self.started.elapsed().as_secs();
        change(&mut self.accounts[number].lock().expect("no panic"), second);
    }

    pub(crate) fn ended(&self, end: End) {
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A key that was not used yet, while there are any.
    pub(crate) fn unused_key(&self) -> Option<usize> {
        let next = self.next_key.fetch_add(1, Ordering::Relaxed);
        (next < KEYS).then_some(next)
    }

    pub(crate) fn all_keys_were_used(&self) -> bool {
        self.next_key.load(Ordering::Relaxed) >= KEYS
    }

    /// The order of that key takes effect.
    pub(crate) fn executes(&self, key: usize) {
        if self.executed[key].fetch_add(1, Ordering::Relaxed) > 0 {
            self.executed_again.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn wrong_reply(&self) {
        self.wrong_replies.fetch_add(1, Ordering::Relaxed);
    }

    /// The store had no room for another key.
    pub(crate) fn no_room(&self) {
        self.no_room.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.originals.load(Ordering::Relaxed)
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new("how calls ended", ["calls", "of all"]);
        let ends = self.ends.each_ref().map(|end| end.load(Ordering::Relaxed));
        let all: u64 = ends.iter().sum();
        for (name, count) in ENDS.iter().zip(ends) {
            let share = count as f64 / all.max(1) as f64;
            table.row(*name, vec![Figure::Count(count), Figure::Percent(share)]);
        }
        table
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let keys = self.executed.iter();
        let keys = keys.filter(|key| key.load(Ordering::Relaxed) > 0).count();
        report.note("calls", load(&self.originals));
        report.note("retries", load(&self.retries));
        for (name, count) in ENDS.iter().zip(&self.ends) {
            report.note(&name.replace(' ', "_"), load(count));
        }
        // A soak in which nothing happens shows nothing.
        report.at_least("keys_executed", keys as f64, KEYS as f64 * 0.9);
        report.at_least("store_had_no_room", load(&self.no_room), 1.0);
        report.at_least(
            "retries_over_calls",
            load(&self.retries) / load(&self.originals),
            0.01,
        );
        report.at_most("budget_used_at_worst", load(&self.worst) / 1e6, 1.0);
        report.at_most("executed_twice", load(&self.executed_again), 0.0);
        report.at_most("wrong_replies", load(&self.wrong_replies), 0.0);
    }
}

/// Where it stands, in a few words.
pub(crate) fn shown(witness: &Witness) -> String {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let retries = load(&witness.retries) as f64 / witness.calls().max(1) as f64;
    let served =
        load(&witness.ends[End::Served as usize]) + load(&witness.ends[End::Replayed as usize]);
    let all: u64 = witness.ends.iter().map(load).sum();
    let served = served as f64 / all.max(1) as f64;
    format!(
        "{:.1} % served, {:.3} retries a call",
        served * 100.0,
        retries
    )
}
