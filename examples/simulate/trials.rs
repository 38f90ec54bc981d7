//! Two trials of clients: a server that fails some of its calls, and an outage with its end.
//!
//! The program `reprise` puts policies to them too.

use std::sync::{Arc, Mutex};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tower::ServiceExt;
use tower_reprise::error::BoxError;

use super::{
    dice::{Dice, mix},
    world::{Counts, Timeline, Wire, call, flaky, lock, offer, seconds, share, succeeded, sum},
};

/// So many clients with so many calls a second each, for so many seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) clients: u64,
    pub(crate) rate: f64,
    pub(crate) length: f64,
}

/// Counts what clients, made of a seed each, get of a server that fails this share of the requests.
pub(crate) async fn sweep(
    client: impl Fn(u64, Wire) -> Result<Wire, BoxError>,
    failing: f64,
    load: Load,
    seed: u64,
) -> Result<Counts, BoxError> {
    let timeline = Timeline::start();
    let server = flaky(&timeline, Dice::new(mix(seed, 0)), move |_| failing);
    let mut clients = JoinSet::new();
    for number in 1..=load.clients {
        let seed = mix(seed, number);
        let client = client(seed, server.clone())?;
        let dice = Dice::new(mix(seed, 2));
        clients.spawn(offer(
            client,
            timeline.clone(),
            dice,
            move |_| load.rate,
            load.length,
        ));
    }
    while clients.join_next().await.is_some() {}
    Ok(timeline.total())
}

/// The second in which the outage begins.
pub(crate) const DOWN: usize = 5;
/// The second in which it ends.
pub(crate) const WELL: usize = 35;
const END: f64 = 40.0;
/// Calls over so long are looked at to tell whether a client is back.
const LOOK: f64 = 0.5;

/// The requests of a call in the outage, and the calls after it: the time after the outage at which
/// each was made, and its success.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    calls: u64,
    requests: u64,
    after: Vec<(f64, bool)>,
}

impl Outage {
    /// Adds another run.
    pub(crate) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.requests += other.requests;
        self.after.extend(other.after);
    }

    /// Returns the requests of a call in the outage.
    pub(crate) fn load(&self) -> f64 {
        share(self.requests, self.calls)
    }

    /// Returns the share of calls that succeed, of those that begin in the half second from a time
    /// after the outage on.
    pub(crate) fn success(&self, from: f64) -> f64 {
        let calls = || {
            self.after
                .iter()
                .filter(|(at, _)| (from..from + LOOK).contains(at))
        };
        let succeeded = calls().filter(|(_, succeeded)| *succeeded).count();
        share(succeeded as u64, calls().count() as u64)
    }

    /// Returns the seconds after which 95 % of the calls succeed.
    pub(crate) fn back(&self) -> Option<f64> {
        let tenths = (0_u32..=40).map(|tenth| f64::from(tenth) / 10.0);
        let mut back = tenths.filter(|at| self.success(*at) >= 0.95);
        back.next()
    }
}

/// Runs one client, with so many calls a second, through an outage.
pub(crate) async fn outage(
    client: impl Fn(u64, Wire) -> Result<Wire, BoxError>,
    rate: f64,
    seed: u64,
) -> Result<Outage, BoxError> {
    let timeline = Timeline::start();
    let start = Instant::now();
    let down = DOWN as f64..WELL as f64;
    let failing = move |at| if down.contains(&at) { 1.0 } else { 0.0 };
    let server = flaky(&timeline, Dice::new(mix(seed, 0)), failing);
    let client = client(mix(seed, 1), server)?;
    let mut dice = Dice::new(mix(seed, 2));
    let after = Arc::new(Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    let mut at = dice.exponential(rate);
    while at < END {
        sleep_until(start + seconds(at)).await;
        timeline.count(|counts| counts.calls += 1);
        let (client, after) = (client.clone(), Arc::clone(&after));
        calls.spawn(async move {
            let succeeded = succeeded(&client.oneshot(call()).await);
            if at >= WELL as f64 {
                lock(&after).push((at - WELL as f64, succeeded));
            }
        });
        while calls.try_join_next().is_some() {}
        at += dice.exponential(rate);
    }
    while calls.join_next().await.is_some() {}
    let counts = timeline.counts();
    let outage = sum(counts.get(DOWN..WELL).unwrap_or_default());
    Ok(Outage {
        calls: outage.calls,
        requests: outage.requests,
        after: std::mem::take(&mut *lock(&after)),
    })
}
