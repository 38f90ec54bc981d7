use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower_reprise::{
    Dependencies, Policy,
    delivery::{
        dead_letter::{DeadLetterLayer, DeadLetters, Letter, LogAlert},
        worker::{Admission, Handler, WorkerBuilder},
    },
    policy::PolicyBuilder,
    store::{
        MemoryStore,
        journal::{
            Entry, EntryCommand, Journal, LeaseRequest, NewEntry, Query, Settlement, Status,
        },
    },
};

use crate::setup::{DAY, SECOND, ended, find};

/// Takes as long as the payload says, in seconds, and counts.
#[derive(Clone, Default)]
struct Slow {
    running: Arc<Mutex<HashMap<String, usize>>>,
    most: Arc<Mutex<HashMap<String, usize>>>,
    done: Arc<Mutex<Vec<String>>>,
}

impl Handler for Slow {
    async fn handle(&self, entry: Entry) -> Settlement {
        let text = String::from_utf8(entry.payload.to_vec()).unwrap();
        for name in [&entry.lane, ""] {
            let mut running = self.running.lock().unwrap();
            let now = running.entry(name.to_owned()).or_default();
            *now += 1;
            let mut most = self.most.lock().unwrap();
            let most = most.entry(name.to_owned()).or_default();
            *most = (*most).max(*now);
        }
        tokio::time::sleep(Duration::from_secs(text.parse().unwrap_or(0))).await;
        for name in [&entry.lane, ""] {
            *self.running.lock().unwrap().get_mut(name).unwrap() -= 1;
        }
        self.done.lock().unwrap().push(entry.lane);
        Settlement::completed("", DAY)
    }
}

fn entry(lane: &str, payload: &'static str) -> NewEntry {
    NewEntry {
        lane: lane.to_owned(),
        ..NewEntry::new("jobs", payload)
    }
}

async fn count(journal: &MemoryStore, status: Status) -> u64 {
    journal.counts("jobs").await.unwrap().of(status)
}

#[tokio::test(start_paused = true)]
async fn one_slow_lane_does_not_starve_the_others() {
    let journal = MemoryStore::new();
    for _ in 0..500 {
        journal.enqueue(entry("slow", "3600")).await.unwrap();
    }
    for n in 0..200 {
        journal
            .enqueue(entry(&format!("lane-{n}"), "1"))
            .await
            .unwrap();
    }
    let handler = Slow::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone())
        .concurrency(10)
        .per_lane(2)
        .start()
        .unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(
        handler.done.lock().unwrap().len(),
        200,
        "all others are done"
    );
    assert_eq!(
        handler.most.lock().unwrap()["slow"],
        2,
        "and it has its share"
    );
    assert!(handler.most.lock().unwrap()[""] <= 10, "within the bound");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_bounded_and_used() {
    let journal = MemoryStore::new();
    for n in 0..40 {
        journal
            .enqueue(entry(&format!("{}", n % 20), "10"))
            .await
            .unwrap();
    }
    let handler = Slow::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).concurrency(8);
    let worker = worker.start().unwrap();
    while count(&journal, Status::Completed).await < 40 {
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(handler.most.lock().unwrap()[""], 8);
    worker.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_takes_longer_than_its_lease_is_extended() {
    let journal = MemoryStore::new();
    let id = journal.enqueue(entry("", "300")).await.unwrap();
    let worker = |journal: &MemoryStore| {
        WorkerBuilder::new(journal.clone(), "jobs", Slow::default())
            .lease(3 * SECOND)
            .start()
            .unwrap()
    };
    let (one, other) = (worker(&journal), worker(&journal));
    while count(&journal, Status::Completed).await < 1 {
        tokio::time::sleep(SECOND).await;
    }
    let tower_reprise::store::journal::Enqueued::New(id) = id else {
        panic!("it is new");
    };
    assert_eq!(
        find(&journal, id.id).await.attempts,
        1,
        "nobody took it over"
    );
    drop((one, other));
}

/// Panics, but only once.
struct Fragile(AtomicUsize);

impl Handler for Fragile {
    async fn handle(&self, _: Entry) -> Settlement {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => panic!("as told"),
            _ => Settlement::completed("", DAY),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_one_failed_attempt_and_the_worker_goes_on() {
    let journal = MemoryStore::new();
    let new = entry("", "");
    let id = new.id;
    journal.enqueue(new).await.unwrap();
    let fragile = Fragile(AtomicUsize::new(0));
    let worker = WorkerBuilder::new(journal.clone(), "jobs", fragile)
        .start()
        .unwrap();
    assert_eq!(ended(&journal, id).await, Status::Completed);
    let entry = find(&journal, id).await;
    assert_eq!(
        (entry.attempts, &*entry.history[0].note),
        (2, "its handler panicked")
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_lost_its_lease_breaks_off() {
    let journal = MemoryStore::new();
    let new = entry("", "3600");
    let id = new.id;
    journal.enqueue(new).await.unwrap();
    let handler = Slow::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", handler.clone()).lease(9 * SECOND);
    let worker = worker.start().unwrap();
    tokio::time::sleep(SECOND / 2).await;
    // The process was stopped for too long, and another took over.
    tokio::time::advance(9 * SECOND).await;
    let leased = journal
        .lease(LeaseRequest::new("jobs", "", 1, DAY))
        .await
        .unwrap();
    assert_eq!(leased.len(), 1);
    tokio::time::sleep(10 * SECOND).await;
    let settled = journal
        .settle(
            id,
            leased[0].lease_token,
            Settlement::completed("other", DAY),
        )
        .await;
    assert_eq!(settled.unwrap(), tower_reprise::store::Ownership::Held);
    tokio::time::sleep(2 * 3600 * SECOND).await;
    assert!(handler.done.lock().unwrap().is_empty(), "it was broken off");
    assert_eq!(
        find(&journal, id).await.result.as_deref(),
        Some(&b"other"[..])
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_what_is_handled_and_begins_nothing() {
    let journal = MemoryStore::new();
    for _ in 0..3 {
        journal.enqueue(entry("", "10")).await.unwrap();
    }
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Slow::default()).concurrency(2);
    let worker = worker.start().unwrap();
    tokio::time::sleep(SECOND).await;
    worker.shutdown(60 * SECOND).await;
    assert_eq!(count(&journal, Status::Completed).await, 2);
    assert_eq!(count(&journal, Status::Queued).await, 1);
}

struct Held(Arc<AtomicUsize>);

impl Handler for Held {
    async fn handle(&self, entry: Entry) -> Settlement {
        match entry.is_past() {
            true => Settlement::expired(DAY),
            false => Settlement::completed("", DAY),
        }
    }

    fn admission(&self) -> Admission {
        match self.0.load(Ordering::Relaxed) {
            0 => Admission::Urgent,
            limit => Admission::UpTo(limit),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j_6_held_back_only_what_is_urgent_or_past_its_time_is_handled() {
    let journal = MemoryStore::new();
    let limit = Arc::new(AtomicUsize::new(0));
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Held(limit.clone()));
    let worker = worker.start().unwrap();
    let (mut urgent, mut short) = (entry("", ""), entry("", ""));
    short.ttl = 5 * SECOND;
    urgent.ttl = DAY;
    let (plain, urgent_id, short_id) = (entry("", ""), urgent.id, short.id);
    let plain_id = plain.id;
    for new in [plain, urgent, short] {
        journal.enqueue(new).await.unwrap();
    }
    journal
        .command(urgent_id, EntryCommand::Trigger)
        .await
        .unwrap();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(find(&journal, urgent_id).await.status, Status::Completed);
    let expired = find(&journal, short_id).await;
    assert_eq!((expired.status, expired.attempts), (Status::Expired, 0));
    assert_eq!(expired.history[0].note, "expired", "it was told so");
    assert_eq!(find(&journal, plain_id).await.status, Status::Queued);
    limit.store(1, Ordering::Relaxed);
    assert_eq!(ended(&journal, plain_id).await, Status::Completed);
    drop(worker);
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let worker = || WorkerBuilder::new(MemoryStore::new(), "jobs", Slow::default());
    for (worker, message) in [
        (
            worker().concurrency(0),
            "worker.concurrency is 0, allowed: 1 to 10000",
        ),
        (
            worker().per_lane(0),
            "worker.per_lane is 0, allowed: 1 to 10000",
        ),
        (
            worker().lease(SECOND / 2),
            "worker.lease is 500ms, allowed: 1s to 10min",
        ),
        (
            worker().poll(Duration::ZERO),
            "worker.poll is 0ns, allowed: 10ms to 1min",
        ),
    ] {
        assert_eq!(worker.start().unwrap_err().to_string(), message);
    }
}

#[test]
fn o_2_queues_are_measured() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let journal = MemoryStore::new();
            for payload in ["1", "2"] {
                journal.enqueue(entry("", payload)).await.unwrap();
            }
            journal
                .enqueue(NewEntry {
                    delay: DAY / 2,
                    ..entry("", "")
                })
                .await
                .unwrap();
            let worker = WorkerBuilder::new(journal.clone(), "jobs", Slow::default());
            let worker = worker.start().unwrap();
            tokio::time::sleep(30 * SECOND).await;
            drop(worker);
        });
    });
    let metrics = snapshotter.snapshot().into_vec();
    let value = |name: &str, label: &str| {
        let mut found = metrics.iter().filter(|(key, ..)| {
            key.key().name() == name
                && (label.is_empty() || key.key().labels().any(|l| l.value() == label))
        });
        found.next().map(|(_, _, _, value)| value)
    };
    assert!(matches!(
        value("journal_outcomes_total", "completed"),
        Some(DebugValue::Counter(2))
    ));
    assert!(matches!(value("journal_entries", "queued"), Some(DebugValue::Gauge(n)) if n.0 == 1.0));
    assert!(
        matches!(value("journal_oldest_age_seconds", "jobs"), Some(DebugValue::Gauge(n)) if n.0 > 5.0)
    );
    assert!(matches!(
        value("journal_lag_seconds", "jobs"),
        Some(DebugValue::Histogram(_))
    ));
}

/// J-17: what keeps being interrupted is not used up by that.
#[tokio::test(start_paused = true)]
async fn j_17_a_shutdown_is_no_attempt() {
    let journal = MemoryStore::new();
    let job = entry("", "100");
    let id = job.id;
    journal.enqueue(job).await.unwrap();
    for _ in 0..5 {
        let worker = WorkerBuilder::new(journal.clone(), "jobs", Slow::default());
        let worker = worker.start().unwrap();
        tokio::time::sleep(SECOND).await;
        assert_eq!(find(&journal, id).await.attempts, 1);
        worker.shutdown(SECOND).await;
        let interrupted = find(&journal, id).await;
        assert_eq!(interrupted.status, Status::Queued);
        assert_eq!(interrupted.attempts, 0);
    }
    assert_eq!(find(&journal, id).await.history.len(), 5);
}

/// Records what it handles, and fails the first of each lane twice.
#[derive(Clone, Default)]
struct Fickle(Arc<Mutex<Vec<(String, String)>>>);

impl Handler for Fickle {
    async fn handle(&self, entry: Entry) -> Settlement {
        let payload = String::from_utf8(entry.payload.to_vec()).unwrap();
        tokio::time::sleep(SECOND / 10).await;
        self.0.lock().unwrap().push((entry.lane, payload.clone()));
        match payload == "0" && entry.attempts < 3 {
            true => Settlement::retry("not yet", 30 * SECOND),
            false => Settlement::completed("", DAY),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j_5_a_lane_in_order_waits_for_a_retry_and_other_lanes_do_not() {
    let journal = MemoryStore::new();
    for payload in ["0", "1", "2", "3"] {
        for lane in ["a", "b"] {
            journal.enqueue(entry(lane, payload)).await.unwrap();
        }
    }
    journal.enqueue(entry("c", "1")).await.unwrap();
    let handled = Fickle::default();
    let workers = [(); 2].map(|()| {
        let worker = WorkerBuilder::new(journal.clone(), "jobs", handled.clone());
        worker.in_order().start().unwrap()
    });
    tokio::time::sleep(10 * SECOND).await;
    let of = |lane: &str| {
        let handled = handled.0.lock().unwrap();
        let of = handled.iter().filter(|(of, _)| of == lane);
        of.map(|(_, payload)| payload.clone()).collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("c")), (vec!["0".into()], vec!["1".into()]));
    tokio::time::sleep(120 * SECOND).await;
    for lane in ["a", "b"] {
        assert_eq!(of(lane), ["0", "0", "0", "1", "2", "3"]);
    }
    drop(workers);
}

/// The lane is leased again as soon as its entry is settled, and not at the next poll.
#[tokio::test(start_paused = true)]
async fn j_5_a_lane_in_order_goes_on_at_once() {
    let journal = MemoryStore::new();
    for _ in 0..100 {
        journal.enqueue(entry("", "1")).await.unwrap();
    }
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Fickle::default());
    let worker = worker.in_order().poll(60 * SECOND).start().unwrap();
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(count(&journal, Status::Completed).await, 100);
    drop(worker);
}

/// Fails the entries of a dead target at once, and those of others the first time.
#[derive(Clone, Default)]
struct Targets(Arc<Mutex<HashMap<String, usize>>>);

impl Handler for Targets {
    async fn handle(&self, entry: Entry) -> Settlement {
        *self
            .0
            .lock()
            .unwrap()
            .entry(entry.lane.clone())
            .or_default() += 1;
        match entry.lane == "dead" || entry.attempts == 1 {
            true => Settlement::retry("refused", SECOND),
            false => Settlement::completed("", DAY),
        }
    }

    fn target<'a>(&self, entry: &'a Entry) -> Option<std::borrow::Cow<'a, str>> {
        Some((&entry.lane).into())
    }
}

/// R-7 holds for workers, target by target.
#[tokio::test(start_paused = true)]
async fn q_6_retries_have_a_budget_of_their_target() {
    let journal = MemoryStore::new();
    for _ in 0..100 {
        journal.enqueue(entry("dead", "")).await.unwrap();
    }
    for lane in ["a", "b", "c"] {
        for _ in 0..5 {
            journal.enqueue(entry(lane, "")).await.unwrap();
        }
    }
    let targets = Targets::default();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", targets.clone());
    let worker = worker.start().unwrap();
    tokio::time::sleep(29 * SECOND).await;
    let of = |lane: &str| targets.0.lock().unwrap()[lane];
    let dead = of("dead");
    assert!(
        (110..=131).contains(&dead),
        "{dead} of 100 and 20 %, ten and a probe"
    );
    // A quiet target that is dead gets a probe in each pause.
    tokio::time::sleep(600 * SECOND).await;
    let probes = of("dead") - dead;
    assert!((10..40).contains(&probes), "{probes} in ten minutes");
    let dead = dead + probes;
    assert_eq!(["a", "b", "c"].map(of), [10; 3]);
    assert_eq!(count(&journal, Status::Completed).await, 15);
    let query = Query::new("jobs", 200);
    let attempts = journal.list(query).await.unwrap();
    let attempts: u32 = attempts.iter().map(|entry| entry.attempts).sum();
    assert_eq!(attempts as usize, dead + 30, "what waits uses no attempt");
    drop(worker);
}

/// R-8 wants an alert with a dead-letter queue.
#[tokio::test(start_paused = true)]
async fn q_5_a_named_dead_letter_queue_without_an_alert_is_an_error() {
    let journal = MemoryStore::new();
    let policy = |builder: PolicyBuilder| Dependencies::new(builder.build().unwrap());
    let worker = |dependencies: &Dependencies| {
        let worker = WorkerBuilder::new(journal.clone(), "jobs", Slow::default());
        worker.dependencies(dependencies)
    };
    let named = policy(Policy::events().dead_letters("jobs.dlq"));
    let error = worker(&named).start().unwrap_err().to_string();
    assert!(
        error.starts_with("R-8: ") && error.contains("jobs.dlq"),
        "{error}"
    );
    let other = worker(&policy(Policy::events())).start().unwrap();
    let error = worker(&named).alerted_by(&other).start();
    assert!(error.is_err(), "that is no worker of alerts");
    let alerts = DeadLetters::new(journal.clone())
        .alerts(LogAlert)
        .start()
        .unwrap();
    let first = worker(&named).alerted_by(&alerts).start().unwrap();
    let second = worker(&named).alerted_elsewhere().start().unwrap();
    drop((first, second, alerts, other));
}

/// P-3: a name in a policy is no queue: the audit of a registry sees which ones are served.
#[tokio::test(start_paused = true)]
async fn p_3_a_dead_letter_queue_that_nothing_serves_is_found() {
    let journal = MemoryStore::new();
    let named = |queue: &'static str| {
        let policy = Policy::events().dead_letters(queue).build().unwrap();
        assert!(policy.audit().is_compliant());
        Dependencies::new(policy)
    };
    let found = |deps: &Dependencies| {
        let audit = deps.audit();
        let found = audit
            .violations()
            .map(|finding| finding.allowed.to_string());
        found.collect::<Vec<_>>().join(", ")
    };
    let deps = named("jobs");
    assert!(found(&deps).contains("serves"), "{}", found(&deps));
    let layer = DeadLetterLayer::new(journal.clone(), "jobs", |_: &u32| Letter::default());
    let _consumer = layer.serving(&deps);
    assert!(found(&deps).contains("alert"), "{}", found(&deps));
    let alerts = DeadLetters::new(journal.clone()).alerts(LogAlert);
    let alerts = alerts.dependencies(&deps).start();
    assert_eq!(found(&deps), "");
    // A worker's own queue has its letters.
    let deps = named("jobs");
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Slow::default());
    let worker = worker.dependencies(&deps).alerted_elsewhere().start();
    assert_eq!(found(&deps), "");
    let deps = named("jobs.dlq");
    let other = WorkerBuilder::new(journal, "jobs", Slow::default());
    let other = other.dependencies(&deps).alerted_elsewhere().start();
    assert!(found(&deps).contains("serves"), "{}", found(&deps));
    // One of another system.
    deps.dead_letters_elsewhere("jobs.dlq");
    assert_eq!(found(&deps), "");
    drop((alerts, worker, other));
}
