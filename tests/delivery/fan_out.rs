//! One event for many endpoints: `Webhooks::send_many`.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use http::HeaderMap;
use tower_reprise::{
    delivery::{
        guard::Guard,
        webhooks::{SendError, Signer, Webhook, Webhooks},
    },
    store::{
        MemoryStore, StoreError, StoreErrorKind,
        journal::{Enqueued, Journal, NewEntry, Status, WrapJournal, WrappedJournal},
    },
};

use crate::setup::{SECOND, ended_really};

type Received = Arc<Mutex<Vec<(String, Bytes)>>>;

async fn receive(State(received): State<Received>, headers: HeaderMap, body: Bytes) {
    let id = headers["webhook-id"].to_str().unwrap().to_owned();
    received.lock().unwrap().push((id, body));
}

/// A receiver on loopback.
async fn receiver() -> (String, Received) {
    let received = Received::default();
    let app = Router::new().route("/{hook}", post(receive));
    let app = app.with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, received)
}

fn webhooks<J: Journal + Clone>(journal: J) -> Webhooks<J> {
    let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let guard = Guard::new().allow_http().allow("127.0.0.1").unwrap();
    Webhooks::builder(journal, signer)
        .guard(guard)
        .build()
        .unwrap()
}

/// Notes the size of each call and of the parts of its payloads, and fails calls after a few.
#[derive(Default)]
struct Noting {
    calls: Mutex<Vec<usize>>,
    own: Mutex<usize>,
    ends: Mutex<BTreeSet<[u8; 16]>>,
    works_for: Option<usize>,
}

impl WrapJournal for Noting {
    async fn enqueue_many<J: Journal>(
        &self,
        journal: &J,
        entries: Vec<NewEntry>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        self.calls.lock().unwrap().push(entries.len());
        for entry in &entries {
            let (own, shared) = entry.parts();
            *self.own.lock().unwrap() += own.len();
            self.ends
                .lock()
                .unwrap()
                .extend(shared.map(|shared| *shared.id()));
        }
        if self
            .works_for
            .is_some_and(|calls| self.calls.lock().unwrap().len() > calls)
        {
            return Err(StoreError::new(StoreErrorKind::Timeout, "no response"));
        }
        journal.enqueue_many(entries).await
    }
}

/// T-8: whatever the endpoints are, the body is stored once.
#[tokio::test]
async fn t_8_an_event_for_many_endpoints_is_stored_once() {
    let store = MemoryStore::new();
    let journal = Arc::new(WrappedJournal::new(store.clone(), Noting::default()));
    let webhooks = webhooks(journal.clone());
    let (url, received) = receiver().await;
    let body = format!("{{\"event\":\"{}\"}}", "paid".repeat(1000));
    let mut events: Vec<_> = (0..50)
        .map(|n| Webhook::new(format!("{url}/{n}"), body.clone()).owner(format!("owner {n}")))
        .collect();
    events.push(Webhook::new("https://10.0.0.1/", body.clone()));
    events.push(Webhook::new(format!("{url}/other"), "{}"));
    let answers = webhooks.send_many(events).await;
    let refused = |answer: &Result<_, _>| matches!(answer, Err(SendError::Target(_)));
    let refused: Vec<_> = answers.iter().map(refused).collect();
    assert_eq!(refused, (0..52).map(|n| n == 50).collect::<Vec<_>>());
    let noted = journal.wrapper();
    assert_eq!(*noted.calls.lock().unwrap(), [51]);
    assert_eq!(noted.ends.lock().unwrap().len(), 1);
    assert!(*noted.own.lock().unwrap() < 51 * 256);

    let worker = webhooks.worker().start().unwrap();
    let mut ids = Vec::new();
    for (n, answer) in answers.into_iter().enumerate() {
        let Ok(id) = answer else { continue };
        assert_eq!(ended_really(&store, id).await, Status::Completed);
        let owner = journal.find(id).await.unwrap().unwrap().owner;
        assert!(n == 51 || owner == format!("owner {n}"), "in order");
        ids.push(id.to_string());
    }
    worker.shutdown(SECOND).await;
    let received = received.lock().unwrap();
    assert_eq!(received.len(), 51);
    for (id, got) in received.iter() {
        let place = ids.iter().position(|known| known == id).unwrap();
        assert_eq!(*got, if place == 50 { "{}" } else { &*body });
    }
}

#[tokio::test]
async fn t_8_a_journal_that_fails_leaves_no_doubt_of_what_was_not_tried() {
    let noting = Noting {
        works_for: Some(1),
        ..Noting::default()
    };
    let journal = Arc::new(WrappedJournal::new(MemoryStore::new(), noting));
    let webhooks = webhooks(journal.clone());
    let event = Webhook::new("http://127.0.0.1:8080/hook", vec![b' '; 300]);
    let answers = webhooks.send_many(vec![event; 2500]).await;
    assert_eq!(answers.len(), 2500);
    for (n, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(_) => assert!(n < 1000),
            Err(SendError::Journal(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Timeout);
                assert_eq!(
                    (n >= 1000, error.may_have_happened()),
                    (true, n < 2000),
                    "{n}"
                );
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(*journal.wrapper().calls.lock().unwrap(), [1000, 1000]);
    assert!(webhooks.send_many(Vec::new()).await.is_empty());
}

/// Keeps the last answer of each call to itself.
struct Forgetting;

impl WrapJournal for Forgetting {
    async fn enqueue_many<J: Journal>(
        &self,
        journal: &J,
        entries: Vec<NewEntry>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        let mut enqueued = journal.enqueue_many(entries).await?;
        enqueued.pop();
        Ok(enqueued)
    }
}

#[tokio::test]
async fn t_8_an_event_without_an_answer_is_not_said_to_be_queued() {
    let journal = WrappedJournal::new(MemoryStore::new(), Forgetting);
    let webhooks = webhooks(Arc::new(journal));
    let event = Webhook::new("http://127.0.0.1:8080/hook", "{}");
    let mut answers = webhooks.send_many(vec![event; 3]).await;
    let Some(Err(SendError::Journal(error))) = answers.pop() else {
        panic!("the last one has no answer");
    };
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.may_have_happened() && answers.iter().all(Result::is_ok));
}
