//! Random sequences of enqueues, failures, crashes, shutdowns and redrives: every accepted entry ends
//! in exactly one state, with its whole history, in order within its lane (J-14, Q-1).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tower_reprise::{
    delivery::worker::{Handler, WorkerBuilder, WorkerHandle},
    store::{
        MemoryStore,
        journal::{
            Entry, EntryCommand, EntryId, EventKind, Journal, NewEntry, Query, Settlement, Status,
        },
    },
};

use crate::{
    setup::{DAY, SECOND},
    support::number,
};

const LANES: [&str; 3] = ["a", "b", "c"];
const LEASE: Duration = Duration::from_secs(10);
const MAX_ATTEMPTS: u32 = 3;

/// One thing that the handler can do with an attempt.
#[derive(Clone, Copy)]
enum Fate {
    Complete,
    FailForNow,
    FailForGood,
    Panic,
}

const FATES: [Fate; 8] = [
    Fate::Complete,
    Fate::Complete,
    Fate::Complete,
    Fate::FailForNow,
    Fate::FailForNow,
    Fate::FailForNow,
    Fate::FailForGood,
    Fate::Panic,
];

/// Draws what becomes of each attempt, and notes the order in which they begin.
#[derive(Clone)]
struct Fateful {
    dice: Arc<Mutex<StdRng>>,
    begun: Arc<Mutex<Vec<(String, EntryId, u32)>>>,
}

impl Handler for Fateful {
    async fn handle(&self, entry: Entry) -> Settlement {
        let begun = (entry.lane.clone(), entry.id, entry.redrives);
        self.begun.lock().unwrap().push(begun);
        if entry.attempts > MAX_ATTEMPTS {
            return Settlement::failed("its workers died", DAY);
        }
        let (fate, takes) = {
            let mut dice = self.dice.lock().unwrap();
            let fate = FATES[dice.random_range(0..FATES.len())];
            (fate, Duration::from_millis(dice.random_range(0..3000)))
        };
        tokio::time::sleep(takes).await;
        match fate {
            Fate::Complete => Settlement::completed("", DAY),
            Fate::FailForNow if entry.attempts < MAX_ATTEMPTS => {
                Settlement::retry("transient", takes)
            }
            Fate::FailForNow => Settlement::failed("exhausted", DAY),
            Fate::FailForGood => Settlement::failed("permanent", DAY),
            Fate::Panic => panic!("as the dice say"),
        }
    }
}

/// The clock of a journal.
trait Clock {
    fn pass(&self, time: Duration) -> impl Future<Output = ()>;
}

/// Tokio's, which is paused.
struct Paused;

impl Clock for Paused {
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Entries that were accepted, and the acts on them since.
struct Sequence<J, C> {
    journal: J,
    clock: C,
    dice: StdRng,
    handler: Fateful,
    workers: Vec<WorkerHandle>,
    /// For each lane, the entries in order: a redriven one is behind those that came before.
    order: HashMap<&'static str, Vec<(EntryId, u32)>>,
    accepted: Vec<(EntryId, &'static str)>,
    redrives: HashMap<EntryId, u32>,
}

impl<J: Journal + Clone, C: Clock> Sequence<J, C> {
    fn new((journal, clock): (J, C), seed: u64) -> Self {
        Self {
            journal,
            clock,
            dice: StdRng::seed_from_u64(seed),
            handler: Fateful {
                dice: Arc::new(Mutex::new(StdRng::seed_from_u64(!seed))),
                begun: Arc::default(),
            },
            workers: Vec::new(),
            order: HashMap::new(),
            accepted: Vec::new(),
            redrives: HashMap::new(),
        }
    }

    fn start(&mut self) {
        let worker = WorkerBuilder::new(self.journal.clone(), "jobs", self.handler.clone())
            .in_order()
            .concurrency(4)
            .lease(LEASE);
        self.workers.push(worker.start().unwrap());
    }

    async fn enqueue(&mut self) {
        let lane = LANES[self.dice.random_range(0..LANES.len())];
        let new = NewEntry {
            lane: lane.to_owned(),
            ..NewEntry::new("jobs", "")
        };
        self.order.entry(lane).or_default().push((new.id, 0));
        self.accepted.push((new.id, lane));
        self.journal.enqueue(new).await.unwrap();
    }

    async fn redrive(&mut self) {
        let Some(n) = self.accepted.len().checked_sub(1) else {
            return;
        };
        let (id, lane) = self.accepted[self.dice.random_range(0..=n)];
        // Of two that are due at the same moment, the older one is first.
        self.clock.pass(Duration::from_millis(1)).await;
        let redriven = self.journal.command(id, EntryCommand::Redrive(DAY));
        if redriven.await.unwrap().unwrap().applied {
            let redrives = self.redrives.entry(id).or_default();
            *redrives += 1;
            self.order.entry(lane).or_default().push((id, *redrives));
        }
    }

    async fn step(&mut self) {
        match self.dice.random_range(0..16) {
            0..6 => self.enqueue().await,
            6..8 => self.redrive().await,
            8..10 if self.workers.len() < 3 => self.start(),
            // A crash: nothing is settled, and nothing given back.
            10 if !self.workers.is_empty() => drop(self.workers.swap_remove(0)),
            11 if !self.workers.is_empty() => {
                let grace = Duration::from_millis(self.dice.random_range(0..2000));
                self.workers.swap_remove(0).shutdown(grace).await;
            }
            _ => {
                let time = Duration::from_millis(self.dice.random_range(0..8000));
                self.clock.pass(time).await;
            }
        }
    }

    async fn run(mut self, steps: usize) {
        for _ in 0..steps {
            self.step().await;
        }
        self.start();
        for _ in 0..10_000 {
            let counts = self.journal.counts("jobs").await.unwrap();
            if counts.of(Status::Queued) + counts.of(Status::Processing) == 0 {
                return self.check().await;
            }
            self.clock.pass(SECOND).await;
        }
        panic!("not all have ended");
    }

    async fn check(&self) {
        let counts = self.journal.counts("jobs").await.unwrap();
        let ended = counts.of(Status::Completed) + counts.of(Status::Failed);
        assert_eq!(ended, self.accepted.len() as u64, "each ended");
        let mut letters = 0;
        for (id, _) in &self.accepted {
            let entry = self.journal.find(*id).await.unwrap().unwrap();
            letters += self.check_history(&entry);
        }
        let alerts = Query::new("reprise.alerts", u32::MAX);
        assert_eq!(self.journal.count(alerts).await.unwrap(), letters);
        for lane in LANES {
            self.check_order(lane);
        }
    }

    /// Each time that an entry was queued or redriven it came to one end. Returns its deaths.
    fn check_history(&self, entry: &Entry) -> u32 {
        let redrives = self.redrives.get(&entry.id).copied().unwrap_or_default();
        assert_eq!(entry.redrives, redrives);
        let ends = ["completed", "exhausted", "permanent", "its workers died"];
        let mut events = entry.history.iter();
        let mut deaths = 0;
        for redrive in 0..=redrives {
            let settled = events.find(|event| ends.contains(&&*event.note));
            let settled = settled.expect("an end");
            assert_eq!(settled.kind, EventKind::Settlement);
            let died = settled.note != "completed";
            deaths += u32::from(died);
            if redrive < redrives {
                assert!(died, "only a dead letter is redriven");
                let next = events.next().expect("a redrive");
                assert_eq!((next.kind, &*next.note), (EventKind::Command, "redriven"));
            } else {
                assert_eq!(died, entry.status == Status::Failed);
            }
        }
        assert_eq!(events.next(), None, "nothing comes after the end");
        assert!(entry.history.is_sorted_by_key(|event| event.at));
        deaths
    }

    /// An attempt begins when all entries before it in its lane have ended.
    fn check_order(&self, lane: &str) {
        let order = self.order.get(lane).map_or(&[][..], |order| order);
        let place = |id, redrives| {
            let mut places = order.iter().enumerate();
            let found = places.find(|(_, entry)| **entry == (id, redrives));
            found.expect("an entry that was accepted").0
        };
        let begun = self.handler.begun.lock().unwrap();
        let begun = begun.iter().filter(|(of, ..)| of == lane);
        let places: Vec<_> = begun.map(|(_, id, n)| place(*id, *n)).collect();
        assert!(places.is_sorted(), "lane {lane}: {places:?}");
    }
}

/// Runs a sequence for each of so many seeds, or of `REPRISE_SEQUENCES`, in a runtime of its own.
fn run<J: Journal + Clone, C: Clock>(seeds: u64, open: impl Fn() -> (J, C)) {
    for seed in 0..number("REPRISE_SEQUENCES").unwrap_or(seeds) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        println!("seed {seed}");
        runtime.block_on(async { Sequence::new(open(), seed).run(120).await });
    }
}

#[test]
fn j_14_any_sequence_ends_every_entry_once_and_in_order_in_memory() {
    run(200, || (MemoryStore::new(), Paused));
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::{
        path::Path,
        sync::atomic::{AtomicU64, Ordering},
        time::SystemTime,
    };

    use tower_reprise::store::{SqliteStore, journal::LeaseToken};

    use super::*;

    /// The clock of a file, which moves with tokio's.
    struct Moved {
        store: SqliteStore,
        micros: Arc<AtomicU64>,
    }

    fn open(folder: &Path) -> (SqliteStore, Moved) {
        let micros = Arc::new(AtomicU64::new(1_700_000_000_000_000));
        let clock = Arc::clone(&micros);
        let store = SqliteStore::builder().clock(move || {
            SystemTime::UNIX_EPOCH + Duration::from_micros(clock.load(Ordering::SeqCst))
        });
        let name = format!("{:016x}.db", rand::random::<u64>());
        let store = store.open(folder.join(name)).unwrap();
        (store.clone(), Moved { store, micros })
    }

    impl Clock for Moved {
        async fn pass(&self, time: Duration) {
            const STEP: Duration = Duration::from_millis(500);
            let mut left = time;
            while !left.is_zero() {
                let step = left.min(STEP);
                left -= step;
                let micros = u64::try_from(step.as_micros()).unwrap();
                self.micros.fetch_add(micros, Ordering::SeqCst);
                tokio::time::sleep(step).await;
                // The store answers in order: all requests before this one are answered.
                let nobody = (EntryId::random(), LeaseToken::new(1));
                let _ = self.store.extend(nobody.0, nobody.1, LEASE).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    }

    #[test]
    fn j_14_any_sequence_ends_every_entry_once_and_in_order_in_sqlite() {
        let name = format!("sequences-{:016x}", rand::random::<u64>());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        run(8, || open(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
