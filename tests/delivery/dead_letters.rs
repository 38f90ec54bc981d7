use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::HeaderValue;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies, Policy, RetryLayer,
    call::{Cause, Verdict},
    delivery::{
        dead_letter::{
            Alert, DeadLetter, DeadLetterLayer, DeadLetters, Delivered, Letter, Redriven, Selection,
        },
        worker::{Handler, WorkerBuilder},
    },
    error::BoxError,
    server::idempotency::events::NotConsumed,
    store::{
        MemoryStore, StoreError, StoreErrorKind,
        journal::{Entry, Journal, NewEntry, Query, Settlement, Status},
    },
};

use crate::setup::{DAY, SECOND, ended, find};

/// Fails for good, after so many transient failures.
struct Failing(u32);

impl Handler for Failing {
    async fn handle(&self, entry: Entry) -> Settlement {
        match entry.attempts > self.0 {
            true => Settlement::failed("no such account", 10 * DAY),
            false => Settlement::retry(format!("http_500 at attempt {}", entry.attempts), SECOND),
        }
    }
}

#[derive(Clone, Default)]
struct Recorder {
    fired: Arc<Mutex<Vec<DeadLetter>>>,
    /// The number of failures before it succeeds.
    fails: Arc<Mutex<u32>>,
}

impl Alert for Recorder {
    async fn fire(&self, letter: &DeadLetter) -> Result<(), BoxError> {
        let mut fails = self.fails.lock().unwrap();
        if *fails > 0 {
            *fails -= 1;
            return Err("nobody listens".into());
        }
        self.fired.lock().unwrap().push(letter.clone());
        Ok(())
    }
}

async fn queue(
    journal: &MemoryStore,
    owner: &str,
    label: &str,
) -> tower_reprise::store::journal::EntryId {
    let new = NewEntry {
        owner: owner.to_owned(),
        label: label.to_owned(),
        ..NewEntry::new("jobs", "payload")
    };
    let id = new.id;
    journal.enqueue(new).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn q_1_a_letter_has_everything() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let id = queue(&journal, "ada", "mail").await;
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Failing(2))
        .start()
        .unwrap();
    assert_eq!(ended(&journal, id).await, Status::Failed);
    let letter = letters.get(id).await.unwrap().unwrap();
    assert_eq!(
        (&*letter.reason, &*letter.payload),
        ("no such account", &b"payload"[..])
    );
    assert_eq!(
        (&*letter.owner, &*letter.label, letter.attempts),
        ("ada", "mail", 3)
    );
    let notes: Vec<_> = letter.history.iter().map(|n| &*n.note).collect();
    assert_eq!(
        notes,
        [
            "http_500 at attempt 1",
            "http_500 at attempt 2",
            "no such account"
        ]
    );
    assert!(letter.history.is_sorted_by_key(|n| n.at));
    assert_eq!(letter.died_at, letter.history[2].at);
    let listed = letters.list("jobs", None, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(
        letters
            .list("jobs", Some(&listed[0]), 10)
            .await
            .unwrap()
            .is_empty()
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn q_2_an_alert_fires_for_each_letter_until_it_succeeds() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let recorder = Recorder::default();
    *recorder.fails.lock().unwrap() = 5;
    let ids = [queue(&journal, "", "").await, queue(&journal, "", "").await];
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Failing(0))
        .start()
        .unwrap();
    for id in ids {
        ended(&journal, id).await;
    }
    drop(worker);
    // The process ended in between: the alerts are still there.
    let alerts = letters.alerts(recorder.clone()).start().unwrap();
    while recorder.fired.lock().unwrap().len() < 2 {
        tokio::time::sleep(SECOND).await;
    }
    tokio::time::sleep(3600 * SECOND).await;
    let mut fired: Vec<_> = recorder
        .fired
        .lock()
        .unwrap()
        .iter()
        .map(|l| l.id)
        .collect();
    fired.sort();
    let mut ids = ids;
    ids.sort();
    assert_eq!(fired, ids);
    assert_eq!(recorder.fired.lock().unwrap()[0].reason, "no such account");
    drop(alerts);
}

#[tokio::test(start_paused = true)]
async fn q_3_redriving_twice_is_redriving_once_and_keeps_history() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let id = queue(&journal, "", "").await;
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Failing(0))
        .start()
        .unwrap();
    ended(&journal, id).await;
    worker.shutdown(SECOND).await;
    assert_eq!(letters.redrive(id).await.unwrap(), Redriven::Queued);
    assert_eq!(
        letters.redrive(id).await.unwrap(),
        Redriven::NotDead(Status::Queued)
    );
    assert!(
        letters.get(id).await.unwrap().is_none(),
        "it is no letter now"
    );
    let unknown = tower_reprise::store::journal::EntryId::random();
    assert_eq!(letters.redrive(unknown).await.unwrap(), Redriven::Unknown);
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Failing(0))
        .start()
        .unwrap();
    ended(&journal, id).await;
    let notes: Vec<_> = find(&journal, id)
        .await
        .history
        .into_iter()
        .map(|n| n.note)
        .collect();
    assert_eq!(notes, ["no such account", "redriven", "no such account"]);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn q_3_many_are_redriven_by_filter_at_a_rate_or_only_counted() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    for n in 0..250 {
        queue(&journal, ["ada", "bob"][n % 2], ["mail", "sms"][n / 125]).await;
    }
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Failing(0))
        .start()
        .unwrap();
    while journal.counts("jobs").await.unwrap().of(Status::Failed) < 250 {
        tokio::time::sleep(SECOND).await;
    }
    worker.shutdown(SECOND).await;
    let report = letters
        .redrive_all(Selection::queue("jobs").dry_run())
        .await
        .unwrap();
    assert_eq!((report.matched, report.changed), (250, 0));
    let began = tokio::time::Instant::now();
    let redrive = Selection::queue("jobs")
        .owner("ada")
        .label("mail")
        .per_second(10);
    let report = letters.redrive_all(redrive.clone()).await.unwrap();
    assert_eq!((report.matched, report.changed), (63, 63));
    assert!(
        began.elapsed() >= Duration::from_millis(6100),
        "ten a second"
    );
    assert_eq!(
        letters.redrive_all(redrive).await.unwrap().matched,
        0,
        "once is enough"
    );
    let some = Selection::queue("jobs")
        .owner("bob")
        .per_second(1000)
        .at_most(7);
    assert_eq!(letters.redrive_all(some).await.unwrap().changed, 7);
    assert_eq!(journal.counts("jobs").await.unwrap().of(Status::Queued), 70);
}

#[tokio::test(start_paused = true)]
async fn q_4_a_letter_is_kept_from_when_it_became_one() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let new = NewEntry {
        ttl: DAY / 8,
        delay: DAY / 12,
        ..NewEntry::new("jobs", "")
    };
    let id = new.id;
    journal.enqueue(new).await.unwrap();
    let worker = WorkerBuilder::new(journal.clone(), "jobs", Failing(0))
        .start()
        .unwrap();
    assert_eq!(ended(&journal, id).await, Status::Failed);
    drop(worker);
    tokio::time::advance(10 * DAY - 60 * SECOND).await;
    assert!(letters.get(id).await.unwrap().is_some());
    tokio::time::advance(120 * SECOND).await;
    assert!(letters.get(id).await.unwrap().is_none());
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    id: &'static str,
    text: String,
}

fn letter(event: &Event) -> Letter {
    Letter {
        id: Some(event.id.to_owned()),
        label: "order.paid".to_owned(),
        headers: http::HeaderMap::from_iter([(http::header::FROM, "broker".parse().unwrap())]),
        payload: event.text.clone().into(),
        ..Letter::default()
    }
}

fn event(id: &'static str, text: &str) -> Event {
    Event {
        id,
        text: text.to_owned(),
    }
}

async fn parse(event: Event) -> Result<u32, BoxError> {
    Ok(event.text.parse()?)
}

/// what a consumer fails on after its retries is kept, and acknowledged.
#[tokio::test(start_paused = true)]
async fn q_1_an_event_that_can_t_be_processed_is_a_letter() {
    let journal = MemoryStore::new();
    let consumer = DeadLetterLayer::new(journal.clone(), "orders", letter).layer(service_fn(parse));
    let processed = consumer.clone().oneshot(event("1", "7")).await.unwrap();
    assert_eq!(processed, Delivered::Processed(7));
    let Delivered::DeadLettered(id) = consumer.clone().oneshot(event("2", "seven")).await.unwrap()
    else {
        panic!("it can't be processed");
    };
    // Delivered again, it is the same letter.
    let again = consumer.clone().oneshot(event("2", "seven")).await.unwrap();
    assert_eq!(again, Delivered::DeadLettered(id));
    let letters = DeadLetters::new(journal.clone());
    assert_eq!(letters.list("orders", None, 9).await.unwrap().len(), 1);
    let found = letters.get(id).await.unwrap().unwrap();
    assert_eq!(
        (&*found.payload, &*found.label),
        (&b"seven"[..], "order.paid")
    );
    assert_eq!(found.headers["from"], "broker");
    assert_eq!(found.reason, "invalid digit found in string");
    // And there is an alert for it.
    let alerts = journal.list(Query::new("reprise.alerts", 9)).await.unwrap();
    assert_eq!(alerts.len(), 1);
}

/// A letter of an event that came with secrets.
async fn bury_secrets(journal: impl Journal + Clone) -> DeadLetter {
    let secretive = |event: &Event| {
        let mut letter = letter(event);
        let mut marked = HeaderValue::from_static("s3cret-1");
        marked.set_sensitive(true);
        letter.headers.insert("x-customer", marked);
        let token = HeaderValue::from_static("s3cret-2");
        letter.headers.insert("x-access-key", token);
        letter
    };
    let layer = DeadLetterLayer::new(journal.clone(), "orders", secretive);
    let consumer = layer.layer(service_fn(parse));
    let Delivered::DeadLettered(id) = consumer.oneshot(event("2", "seven")).await.unwrap() else {
        panic!("it can't be processed");
    };
    DeadLetters::new(journal).get(id).await.unwrap().unwrap()
}

/// credentials are sealed or left out.
#[tokio::test(start_paused = true)]
async fn q_1_j_13_a_letter_has_no_credentials_in_the_clear() {
    let journal = MemoryStore::new();
    let letter = bury_secrets(journal.clone()).await;
    let payload = find(&journal, letter.id).await.payload;
    let payload = String::from_utf8_lossy(&payload);
    assert!(
        payload.contains("broker") && !payload.contains("s3cret"),
        "{payload}"
    );
}

#[cfg(feature = "seal")]
#[tokio::test(start_paused = true)]
async fn q_1_j_13_a_sealed_letter_has_its_credentials() {
    use tower_reprise::store::{SealKeys, Sealed};

    let below = MemoryStore::new();
    let keys = SealKeys::try_new("one", &[1; 32]).unwrap();
    let letter = bury_secrets(Sealed::new(below.clone(), keys)).await;
    assert_eq!(letter.headers["x-access-key"], "s3cret-2");
    let payload = find(&below, letter.id).await.payload;
    assert!(!payload.windows(6).any(|part| part == b"s3cret"));
}

#[tokio::test(start_paused = true)]
async fn q_3_a_redriven_event_goes_to_its_consumer() {
    let journal = MemoryStore::new();
    let consumer = DeadLetterLayer::new(journal.clone(), "orders", letter).layer(service_fn(parse));
    let Delivered::DeadLettered(id) = consumer.oneshot(event("2", "seven")).await.unwrap() else {
        panic!("it can't be processed");
    };
    let letters = DeadLetters::new(journal.clone());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mended = service_fn({
        let seen = seen.clone();
        move |event: Event| {
            seen.lock().unwrap().push(event);
            std::future::ready(Ok::<_, BoxError>(()))
        }
    });
    let worker = letters.redelivery("orders", mended, |letter: Letter| Event {
        id: "2",
        text: String::from_utf8(letter.payload.to_vec()).unwrap(),
    });
    let worker = worker.start().unwrap();
    letters.redrive(id).await.unwrap();
    assert_eq!(ended(&journal, id).await, Status::Completed);
    assert_eq!(*seen.lock().unwrap(), [event("2", "seven")]);
    drop(worker);
}

/// a redriven event that can't be processed now is no new letter, and waits.
#[tokio::test(start_paused = true)]
async fn q_3_a_redriven_event_that_must_wait_is_delivered_again() {
    let journal = MemoryStore::new();
    let consumer = DeadLetterLayer::new(journal.clone(), "orders", letter).layer(service_fn(parse));
    let Delivered::DeadLettered(id) = consumer.oneshot(event("2", "seven")).await.unwrap() else {
        panic!("it can't be processed");
    };
    let down = || StoreError::new(StoreErrorKind::Unavailable, "down");
    let calls = Arc::new(Mutex::new(0));
    let busy = service_fn({
        let calls = calls.clone();
        move |_: ()| {
            let mut calls = calls.lock().unwrap();
            *calls += 1;
            std::future::ready(match *calls {
                10.. => Ok::<_, BoxError>(()),
                call if call % 2 == 0 => Err(NotConsumed::Store(down()).into()),
                _ => Err(NotConsumed::InFlight(30 * SECOND).into()),
            })
        }
    });
    let letters = DeadLetters::new(journal.clone());
    let worker = letters.redelivery("orders", busy, |_| ()).start().unwrap();
    letters.redrive(id).await.unwrap();
    assert_eq!(ended(&journal, id).await, Status::Completed);
    assert_eq!(*calls.lock().unwrap(), 10);
    let alerts = Query::new("reprise.alerts", 9);
    assert_eq!(journal.count(alerts).await.unwrap(), 1, "the first one's");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn q_1_what_must_be_delivered_again_is_no_letter() {
    let journal = MemoryStore::builder().max_entries(1).build().unwrap();
    let layer = DeadLetterLayer::new(journal.clone(), "orders", letter);
    let busy = layer.layer(service_fn(|_: Event| async {
        Err::<(), BoxError>(NotConsumed::InFlight(SECOND).into())
    }));
    assert!(busy.oneshot(event("1", "")).await.is_err());
    assert!(
        journal
            .list(Query::new("orders", 9))
            .await
            .unwrap()
            .is_empty()
    );
    // Nor is one that the journal has no room for acknowledged.
    journal.enqueue(NewEntry::new("other", "")).await.unwrap();
    assert!(
        layer
            .layer(service_fn(parse))
            .oneshot(event("2", "x"))
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn q_1_retries_come_first() {
    let journal = MemoryStore::new();
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let policy = Policy::events().service("t").build().unwrap();
    let deps = Dependencies::builder(policy)
        .with_locate_message(|_: &Event| "orders".into())
        .with_classifier(
            |outcome: Result<&(), &(dyn Error + 'static)>| match outcome {
                Ok(()) => Verdict::SUCCESS,
                Err(_) => Verdict::transient(Cause::Other("handler")),
            },
        );
    let retry = RetryLayer::new(deps.build()).cloning();
    let consumer = ServiceBuilder::new()
        .layer(DeadLetterLayer::new(journal.clone(), "orders", letter))
        .layer(retry)
        .service(service_fn(move |_: Event| {
            *counted.lock().unwrap() += 1;
            std::future::ready(Err::<(), BoxError>("broken".into()))
        }));
    let buried = consumer.oneshot(event("1", "")).await.unwrap();
    assert!(matches!(buried, Delivered::DeadLettered(_)));
    assert_eq!(
        *calls.lock().unwrap(),
        6,
        "five retries of the asynchronous profile"
    );
}

/// two owners may give their events the same ids.
#[tokio::test(start_paused = true)]
async fn q_5_two_owners_events_of_one_id_are_two_letters() {
    let journal = MemoryStore::new();
    let of = |owner: &'static str| {
        let letter = move |event: &Event| Letter {
            owner: owner.to_owned(),
            ..letter(event)
        };
        DeadLetterLayer::new(journal.clone(), "orders", letter).layer(service_fn(parse))
    };
    let mut ids = Vec::new();
    for owner in ["ada", "bob", "ada"] {
        let Delivered::DeadLettered(id) = of(owner).oneshot(event("1", "x")).await.unwrap() else {
            panic!("it can't be processed");
        };
        ids.push(id);
    }
    assert!(ids[0] != ids[1] && ids[0] == ids[2]);
    let letters = DeadLetters::new(journal);
    assert_eq!(letters.list("orders", None, 9).await.unwrap().len(), 2);
}

/// the letter of an event that failed inside a retry layer, by an error and by a response.
#[tokio::test(start_paused = true)]
async fn q_5_a_letter_has_all_attempts_of_a_retry_layer_and_the_cause() {
    type Body = http_body_util::Full<bytes::Bytes>;
    let policy = || Policy::events().service("t").build().unwrap();
    let buried = async |reset: bool| {
        let journal = MemoryStore::new();
        let letter = |_: &http::Request<Body>| Letter::default();
        let consumer = ServiceBuilder::new()
            .layer(DeadLetterLayer::new(journal.clone(), "orders", letter))
            .layer(RetryLayer::new(Dependencies::new(policy())))
            .service(service_fn(move |_: http::Request<Body>| async move {
                if reset {
                    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    return Err(BoxError::from(reset));
                }
                let mut response = http::Response::new(Body::default());
                *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                Ok(response)
            }));
        let event = http::Request::put("http://orders/1").body(Body::default());
        let Delivered::DeadLettered(id) = consumer.oneshot(event.unwrap()).await.unwrap() else {
            panic!("it failed");
        };
        let letters = DeadLetters::new(journal);
        letters.get(id).await.unwrap().unwrap()
    };
    let letter = buried(true).await;
    assert_eq!((letter.attempts, letter.cause()), (6, "reset"));
    assert_eq!(
        letter.reason,
        "orders: connection reset (6 attempts, retries exhausted): connection reset"
    );
    let notes = |letter: &DeadLetter| {
        let history = letter.history.iter();
        history.map(|event| event.note.clone()).collect::<Vec<_>>()
    };
    let mut expected = vec!["reset".to_owned(); 6];
    expected.push(letter.reason.clone());
    assert_eq!(notes(&letter), expected);
    let letter = buried(false).await;
    assert_eq!((letter.attempts, letter.cause()), (6, "http_503"));
    assert_eq!(letter.reason, "replied 503 (exhausted)");
    let mut expected = vec!["http_503".to_owned(); 6];
    expected.push(letter.reason.clone());
    assert_eq!(notes(&letter), expected);
    let times: Vec<_> = letter.history.iter().map(|event| event.at).collect();
    assert!(times.is_sorted());
}

/// a consumer that answers with a failure has failed, also when its event is redriven.
#[tokio::test(start_paused = true)]
async fn q_5_a_redriven_event_that_is_answered_with_a_failure_is_a_letter_again() {
    let journal = MemoryStore::new();
    let letters = DeadLetters::new(journal.clone());
    let consumer = service_fn(async |_: Event| {
        let mut response = http::Response::new(());
        *response.status_mut() = http::StatusCode::BAD_GATEWAY;
        Ok::<_, BoxError>(response)
    });
    let dead = DeadLetterLayer::new(journal.clone(), "orders", letter).layer(consumer);
    let Delivered::DeadLettered(id) = dead.oneshot(event("1", "")).await.unwrap() else {
        panic!("it failed");
    };
    letters.redrive(id).await.unwrap();
    let worker = letters.redelivery("orders", consumer, |_: Letter| event("1", ""));
    let worker = worker.start().unwrap();
    assert_eq!(ended(&journal, id).await, Status::Failed);
    let letter = letters.get(id).await.unwrap().unwrap();
    assert_eq!(letter.cause(), "http_502");
    drop(worker);
}

#[test]
fn o_2_letters_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let journal = MemoryStore::new();
            let layer = DeadLetterLayer::new(journal, "orders", letter);
            layer
                .layer(service_fn(parse))
                .oneshot(event("2", "x"))
                .await
                .unwrap();
        });
    });
    let metrics = snapshotter.snapshot().into_vec();
    let counted = metrics.iter().any(|(key, _, _, value)| {
        key.key().name() == "dlq_messages_total"
            && key
                .key()
                .labels()
                .any(|l| (l.key(), l.value()) == ("queue", "orders"))
            && matches!(value, DebugValue::Counter(1))
    });
    assert!(counted);
}
