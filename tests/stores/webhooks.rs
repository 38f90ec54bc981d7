//! W-9, W-10: what is known of an endpoint is in the store, for all processes and after restarts.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{Router, extract::State, routing::post};
use http::{HeaderMap, StatusCode};
use tower_reprise::{
    delivery::{
        guard::Guard,
        webhooks::{Endpoint, Signer, Webhook, Webhooks},
    },
    store::{
        conformance::Backend,
        journal::{Entry, EntryId, Journal, Status},
    },
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A receiver that answers 404 until it works.
#[derive(Clone, Default)]
struct Receiver {
    works: Arc<AtomicBool>,
    got: Arc<Mutex<Vec<String>>>,
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap) -> StatusCode {
    let id = headers["webhook-id"].to_str().unwrap().to_owned();
    receiver.got.lock().unwrap().push(id);
    match receiver.works.load(Ordering::Relaxed) {
        true => StatusCode::OK,
        false => StatusCode::NOT_FOUND,
    }
}

impl Receiver {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let app = Router::new().route("/hook", post(receive));
        let app = app.with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    fn got(&self) -> usize {
        self.got.lock().unwrap().len()
    }
}

fn webhooks<J: Journal + Clone>(journal: J) -> Webhooks<J> {
    let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    Webhooks::builder(journal, signer)
        .guard(Guard::new().allow_http().allow("127.0.0.1").unwrap())
        .disable_after(DAY)
        .build()
        .unwrap()
}

async fn ended<J: Journal>(journal: &J, id: EntryId) -> Entry {
    loop {
        let entry = journal.find(id).await.unwrap().unwrap();
        if entry.status.is_over() {
            return entry;
        }
        tokio::task::yield_now().await;
    }
}

/// Each step is another process.
pub(crate) async fn an_endpoint_is_disabled_and_recovered<B>(backend: &B)
where
    B: Backend<Store: Journal + Clone>,
{
    let receiver = Receiver::default();
    let url = receiver.start().await;
    let endpoint = Endpoint::new(&*url).owner("ada");
    let sent_by = async || {
        let journal = backend.open().await;
        let webhooks = webhooks(journal.clone());
        let worker = webhooks.worker().start().unwrap();
        let event = Webhook::new(&*url, "{}").owner("ada");
        let entry = ended(&journal, webhooks.send(event).await.unwrap()).await;
        worker.shutdown(Duration::from_secs(60)).await;
        assert_eq!(entry.status, Status::Failed);
        let disabled = webhooks.disabled_since(&endpoint).await.unwrap();
        (entry, disabled.is_some())
    };
    let mut failed = BTreeSet::new();
    for (disabled, cause, got) in [
        (false, "404", 1),
        // A day later.
        (true, "404", 2),
        (true, "its endpoint is disabled", 2),
    ] {
        if got == 2 && failed.len() == 1 {
            backend.pass(DAY + DAY / 24).await;
        }
        let (entry, is_disabled) = sent_by().await;
        let found = entry.cause.unwrap();
        assert!(found.contains(cause), "{found}");
        assert_eq!((is_disabled, receiver.got()), (disabled, got));
        failed.insert(entry.id.to_string());
    }
    let journal = backend.open().await;
    let notices = journal.counts("reprise.alerts").await.unwrap();
    assert_eq!(
        notices.of(Status::Queued),
        4,
        "of three events and the endpoint"
    );

    receiver.works.store(true, Ordering::Relaxed);
    let webhooks = webhooks(journal.clone());
    let recovered = webhooks.recover(&endpoint, SystemTime::UNIX_EPOCH).await;
    assert_eq!(recovered.unwrap(), 3);
    let worker = webhooks.worker().start().unwrap();
    for id in &failed {
        let entry = ended(&journal, id.parse().unwrap()).await;
        assert_eq!(entry.status, Status::Completed);
    }
    worker.shutdown(Duration::from_secs(60)).await;
    let got = receiver.got.lock().unwrap().split_off(2);
    assert_eq!(got.len(), 3);
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), failed);
    assert_eq!(webhooks.disabled_since(&endpoint).await.unwrap(), None);
}
