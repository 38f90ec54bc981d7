#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use http::StatusCode;
use tokio::time::{Instant, sleep};

use crate::{
    call::{Cause, Verdict},
    delivery::{
        dead_letter::{Alert, DeadLetter, DeadLetters},
        guard::Guard,
        webhooks::{
            Delivery, DeliveryFailure, DeliveryOutcome, Endpoint, Sender, Signer, Webhook,
            Webhooks, WebhooksBuilder,
        },
        worker::Handler,
    },
    error::BoxError,
    store::{
        MemoryStore, Ownership,
        journal::{
            Entry, EntryId, Journal, LeaseRequest, Query, SettlementOutcome, Status, Timestamp,
        },
    },
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A delivery's URL and id, and when it arrived or failed.
type Arrival = (String, String, Instant);

/// Receivers of which some are dead, and what came to the others.
#[derive(Clone, Default)]
struct Receivers {
    dead: Arc<Mutex<BTreeSet<String>>>,
    arrived: Arc<Mutex<Vec<Arrival>>>,
    tried: Arc<Mutex<Vec<Arrival>>>,
}

impl Receivers {
    fn sender(&self) -> Sender {
        let mut sender = Sender::builder(Guard::new()).build().unwrap();
        let receivers = self.clone();
        sender.script = Some(Arc::new(move |delivery: Delivery| {
            let receivers = receivers.clone();
            Box::pin(async move { receivers.receive(&delivery).await })
        }));
        sender
    }

    /// Takes 100 ms, or hangs for as long as a sender waits.
    async fn receive(&self, delivery: &Delivery) -> DeliveryOutcome {
        let url = delivery.target().uri().to_string();
        let arrival = |at| (url.clone(), delivery.id().as_str().to_owned(), at);
        self.tried.lock().unwrap().push(arrival(Instant::now()));
        let is_dead = self.dead.lock().unwrap().contains(&url);
        if is_dead {
            sleep(15 * SECOND).await;
            let verdict = Verdict::transient(Cause::Timeout);
            return DeliveryOutcome::Failed(DeliveryFailure::of(verdict));
        }
        sleep(SECOND / 10).await;
        self.arrived.lock().unwrap().push(arrival(Instant::now()));
        DeliveryOutcome::Delivered(StatusCode::OK)
    }

    fn kill(&self, url: &str) {
        self.dead.lock().unwrap().insert(url.to_owned());
    }

    fn revive(&self) {
        self.dead.lock().unwrap().clear();
    }

    fn arrived_at(&self, url: &str) -> Vec<String> {
        let arrived = self.arrived.lock().unwrap();
        let there = arrived.iter().filter(|(there, ..)| there == url);
        there.map(|(_, id, _)| id.clone()).collect()
    }

    fn tries(&self) -> usize {
        self.tried.lock().unwrap().len()
    }
}

fn builder<J: Journal + Clone>(journal: &J, receivers: &Receivers) -> WebhooksBuilder<J> {
    let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    Webhooks::builder(journal.clone(), signer)
        .sender(receivers.sender())
        .seed(7)
}

fn url(n: usize) -> String {
    format!("https://shop{n}.example/hook")
}

async fn letters<J: Journal>(journal: &J) -> Vec<Entry> {
    let query = Query {
        status: Some(Status::Failed),
        ..Query::new("webhooks", 100_000)
    };
    journal.list(query).await.unwrap()
}

/// Counts alerts by the queue of their letter.
#[derive(Clone, Default)]
struct Notices(Arc<Mutex<HashMap<String, Vec<DeadLetter>>>>);

impl Alert for Notices {
    async fn fire(&self, letter: &DeadLetter) -> Result<(), BoxError> {
        let mut notices = self.0.lock().unwrap();
        let of_queue = notices.entry(letter.queue.clone()).or_default();
        of_queue.push(letter.clone());
        Ok(())
    }
}

/// Sends an event to each of 1,000 endpoints every eight hours for seven days, of which one is dead
/// for more than five. Returns the time each event of the others took, and what is to be known of the dead one.
async fn seven_days(one_is_dead: bool) -> (Vec<Duration>, MemoryStore, Receivers, Notices) {
    const ENDPOINTS: usize = 1000;
    let (journal, receivers) = (MemoryStore::new(), Receivers::default());
    let webhooks = builder(&journal, &receivers).disable_after(5 * DAY).build();
    let webhooks = webhooks.unwrap();
    let notices = Notices::default();
    let dead_letters = DeadLetters::new(journal.clone());
    let alerts = dead_letters.alerts(notices.clone()).poll(60 * SECOND);
    let alerts = alerts.start().unwrap();
    let mut sent = HashMap::new();
    for round in 0..21 {
        if one_is_dead && round == 3 {
            receivers.kill(&url(0));
        }
        for n in 0..ENDPOINTS {
            let id = webhooks.send(Webhook::new(url(n), "{}")).await.unwrap();
            sent.insert(id.to_string(), Instant::now());
        }
        // Each round has workers of its own, which find all that is known in the journal.
        let worker = webhooks.worker().start().unwrap();
        sleep(10 * 60 * SECOND).await;
        worker.shutdown(SECOND).await;
        sleep(8 * HOUR - 10 * 60 * SECOND).await;
    }
    drop(alerts);
    let arrived = receivers.arrived.lock().unwrap();
    let others = arrived.iter().filter(|(there, ..)| *there != url(0));
    let took = others
        .map(|(_, id, at)| at.duration_since(sent[id]))
        .collect();
    drop(arrived);
    (took, journal, receivers, notices)
}

#[tokio::test(start_paused = true)]
async fn w_9_an_endpoint_that_is_dead_for_days_is_disabled_and_costs_the_others_nothing() {
    let (alone, ..) = seven_days(false).await;
    let (beside, journal, receivers, notices) = seven_days(true).await;
    assert_eq!((alone.len(), beside.len()), (999 * 21, 999 * 21));
    let mean = |took: &[Duration]| took.iter().sum::<Duration>().as_secs_f64() / took.len() as f64;
    let slower = mean(&beside) / mean(&alone);
    assert!((0.95..1.05).contains(&slower), "{slower}");
    let longest = |took: &[Duration]| took.iter().max().unwrap().as_secs_f64();
    let slower = longest(&beside) / longest(&alone);
    assert!((0.95..1.05).contains(&slower), "{slower}");

    // One notice, and no more deliveries after it.
    let endpoint = Endpoint::new(url(0));
    let webhooks = builder(&journal, &receivers).build().unwrap();
    let disabled_at = webhooks.disabled_since(&endpoint).await.unwrap().unwrap();
    let found = notices.0.lock().unwrap()["webhooks.disabled"].clone();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].cause(), "endpoint_disabled");
    assert_eq!(found[0].label, "https://shop0.example");
    assert_eq!(found[0].reason, "no event was delivered for 5 days");
    let letters = letters(&journal).await;
    assert_eq!(letters.len(), 18, "each event is there");
    for letter in &letters {
        let is_after = letter.queued_at > disabled_at;
        let attempts = if is_after { 1 } else { 5 };
        assert_eq!(letter.attempts, attempts, "{letter:?}");
        let cause = if is_after {
            "its endpoint is disabled"
        } else {
            "timeout"
        };
        assert_eq!(letter.cause.as_deref(), Some(cause));
    }
    let failing = 5 * DAY;
    let first = letters
        .iter()
        .map(|letter| letter.changed_at)
        .min()
        .unwrap();
    assert!(disabled_at.since(first) >= failing && disabled_at.since(first) < failing + 9 * HOUR);

    // It works again: exactly what failed since then is delivered.
    receivers.revive();
    let since = first.after(2 * DAY);
    let expected: BTreeSet<_> = letters
        .iter()
        .filter(|letter| letter.changed_at >= since)
        .map(|letter| letter.id.to_string())
        .collect();
    let before = receivers.tries();
    let worker = webhooks.worker().start().unwrap();
    let since = SystemTime::UNIX_EPOCH + Duration::from_micros(since.as_micros());
    let recovered = webhooks.recover(&endpoint, since).await.unwrap();
    sleep(HOUR).await;
    assert_eq!(recovered, expected.len() as u64);
    let again = receivers.arrived_at(&url(0)).split_off(3);
    assert_eq!(again.len(), expected.len(), "each once");
    assert_eq!(again.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(receivers.tries() - before, expected.len());
    assert_eq!(webhooks.recover(&endpoint, since).await.unwrap(), 0);
    drop(worker);
}

/// A success in between is the end of a failure, and a failure now and then disables nothing.
#[tokio::test(start_paused = true)]
async fn w_9_an_endpoint_that_works_now_and_then_is_not_disabled() {
    let (journal, receivers) = (MemoryStore::new(), Receivers::default());
    let webhooks = builder(&journal, &receivers)
        .disable_after(DAY)
        .build()
        .unwrap();
    let worker = webhooks.worker().start().unwrap();
    for works in [false, false, true, false, false, true, false, false] {
        receivers.revive();
        if !works {
            receivers.kill(&url(0));
        }
        webhooks.send(Webhook::new(url(0), "{}")).await.unwrap();
        sleep(10 * HOUR).await;
    }
    let endpoint = Endpoint::new(url(0));
    assert_eq!(webhooks.disabled_since(&endpoint).await.unwrap(), None);
    // Without a success it is.
    webhooks.send(Webhook::new(url(0), "{}")).await.unwrap();
    sleep(HOUR).await;
    assert_eq!(
        webhooks.disabled_since(&endpoint).await.unwrap(),
        None,
        "21 hours"
    );
    sleep(4 * HOUR).await;
    webhooks.send(Webhook::new(url(0), "{}")).await.unwrap();
    sleep(HOUR).await;
    assert!(webhooks.disabled_since(&endpoint).await.unwrap().is_some());
    drop(worker);
}

/// Leases and handles the one event that is due.
async fn handled<J: Journal + Clone>(webhooks: &Webhooks<J>, journal: &J) -> SettlementOutcome {
    let lane = journal.lanes("webhooks", None, 1).await.unwrap().remove(0);
    let request = LeaseRequest::new("webhooks", lane, 1, 60 * SECOND);
    let entry = journal.lease(request).await.unwrap().remove(0);
    let (id, token) = (entry.id, entry.lease_token);
    let settlement = webhooks.handler().handle(entry).await;
    let outcome = settlement.outcome;
    let settled = journal.settle(id, token, settlement).await.unwrap();
    assert_eq!(settled, Ownership::Held);
    outcome
}

/// An owner's endpoint is disabled, in whatever process, also after a restart. Other owners' and other
/// URLs of the same server are not.
async fn stays_disabled<J: Journal + Clone>(reopen: impl AsyncFn() -> J) {
    let receivers = Receivers::default();
    let endpoint = Endpoint::new(url(0)).owner("ada");
    let since = SystemTime::now() - HOUR;
    let id = {
        let webhooks = builder(&reopen().await, &receivers).build().unwrap();
        webhooks.disable(&endpoint).await.unwrap();
        webhooks.disable(&endpoint).await.unwrap();
        let event = Webhook::new(url(0), "{}").owner("ada");
        webhooks.send(event).await.unwrap()
    };
    let journal = reopen().await;
    let notices = journal.counts("reprise.alerts").await.unwrap();
    assert_eq!(
        notices.of(Status::Queued),
        1,
        "one notice, and it is not lost"
    );
    let webhooks = builder(&journal, &receivers).build().unwrap();
    assert!(matches!(
        handled(&webhooks, &journal).await,
        SettlementOutcome::Failed(_)
    ));
    assert_eq!(receivers.tries(), 0);
    for event in [
        Webhook::new(url(0), "{}").owner("bob"),
        Webhook::new(url(0), "{}"),
        Webhook::new(format!("{}/other", url(0)), "{}").owner("ada"),
    ] {
        webhooks.send(event).await.unwrap();
        assert!(matches!(
            handled(&webhooks, &journal).await,
            SettlementOutcome::Completed(_)
        ));
    }
    assert_eq!(receivers.tries(), 3);

    let journal = reopen().await;
    let webhooks = builder(&journal, &receivers).build().unwrap();
    assert!(webhooks.disabled_since(&endpoint).await.unwrap().is_some());
    assert_eq!(webhooks.recover(&endpoint, since).await.unwrap(), 1);
    assert!(matches!(
        handled(&webhooks, &journal).await,
        SettlementOutcome::Completed(_)
    ));
    assert_eq!(
        receivers.arrived.lock().unwrap().last().unwrap().1,
        id.to_string()
    );
    assert!(!webhooks.enable(&endpoint).await.unwrap(), "it is already");
    assert_eq!(webhooks.disabled_since(&endpoint).await.unwrap(), None);
    webhooks.disable(&endpoint).await.unwrap();
    assert!(webhooks.disabled_since(&endpoint).await.unwrap().is_some());
    let notices = journal.counts("reprise.alerts").await.unwrap();
    assert_eq!(notices.of(Status::Queued), 2, "another notice");
}

#[tokio::test]
async fn w_9_an_endpoint_stays_disabled() {
    let journal = MemoryStore::new();
    stays_disabled(async || journal.clone()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn w_9_an_endpoint_stays_disabled_after_a_restart() {
    let path = std::env::temp_dir().join(format!("reprise-{}.db", EntryId::random()));
    stays_disabled(async || crate::store::SqliteStore::open(&path).unwrap()).await;
    std::fs::remove_file(&path).unwrap();
}

/// W-10: what belongs to another owner, another URL of the same server, or an earlier time, stays.
#[tokio::test(start_paused = true)]
async fn w_10_recovery_takes_the_events_of_its_endpoint_since_then_and_no_others() {
    let (journal, receivers) = (MemoryStore::new(), Receivers::default());
    let webhooks = builder(&journal, &receivers).build().unwrap();
    let worker = webhooks.worker().start().unwrap();
    let other = format!("{}?tenant=2", url(0));
    receivers.kill(&url(0));
    receivers.kill(&other);
    let mut sent = Vec::new();
    let mut since = Timestamp::from(SystemTime::now());
    for round in 0..2 {
        for event in [
            Webhook::new(url(0), "{}").owner("ada"),
            Webhook::new(url(0), "{}").owner("ada").order("invoice 7"),
            Webhook::new(url(0), "{}").owner("bob"),
            Webhook::new(other.clone(), "{}").owner("ada"),
        ] {
            sent.push(webhooks.send(event).await.unwrap());
        }
        sleep(HOUR).await;
        if round == 0 {
            let last = letters(&journal)
                .await
                .into_iter()
                .map(|letter| letter.changed_at);
            since = last.max().unwrap().after(SECOND);
        }
    }
    assert_eq!(letters(&journal).await.len(), 8);
    receivers.revive();
    let endpoint = Endpoint::new(url(0)).owner("ada");
    let since = SystemTime::UNIX_EPOCH + Duration::from_micros(since.as_micros());
    assert_eq!(webhooks.recover(&endpoint, since).await.unwrap(), 2);
    sleep(HOUR).await;
    let arrived: BTreeSet<_> = receivers.arrived_at(&url(0)).into_iter().collect();
    let expected = [sent[4].to_string(), sent[5].to_string()];
    assert_eq!(arrived, expected.into());
    assert_eq!(letters(&journal).await.len(), 6);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn w_11_a_target_gets_no_more_than_its_rate_and_the_others_are_not_held_up() {
    let (journal, receivers) = (MemoryStore::new(), Receivers::default());
    let webhooks = builder(&journal, &receivers)
        .rate(100)
        .rate_of("https://shop0.example", 5);
    let webhooks = webhooks.build().unwrap();
    let began = Instant::now();
    for n in 0..200 {
        // With an order and without: the rate is the target's.
        let event = Webhook::new(url(0), "{}");
        let event = if n % 2 == 0 {
            event
        } else {
            event.order(n.to_string())
        };
        webhooks.send(event).await.unwrap();
        webhooks.send(Webhook::new(url(1), "{}")).await.unwrap();
    }
    let worker = webhooks.worker().start().unwrap();
    sleep(120 * SECOND).await;
    let at = |url: &str| {
        let arrived = receivers.arrived.lock().unwrap();
        let there = arrived.iter().filter(|(there, ..)| there == url);
        there
            .map(|(.., at)| at.duration_since(began))
            .collect::<Vec<_>>()
    };
    let (slow, fast) = (at(&url(0)), at(&url(1)));
    assert_eq!((slow.len(), fast.len()), (200, 200));
    assert!(*fast.last().unwrap() < 10 * SECOND, "{:?}", fast.last());
    // Beside those of the first second, some may be under way when it has used up its rate.
    for (n, at) in slow.iter().enumerate() {
        let most = 5.0 * at.as_secs_f64() + 5.0 + 8.0;
        assert!((n as f64) < most, "{n} at {at:?}");
    }
    assert!(*slow.last().unwrap() < 60 * SECOND, "{:?}", slow.last());
    drop(worker);

    for rate in [0, 10_001] {
        let error = builder(&journal, &receivers)
            .rate(rate)
            .build()
            .unwrap_err();
        assert_eq!(error.field(), "webhook.rate");
    }
    let error = builder(&journal, &receivers).disable_after(SECOND).build();
    assert_eq!(error.unwrap_err().field(), "webhook.disable_after");
}

#[tokio::test(start_paused = true)]
async fn w_12_events_with_a_key_arrive_in_order_and_hold_up_no_others() {
    let (journal, receivers) = (MemoryStore::new(), Receivers::default());
    let webhooks = builder(&journal, &receivers).build().unwrap();
    receivers.kill(&url(0));
    let began = Instant::now();
    let mut ordered = Vec::new();
    for _ in 0..10 {
        let event = Webhook::new(url(0), "{}").order("invoice 7");
        ordered.push(webhooks.send(event).await.unwrap().to_string());
    }
    let worker = webhooks.worker().start().unwrap();
    // The first one fails, and waits for its next delivery.
    sleep(20 * SECOND).await;
    receivers.revive();
    let free = webhooks.send(Webhook::new(url(0), "{}")).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(receivers.arrived_at(&url(0)), [free.to_string()]);
    sleep(60 * SECOND).await;
    assert_eq!(receivers.arrived_at(&url(0)).split_off(1), ordered);
    let tried = receivers.tried.lock().unwrap();
    let first = tried.iter().filter(|(_, id, _)| *id == ordered[0]).count();
    assert_eq!(first, 3);
    // Only the first one was tried while it failed.
    let early = tried
        .iter()
        .filter(|(.., at)| at.duration_since(began) < 20 * SECOND);
    assert!(early.into_iter().all(|(_, id, _)| *id == ordered[0]));
    drop(tried);
    drop(worker);
}
