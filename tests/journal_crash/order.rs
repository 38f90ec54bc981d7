//! J-5, J-7: several processes work off one queue.

use std::{collections::HashMap, time::Duration};

use tower_reprise::{
    delivery::worker::{Handler, Worker},
    store::journal::{
        Enqueued, Entry, EntryCommand, Journal, NewEntry, Priority, Settlement, Status,
    },
};

use crate::{
    backend::{Backend, Site},
    ledger::Ledger,
    support::{
        database::eventually,
        process::{listen, say},
    },
};

const ENTRIES: usize = 150;
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Writes down what is begun and ended, and by whom.
struct Recorder {
    ledger: Ledger,
    life: String,
}

impl Recorder {
    fn write(&self, what: &str, entry: &Entry) {
        let (priority, sequence) = (entry.priority as u8, entry.sequence);
        let line = format!("{what} {} {priority} {sequence}", self.life);
        self.ledger.write(&line);
    }
}

impl Handler for Recorder {
    async fn handle(&self, entry: Entry) -> Settlement {
        self.write("begin", &entry);
        // So that everybody gets something to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.write("end", &entry);
        Settlement::completed(self.life.clone(), HOUR)
    }
}

/// A process that does one entry after the other.
pub(crate) async fn drain<B: Backend>(site: &Site, life: &str) {
    let store = B::open(&site.address).await;
    let ledger = Ledger::open(&site.ledger);
    let handler = Recorder {
        ledger: ledger.clone(),
        life: life.to_owned(),
    };
    say("ready");
    listen();
    ledger.write(&format!("end {life}"));
    let worker = Worker::builder(store, "drain", handler).concurrency(1);
    let worker = worker.lease(site.lease).poll(Duration::from_millis(20));
    let _working = worker.start().unwrap();
    std::future::pending::<()>().await;
}

/// So many processes, and somebody who cancels.
pub(crate) async fn in_order<B: Backend>(address: &str, processes: usize) {
    let site = Site::new(address, "", Duration::from_secs(60));
    let store = B::open(address).await;
    let mut entries = Vec::new();
    for number in 0..ENTRIES {
        let priority = [Priority::High, Priority::Normal, Priority::Low][number * 7 % 3];
        let entry = NewEntry {
            priority,
            ..NewEntry::new("drain", "")
        };
        match store.enqueue(entry).await.unwrap() {
            Enqueued::New(entry) => entries.push(entry),
            other => panic!("{other:?}"),
        }
    }
    let mut children = Vec::new();
    for n in 0..processes {
        let mut child = site.start::<B>("drain", &format!("{n}"), "");
        child.expect("ready").await;
        children.push(child);
    }
    for child in &mut children {
        child.tell().await;
    }
    let mut cancelled = Vec::new();
    for entry in entries.iter().rev().step_by(3) {
        let steered = store
            .command(entry.id, EntryCommand::Cancel(HOUR))
            .await
            .unwrap();
        let steered = steered.expect("it is there");
        let is = (steered.applied, steered.entry.status == Status::Cancelled);
        assert!(matches!(is, (true, true) | (false, false)), "{steered:?}");
        if steered.applied {
            cancelled.push(entry.sequence);
        }
    }
    assert!(!cancelled.is_empty(), "the last ones are not begun at once");
    eventually("all is done", async || {
        let counts = store.counts("drain").await.unwrap();
        counts.of(Status::Queued) + counts.of(Status::Processing) == 0
    })
    .await;
    drop(children);
    check(&site, &entries, &cancelled);
    for entry in entries {
        let found = store.find(entry.id).await.unwrap().unwrap();
        let expected = match cancelled.contains(&entry.sequence) {
            true => (Status::Cancelled, 0, 0),
            false => (Status::Completed, 1, 1),
        };
        let is = (found.status, found.attempts, found.turn.get());
        assert_eq!(is, expected, "once, and by one: {found:?}");
    }
}

/// Nobody can say when exactly a lease happened, but each who leases one entry at a time does so
/// between the end of the one before and the beginning of this one. Who begins an entry when an
/// earlier one is leased only after that has passed over it.
fn check(site: &Site, entries: &[Entry], cancelled: &[u64]) {
    let lines = Ledger::read(&site.ledger);
    let number = |word: &String| word.parse::<u64>().unwrap();
    // When who was ready for the next one, and what was begun when.
    let mut ready: HashMap<&str, usize> = HashMap::new();
    let mut begun = Vec::new();
    for (at, words) in lines.iter().enumerate() {
        match &*words[0] {
            "begin" => {
                let order = (number(&words[2]), number(&words[3]));
                begun.push((order, ready[&*words[1]], at, &*words[1]));
            }
            _ => _ = ready.insert(&words[1], at),
        }
    }
    for (order, asked, _, _) in &begun {
        for (other, _, at, _) in &begun {
            assert!(
                order >= other || asked < at,
                "{order:?} was passed over for {other:?}"
            );
        }
    }
    let mut did: Vec<u64> = begun.iter().map(|((_, sequence), ..)| *sequence).collect();
    did.extend(cancelled);
    did.sort_unstable();
    let expected: Vec<u64> = entries.iter().map(|it| it.sequence).collect();
    assert_eq!(did, expected, "each once, or cancelled");
    let share = |life: &str| begun.iter().filter(|it| it.3 == life).count();
    let idle = ready.keys().filter(|life| share(life) == 0).count();
    assert!(idle < ready.len() - 1, "only one did anything");
}
