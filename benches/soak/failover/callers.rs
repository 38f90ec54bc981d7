//! Callers that insist: each repeats a request under the same key until the answer is final.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::ServiceExt;
use tower_reprise::{
    delivery::replay::ReplayId,
    store::journal::{Journal, Status},
};

use super::{
    ledger::{Answer, Kind, Ledger, Replayed},
    shop::{Body, OWNER, Service, Shop},
};
use crate::dice::{Dice, mix};

/// The callers of each kind of service, 2,000 in all.
const CALLERS: [(Kind, usize); 4] = [
    (Kind::Reexecute, 700),
    (Kind::Unknown, 700),
    (Kind::ShortLease, 400),
    (Kind::Journaled, 200),
];
/// Replays of one owner are one after the other.
const OWNERS: u32 = 256;
/// The longest pause between two requests for the same thing.
const PAUSE: f64 = 0.5;
/// One in so many requests is given up before its answer.
const HANG_UPS: f64 = 0.02;
const PATIENCE: f64 = 1.0;
/// The longest time for a final answer, or for the end of a replay, many outages long.
const DEADLINE: Duration = Duration::from_secs(300);
/// The number of operations that are asked for again at a time.
const CHECKERS: usize = 256;

pub(crate) struct Callers {
    calling: JoinSet<()>,
    leave: Arc<AtomicBool>,
}

/// A caller with one operation after the other.
struct Caller {
    kind: Kind,
    service: Service,
    ledger: Arc<Ledger>,
    dice: Dice,
}

/// The end of a request that a caller insisted on.
#[derive(Debug)]
enum Insisted {
    Answered(Answer),
    Accepted(ReplayId),
    /// There was no final answer in time.
    GivenUp,
}

/// A reply, as far as callers look at it.
struct Reply {
    status: StatusCode,
    body: Bytes,
}

impl Callers {
    pub(crate) fn start<J>(seed: u64, shop: &Shop, store: &J, ledger: &Arc<Ledger>) -> Self
    where
        J: Journal + Clone,
    {
        let leave = Arc::new(AtomicBool::new(false));
        let mut calling = JoinSet::new();
        for (kind, callers) in CALLERS {
            for _ in 0..callers {
                let number = calling.len() as u64;
                let mut caller = Caller {
                    kind,
                    service: shop.service(kind),
                    ledger: Arc::clone(ledger),
                    dice: Dice::new(mix(seed, number)),
                };
                let (leave, store) = (Arc::clone(&leave), store.clone());
                calling.spawn(async move {
                    while !leave.load(Ordering::Relaxed) {
                        caller.order(&store).await;
                    }
                });
            }
        }
        Self { calling, leave }
    }

    /// They bring what they began to an end, and go.
    pub(crate) async fn leave(self) {
        self.leave.store(true, Ordering::Relaxed);
        self.calling.join_all().await;
    }
}

impl Caller {
    async fn order(&mut self, store: &impl Journal) {
        let operation = self.ledger.begin(self.kind);
        match self.insist(operation).await {
            Insisted::Answered(answer) => self.ledger.answer(operation, answer),
            Insisted::Accepted(id) => {
                // Before its end, so that one without an end counts as lost.
                self.ledger.answer(operation, Answer::Accepted);
                if let Some(status) = self.wait_for(store, id).await {
                    self.ledger.ended(Replayed {
                        operation,
                        id,
                        status,
                    });
                }
            }
            // It has no answer, which the ledger counts as lost.
            Insisted::GivenUp => println!("operation {operation} is not answered"),
        }
    }

    /// Repeats a request until the answer is final, the id of a replay, or late.
    async fn insist(&mut self, operation: u32) -> Insisted {
        let insisting = timeout(DEADLINE, self.final_answer(operation));
        insisting.await.unwrap_or(Insisted::GivenUp)
    }

    async fn final_answer(&mut self, operation: u32) -> Insisted {
        loop {
            let patience = match self.dice.uniform() < HANG_UPS {
                true => Duration::from_secs_f64(self.dice.uniform() * PATIENCE),
                false => Duration::MAX,
            };
            let call = call(&self.service, operation);
            let Ok(reply) = timeout(patience, call).await else {
                self.ledger.hung_up.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            match reply.status.as_u16() {
                200 | 202 => match (reply.execution(operation), reply.replay()) {
                    (Some(execution), _) => return Insisted::Answered(Answer::Executed(execution)),
                    (None, Some(id)) => return Insisted::Accepted(id),
                    (None, None) => self.unexpected(&reply),
                },
                409 if reply.says("outcome-unknown") => {
                    return Insisted::Answered(Answer::OutcomeUnknown);
                }
                409 | 503 => {
                    self.ledger.refused.fetch_add(1, Ordering::Relaxed);
                }
                _ => self.unexpected(&reply),
            }
            self.pause().await;
        }
    }

    /// Waits for the end of a replay; `None` if it is lost, which it is too if its end is late.
    async fn wait_for(&mut self, store: &impl Journal, id: ReplayId) -> Option<Status> {
        let waiting = async {
            loop {
                let found = store.find(id.entry()).await;
                match found.map(|entry| entry.map(|entry| entry.status)) {
                    Ok(None) => return None,
                    Ok(Some(Status::Queued | Status::Processing)) | Err(_) => {}
                    Ok(Some(status)) => return Some(status),
                }
                self.pause().await;
            }
        };
        let Ok(ended) = timeout(DEADLINE, waiting).await else {
            println!("{id} does not end");
            return None;
        };
        if ended.is_none() {
            println!("{id} is gone");
        }
        ended
    }

    async fn pause(&mut self) {
        sleep(Duration::from_secs_f64(self.dice.uniform() * PAUSE)).await;
    }

    fn unexpected(&self, reply: &Reply) {
        if self.ledger.unexpected.fetch_add(1, Ordering::Relaxed) < 10 {
            println!("unexpected: {} {:?}", reply.status, reply.body);
        }
    }
}

impl Reply {
    async fn read<B>(response: Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
    {
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.map(Collected::to_bytes).unwrap_or_default();
        Self { status, body }
    }

    fn execution(&self, operation: u32) -> Option<u32> {
        let body = std::str::from_utf8(&self.body).ok()?;
        let execution = body.strip_prefix(&format!("paid {operation} "))?;
        execution.parse().ok()
    }

    fn replay(&self) -> Option<ReplayId> {
        let document: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        document["replay_id"].as_str()?.parse().ok()
    }

    fn says(&self, word: &str) -> bool {
        let body = String::from_utf8_lossy(&self.body);
        body.contains(word)
    }
}

async fn call(service: &Service, operation: u32) -> Reply {
    let request = Request::post("/payments")
        .header(OWNER, operation % OWNERS)
        .header("idempotency-key", format!("order-{operation}"))
        .header("replay", "true")
        .body(Body::from(operation.to_string()));
    let response = service.clone().oneshot(request.expect("a request")).await;
    Reply::read(response.unwrap_or_else(|never| match never {})).await
}

/// Asks again for all that was acknowledged, with the server up: each answer is the first one.
pub(crate) async fn check<J: Journal + Clone>(shop: &Shop, store: &J, ledger: &Arc<Ledger>) {
    let acknowledged = ledger.acknowledged();
    let replays = ledger.replays();
    let mut checks = JoinSet::new();
    for checker in 0..CHECKERS {
        let mine = acknowledged.iter().skip(checker).step_by(CHECKERS);
        let mine: Vec<_> = mine.copied().collect();
        let replays = replays.iter().skip(checker).step_by(CHECKERS);
        let replays: Vec<_> = replays.copied().collect();
        let services = Kind::ALL.map(|kind| shop.service(kind));
        let (ledger, store) = (Arc::clone(ledger), store.clone());
        checks.spawn(async move {
            for (operation, kind, execution) in mine {
                let mut caller = Caller {
                    kind,
                    service: services[kind as usize].clone(),
                    ledger: Arc::clone(&ledger),
                    dice: Dice::new(operation.into()),
                };
                let answer = caller.insist(operation).await;
                match (kind, answer) {
                    (_, Insisted::Answered(Answer::Executed(now))) if now == execution => {}
                    // Its owner could not settle it before its lease ran out.
                    (Kind::ShortLease, Insisted::Answered(Answer::OutcomeUnknown)) => {
                        ledger.orphaned.fetch_add(1, Ordering::Relaxed);
                    }
                    (_, answer) => {
                        println!("{kind:?} {operation} by {execution}, now {answer:?}");
                        ledger.changed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            for replayed in replays {
                let found = store.find(replayed.id.entry()).await;
                let status = found.map(|entry| entry.map(|entry| entry.status));
                if !matches!(status, Ok(Some(now)) if now == replayed.status) {
                    println!("{replayed:?}, now {status:?}");
                    ledger.changed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    checks.join_all().await;
}
