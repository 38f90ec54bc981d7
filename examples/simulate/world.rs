//! Virtual time, the wire, and what is counted in between.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::error::BoxError;

use super::dice::Dice;

pub(crate) type Call = Request<()>;
pub(crate) type Reply = Response<Empty<Bytes>>;
/// A server as its clients see it, or a client.
pub(crate) type Wire = BoxCloneService<Call, Reply, BoxError>;

/// Runs on a clock that jumps to the next timer when there is nothing else to do. All tasks share
/// one thread, so the order of events is the same each time.
pub(crate) fn virtual_time<F: Future>(future: F) -> Result<F::Output, BoxError> {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    Ok(runtime.block_on(future))
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn reply(status: StatusCode) -> Reply {
    let mut reply = Response::new(Empty::new());
    *reply.status_mut() = status;
    reply
}

pub(crate) fn call() -> Call {
    let mut call = Request::new(());
    *call.uri_mut() = http::Uri::from_static("http://server.example/");
    call
}

pub(crate) fn succeeded(result: &Result<Reply, BoxError>) -> bool {
    matches!(result, Ok(reply) if reply.status().is_success())
}

/// The counts of each second.
#[derive(Debug)]
pub(crate) struct Timeline {
    start: Instant,
    slots: Mutex<Vec<Counts>>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    /// Calls that were made.
    pub(crate) calls: u64,
    /// Requests that reached the server.
    pub(crate) requests: u64,
    /// Calls that ended well, in the second in which they were made.
    pub(crate) succeeded: u64,
}

impl Counts {
    /// Requests by calls.
    pub(crate) fn load(&self) -> f64 {
        share(self.requests, self.calls)
    }

    pub(crate) fn success(&self) -> f64 {
        share(self.succeeded, self.calls)
    }
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Timeline {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            slots: Mutex::default(),
        })
    }

    pub(crate) fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub(crate) fn count(&self, counter: impl FnOnce(&mut Counts)) {
        self.count_at(Instant::now(), counter);
    }

    pub(crate) fn count_at(&self, at: Instant, counter: impl FnOnce(&mut Counts)) {
        let second = at.saturating_duration_since(self.start).as_secs();
        let slot = usize::try_from(second).unwrap_or_default();
        let mut slots = lock(&self.slots);
        if slots.len() <= slot {
            slots.resize(slot + 1, Counts::default());
        }
        counter(&mut slots[slot]);
    }

    pub(crate) fn counts(&self) -> Vec<Counts> {
        lock(&self.slots).clone()
    }

    /// All of it.
    pub(crate) fn total(&self) -> Counts {
        sum(&self.counts())
    }
}

pub(crate) fn sum(slots: &[Counts]) -> Counts {
    slots.iter().fold(Counts::default(), |sum, slot| Counts {
        calls: sum.calls + slot.calls,
        requests: sum.requests + slot.requests,
        succeeded: sum.succeeded + slot.succeeded,
    })
}

/// Makes calls that come as they like, at a rate that may change, and waits until all have ended.
pub(crate) async fn offer(
    client: Wire,
    timeline: Arc<Timeline>,
    mut dice: Dice,
    rate: impl Fn(f64) -> f64,
    until: f64,
) {
    let mut calls = JoinSet::new();
    let mut at = dice.exponential(rate(0.0));
    while at < until {
        sleep_until(timeline.start + seconds(at)).await;
        let (client, timeline) = (client.clone(), Arc::clone(&timeline));
        calls.spawn(async move {
            let made = Instant::now();
            timeline.count_at(made, |counts| counts.calls += 1);
            if succeeded(&client.oneshot(call()).await) {
                timeline.count_at(made, |counts| counts.succeeded += 1);
            }
        });
        while calls.try_join_next().is_some() {}
        at += dice.exponential(rate(at).max(1e-3));
    }
    while calls.join_next().await.is_some() {}
}

/// A server that fails calls at random, as many of them as `failing` says for a time, some 10 ms
/// away in each direction.
pub(crate) fn flaky(
    timeline: &Arc<Timeline>,
    dice: Dice,
    failing: impl Fn(f64) -> f64 + Send + Sync + 'static,
) -> Wire {
    let (timeline, dice) = (Arc::clone(timeline), Arc::new(Mutex::new(dice)));
    let failing = Arc::new(failing);
    BoxCloneService::new(service_fn(move |_: Call| {
        let (timeline, dice) = (Arc::clone(&timeline), Arc::clone(&dice));
        let failing = Arc::clone(&failing);
        async move {
            let delay = || seconds(lock(&dice).exponential(100.0));
            sleep(delay()).await;
            timeline.count(|counts| counts.requests += 1);
            let fails = lock(&dice).uniform() < failing(timeline.elapsed());
            sleep(delay()).await;
            let status = match fails {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::OK,
            };
            Ok(reply(status))
        }
    }))
}
