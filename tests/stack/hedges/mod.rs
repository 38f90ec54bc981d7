//! Second attempts of calls that are late.

mod answers;
mod budget;
mod caller;
mod counted;
mod order;
mod repeatable;
mod vetoes;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use tower::{Layer, util::BoxCloneService};
use tower_reprise::{Dependencies, HedgeLayer, Policy, error::Rule, policy::PolicyBuilder};

use crate::{
    setup::{Client, HOST},
    support::{Fixed, deps, scripted::Server, secs},
};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A call is late after 10 ms, and retries wait for a second.
fn policy() -> PolicyBuilder {
    Policy::http()
        .hedge_delay(ms(10), ms(10))
        .approve(Rule::R1, "test")
        .backoff(Fixed(secs(1)))
}

/// A registry in which 1,000 calls have gone out, so that 100 may be hedged.
fn funded(policy: PolicyBuilder) -> Dependencies {
    let deps = deps(policy);
    (0..1000).for_each(|_| deps.get(HOST).deposit());
    deps
}

fn retries(deps: &Dependencies) -> u64 {
    deps.get(HOST).status().retries
}

fn hedged(deps: &Dependencies, server: &Server) -> Client {
    BoxCloneService::new(HedgeLayer::new(deps.clone()).layer(server.clone()))
}

/// A server that counts the attempts that were called off.
fn counting_drops<F>(
    answer: impl Fn(usize) -> F + Send + Sync + 'static,
) -> (Server, Arc<AtomicUsize>)
where
    F: Future<Output = Response<Bytes>> + Send + 'static,
{
    struct CalledOff(Option<Arc<AtomicUsize>>);
    impl Drop for CalledOff {
        fn drop(&mut self) {
            if let Some(count) = &self.0 {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let count = Arc::new(AtomicUsize::new(0));
    let dropped = Arc::clone(&count);
    let server = Server::new(move |_: &Request<()>, n| {
        let (answer, guard) = (answer(n), CalledOff(Some(Arc::clone(&dropped))));
        async move {
            let (mut guard, reply) = (guard, answer.await);
            guard.0.take();
            Ok(reply)
        }
    });
    (server, count)
}
