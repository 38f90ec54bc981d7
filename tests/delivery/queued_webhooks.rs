use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::Request, routing::post};
use http::StatusCode;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies, Policy,
    delivery::{
        dead_letter::{DeadLetterLayer, DeadLetters, Letter, Redriven},
        guard::{Guard, Resolve, Resolving},
        webhooks::{
            Schedule, SendError, Sender, Signer, UserHeaders, Webhook, WebhookAlert, Webhooks,
            verify::{Verifier, WebhookVerifyLayer},
        },
        worker::WorkerHandle,
    },
    error::BoxError,
    store::{
        MemoryStore,
        journal::{EntryId, Journal, Query, Status},
    },
};

use crate::setup::{DAY, SECOND, ended, ended_really, find};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn signer() -> Signer {
    Signer::new(SECRET).unwrap()
}

/// Never answers, so that a delivery times out after 5 s.
#[derive(Debug)]
struct Silence;

impl Resolve for Silence {
    fn resolve(&self, _: &str) -> Resolving {
        Box::pin(std::future::pending())
    }
}

fn unreachable(journal: &MemoryStore, deliveries: u32) -> Webhooks<MemoryStore> {
    let sender = Sender::builder(Guard::new()).resolver(Silence);
    Webhooks::builder(journal.clone(), signer())
        .sender(sender.build().unwrap())
        .schedule(Schedule::new(deliveries).unwrap())
        .build()
        .unwrap()
}

/// A worker, and a webhook that it could not deliver.
async fn given_up(
    webhooks: &Webhooks<MemoryStore>,
    journal: &MemoryStore,
) -> (WorkerHandle, EntryId) {
    let worker = webhooks.worker().start().unwrap();
    let webhook = Webhook::new("https://shop.example/hook", "{}");
    let id = webhooks.send(webhook).await.unwrap();
    assert_eq!(ended(journal, id).await, Status::Failed);
    (worker, id)
}

#[tokio::test(start_paused = true)]
async fn w_1_deliveries_follow_the_schedule_and_end_among_the_letters() {
    let journal = MemoryStore::new();
    let webhooks = unreachable(&journal, 8);
    let (worker, id) = given_up(&webhooks, &journal).await;
    let entry = find(&journal, id).await;
    assert_eq!(entry.attempts, 8);
    let delays = [1, 5, 30, 120, 900, 3600, 14_400].map(Duration::from_secs);
    for (gap, delay) in entry.history.windows(2).zip(delays) {
        let gap = gap[1].at.since(gap[0].at);
        // Each attempt takes 5 s, and the worker looks about each second.
        let most = delay.mul_f64(1.1) + 8 * SECOND;
        assert!((delay..most).contains(&gap), "{gap:?} for {delay:?}");
    }
    let letter = DeadLetters::new(journal.clone())
        .get(id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (&*letter.reason, &*letter.payload),
        ("delivery failed: timeout", &b"{}"[..])
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn w_1_a_redrive_begins_anew_with_the_same_id() {
    let journal = MemoryStore::new();
    let webhooks = unreachable(&journal, 3);
    let (worker, id) = given_up(&webhooks, &journal).await;
    tokio::time::advance(2 * DAY).await;
    let letters = DeadLetters::new(journal.clone());
    assert_eq!(letters.redrive(id).await.unwrap(), Redriven::Queued);
    assert_eq!(ended(&journal, id).await, Status::Failed);
    assert_eq!(
        find(&journal, id).await.history.len(),
        7,
        "three more deliveries"
    );
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn w_1_across_restarts_for_a_day_at_most() {
    let journal = MemoryStore::new();
    let webhooks = unreachable(&journal, 8);
    let id = webhooks
        .send(Webhook::new("https://shop.example/hook", "{}"))
        .await
        .unwrap();
    let worker = webhooks.worker().start().unwrap();
    tokio::time::sleep(60 * SECOND).await;
    drop(worker);
    tokio::time::advance(DAY).await;
    let worker = webhooks.worker().start().unwrap();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(find(&journal, id).await.status, Status::Failed);
    let last = find(&journal, id).await.history.pop().unwrap();
    assert_eq!(last.note, "not delivered within a day");
    drop(worker);
}

#[tokio::test]
async fn w_5_w_6_what_is_not_allowed_is_not_written_down() {
    let journal = MemoryStore::new();
    let webhooks = Webhooks::builder(journal.clone(), signer())
        .build()
        .unwrap();
    for url in [
        "http://shop.example/",
        "https://127.0.0.1/",
        "https://[::ffff:10.0.0.1]/",
        "x",
    ] {
        let refused = webhooks.send(Webhook::new(url, "{}")).await.unwrap_err();
        assert!(matches!(refused, SendError::Target(_)), "{url}");
    }
    let large = Webhook::new("https://shop.example/", vec![0; (1 << 20) + 1]);
    let secret = UserHeaders::new([("authorization", "Bearer s3cret")]).unwrap();
    let secret = Webhook::new("https://shop.example/", "{}").headers(secret);
    let kind = Webhook::new("https://shop.example/", "{}").content_type("a\nb");
    let owner = Webhook::new("https://shop.example/", "{}").owner("a".repeat(256));
    for (webhook, field) in [
        (large, "webhook.body"),
        (secret, "webhook.headers"),
        (kind, "webhook.content_type"),
        (owner, "webhook.owner"),
    ] {
        let refused = webhooks.send(webhook).await.unwrap_err();
        let SendError::Invalid(error) = &refused else {
            panic!("{refused}");
        };
        assert_eq!(error.field(), field);
        assert!(!refused.to_string().contains("s3cret"));
    }
    assert!(
        journal
            .list(Query::new("webhooks", 9))
            .await
            .unwrap()
            .is_empty()
    );
}

type Requests = Arc<Mutex<Vec<http::request::Parts>>>;

/// A receiver on loopback that verifies, records and answers with these, then with 200.
async fn receiver(answers: &[u16]) -> (String, Requests) {
    let requests = Requests::default();
    let recorded = requests.clone();
    let answers = Arc::new(Mutex::new(answers.to_vec()));
    let app = Router::new().route(
        "/hook",
        post(move |request: Request| async move {
            recorded.lock().unwrap().push(request.into_parts().0);
            let mut answers = answers.lock().unwrap();
            let answer = if answers.is_empty() {
                200
            } else {
                answers.remove(0)
            };
            let answer = StatusCode::from_u16(answer).unwrap();
            (answer, [("location", "http://127.0.0.1:9/")])
        }),
    );
    let app = app.layer(WebhookVerifyLayer::new(Verifier::new(SECRET).unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, requests)
}

fn local(journal: &MemoryStore) -> Webhooks<MemoryStore> {
    let guard = Guard::new().allow_http().allow("127.0.0.1").unwrap();
    let webhooks = Webhooks::builder(journal.clone(), signer()).guard(guard);
    webhooks.build().unwrap()
}

#[tokio::test]
async fn w_4_events_arrive_signed_with_the_id_of_their_entry() {
    let journal = MemoryStore::new();
    let webhooks = local(&journal);
    let worker = webhooks.worker().start().unwrap();
    let (url, requests) = receiver(&[]).await;
    let headers = UserHeaders::new([("x-tenant", "acme")]).unwrap();
    let event = Webhook::new(url, "{\"event\":\"paid\"}")
        .label("paid")
        .headers(headers);
    let id = webhooks.send(event).await.unwrap();
    assert_eq!(ended_really(&journal, id).await, Status::Completed);
    let requests = std::mem::take(&mut *requests.lock().unwrap());
    assert_eq!(requests.len(), 1);
    let headers = &requests[0].headers;
    assert_eq!(headers["webhook-id"], *id.to_string());
    assert_eq!(
        (&headers["x-tenant"], &headers["content-type"]),
        (
            &"acme".parse().unwrap(),
            &"application/json".parse().unwrap()
        )
    );
    let found = journal.find(id).await.unwrap().unwrap();
    assert_eq!(found.history[0].note, "200");
    worker.shutdown(SECOND).await;
}

/// Unlike one that failed, which waits among the dead letters for a person.
#[tokio::test]
async fn w_2_what_was_delivered_is_kept_for_an_hour() {
    let journal = MemoryStore::new();
    let webhooks = local(&journal);
    let worker = webhooks.worker().start().unwrap();
    let (url, _) = receiver(&[200, 410]).await;
    let delivered = webhooks.send(Webhook::new(&*url, "{}")).await.unwrap();
    assert_eq!(ended_really(&journal, delivered).await, Status::Completed);
    let failed = webhooks.send(Webhook::new(url, "{}")).await.unwrap();
    assert_eq!(ended_really(&journal, failed).await, Status::Failed);
    worker.shutdown(SECOND).await;
    tokio::time::pause();
    for (minutes, is_kept) in [(59, true), (2, false)] {
        tokio::time::advance(60 * minutes * SECOND).await;
        assert_eq!(journal.find(delivered).await.unwrap().is_some(), is_kept);
        assert!(journal.find(failed).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn w_2_what_will_never_arrive_is_a_letter_at_once() {
    let journal = MemoryStore::new();
    let webhooks = local(&journal);
    let worker = webhooks.worker().start().unwrap();
    for (status, reason) in [
        (410, "http_410"),
        (302, "http_302"),
        (400, "http_400"),
        (404, "http_404"),
    ] {
        let (url, requests) = receiver(&[status]).await;
        let id = webhooks.send(Webhook::new(url, "{}")).await.unwrap();
        assert_eq!(ended_really(&journal, id).await, Status::Failed);
        assert_eq!(requests.lock().unwrap().len(), 1, "{status}");
        let letter = DeadLetters::new(journal.clone())
            .get(id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(letter.reason, format!("delivery failed: {reason}"));
    }
    worker.shutdown(SECOND).await;
}

#[tokio::test]
async fn w_4_each_owner_has_a_signer_or_none() {
    let journal = MemoryStore::new();
    let guard = Guard::new().allow_http().allow("127.0.0.1").unwrap();
    let webhooks = Webhooks::builder_with(journal.clone(), |owner| (owner == "ada").then(signer));
    let webhooks = webhooks.guard(guard).build().unwrap();
    let worker = webhooks.worker().start().unwrap();
    let (url, requests) = receiver(&[]).await;
    let ada = webhooks
        .send(Webhook::new(url.clone(), "{}").owner("ada"))
        .await
        .unwrap();
    let bob = webhooks
        .send(Webhook::new(url, "{}").owner("bob"))
        .await
        .unwrap();
    assert_eq!(ended_really(&journal, ada).await, Status::Completed);
    assert_eq!(ended_really(&journal, bob).await, Status::Failed);
    assert_eq!(requests.lock().unwrap().len(), 1);
    worker.shutdown(SECOND).await;
}

/// Nothing of what is in the letter is sent along, not even if its consumer quoted it.
#[tokio::test(start_paused = true)]
async fn s_2_q_2_an_alert_by_webhook_quotes_nothing() {
    let journal = MemoryStore::new();
    let alert = WebhookAlert::new(unreachable(&journal, 3), "https://pager.example/");
    let letters = DeadLetters::new(journal.clone());
    let letter = |_: &()| Letter::default();
    let layer = DeadLetterLayer::new(journal.clone(), "orders", letter);
    let consume = |()| async { Err::<(), BoxError>("no account of Ada".into()) };
    layer.layer(service_fn(consume)).oneshot(()).await.unwrap();
    let _alerts = letters.alerts(alert).start().unwrap();
    let sent = loop {
        if let [sent] = &journal.list(Query::new("webhooks", 9)).await.unwrap()[..] {
            break find(&journal, sent.id).await;
        }
        tokio::time::sleep(SECOND).await;
    };
    let sent = String::from_utf8_lossy(&sent.payload).into_owned();
    assert!(
        sent.contains("\"cause\":\"failed\"") && !sent.contains("Ada"),
        "{sent}"
    );
}

#[tokio::test]
async fn q_2_alerts_by_webhook_do_not_alert_of_themselves() {
    let journal = MemoryStore::new();
    let webhooks = local(&journal);
    let (url, _) = receiver(&[400]).await;
    // The receiver of alerts refuses them, too.
    let (alarm, alarms) = receiver(&[400]).await;
    let letters = DeadLetters::new(journal.clone());
    let alert = WebhookAlert::new(webhooks.clone(), alarm);
    let alerts = letters
        .alerts(alert)
        .poll(Duration::from_millis(10))
        .start()
        .unwrap();
    let worker = webhooks
        .worker()
        .poll(Duration::from_millis(10))
        .start()
        .unwrap();
    let id = webhooks.send(Webhook::new(url, "{}")).await.unwrap();
    assert_eq!(ended_really(&journal, id).await, Status::Failed);
    let all: Vec<EntryId> = loop {
        let all = journal.list(Query::new("webhooks", 9)).await.unwrap();
        let done = journal.counts("reprise.alerts").await.unwrap();
        if all.len() == 2 && done.of(Status::Completed) == 2 {
            break all.iter().map(|entry| entry.id).collect();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(ended_really(&journal, all[1]).await, Status::Failed);
    assert_eq!(alarms.lock().unwrap().len(), 1);
    worker.shutdown(SECOND).await;
    alerts.shutdown(SECOND).await;
    assert_eq!(
        journal.list(Query::new("webhooks", 9)).await.unwrap().len(),
        2
    );
}

/// P-3: the policy says how often a webhook is delivered, and for how long.
#[tokio::test(start_paused = true)]
async fn p_3_w_1_a_webhook_policy_configures_the_deliveries() {
    for (policy, schedule, deliveries) in [
        (Policy::webhook().deliveries(3), None, 3),
        (
            Policy::webhook().deliveries(8).total_timeout(60 * SECOND),
            None,
            4,
        ),
        (Policy::webhook(), None, 5),
        (Policy::webhook().deliveries(3), Some(4), 4),
        // Of another profile, which says nothing of webhooks.
        (Policy::http().max_retries(1), None, 5),
    ] {
        let journal = MemoryStore::new();
        let sender = Sender::builder(Guard::new()).resolver(Silence);
        let mut webhooks = Webhooks::builder(journal.clone(), signer())
            .sender(sender.build().unwrap())
            .dependencies(Dependencies::new(policy.budget_floor(10).build().unwrap()));
        if let Some(deliveries) = schedule {
            webhooks = webhooks.schedule(Schedule::new(deliveries).unwrap());
        }
        let (worker, id) = given_up(&webhooks.build().unwrap(), &journal).await;
        assert_eq!(find(&journal, id).await.attempts, deliveries);
        drop(worker);
    }
}

/// B-4: the jitter of deliveries can be seeded.
#[tokio::test(start_paused = true)]
async fn b_4_a_seed_repeats_the_waits_between_deliveries() {
    let mut waits = Vec::new();
    for seed in [1, 1, 2] {
        let journal = MemoryStore::new();
        let sender = Sender::builder(Guard::new()).resolver(Silence);
        let webhooks = Webhooks::builder(journal.clone(), signer())
            .sender(sender.build().unwrap())
            .seed(seed)
            .build()
            .unwrap();
        let worker = webhooks.worker().start().unwrap();
        let webhook = Webhook::new("https://shop.example/hook", "{}");
        let id = webhooks.send(webhook).await.unwrap();
        let entry = loop {
            let entry = find(&journal, id).await;
            if entry.history.len() == 2 {
                break entry;
            }
            tokio::time::sleep(SECOND).await;
        };
        waits.push(entry.due_at.since(entry.history[1].at));
        drop(worker);
    }
    assert_eq!(waits[0], waits[1]);
    assert_ne!(waits[0], waits[2]);
}
