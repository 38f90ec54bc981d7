//! Webhooks: signatures, the guard, and deliveries to real servers, over real TLS.

mod guard;
mod headers;
mod layer;
mod send;
mod sign;
mod tls;
mod verify;

use std::{
    future::ready,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tower_reprise::{
    delivery::{
        Delivery, Failure, Outcome, Sender,
        guard::{Guard, Resolve, Resolving, Target},
        sign::{MessageId, Signer},
    },
    error::BoxError,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn signer() -> Signer {
    Signer::new(SECRET).unwrap()
}

fn id() -> MessageId {
    MessageId::new("msg_p5jXN8AQM9LWM0D4loKWxJek").unwrap()
}

/// Allows this address alone, and http.
fn only(address: SocketAddr) -> Guard {
    let guard = Guard::new().allow_http();
    guard.allow(&address.ip().to_string()).unwrap()
}

fn target(url: &str, guard: &Guard) -> Target {
    Target::parse(url, guard).unwrap()
}

async fn deliver(sender: &Sender, target: Target) -> Outcome {
    let delivery = Delivery::new(target, id(), r#"{"test": 2432232314}"#);
    sender.send(&delivery, &signer()).await
}

#[track_caller]
fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        Outcome::Delivered(status) => panic!("delivered: {status}"),
    }
}

/// Answers each question with the next answer, and with the last one from then on.
#[derive(Clone)]
struct Answers {
    answers: Arc<Vec<Vec<IpAddr>>>,
    asked: Arc<AtomicUsize>,
}

impl Answers {
    fn new(answers: &[&[&str]]) -> Self {
        let parsed = answers
            .iter()
            .map(|answer| answer.iter().map(|a| a.parse().unwrap()).collect());
        Self {
            answers: Arc::new(parsed.collect()),
            asked: Arc::default(),
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for Answers {
    fn resolve(&self, _name: &str) -> Resolving {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers[number.min(self.answers.len() - 1)].clone();
        Box::pin(ready(Ok::<_, BoxError>(answer)))
    }
}
