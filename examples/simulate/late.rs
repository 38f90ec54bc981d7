//! Callers that wait 300 ms, in front of three hops that retry: the attempts that are made when nobody
//! waits any more.
//!
//! Each service finishes a request that it began, though its caller hung up. Requests take no time on
//! their way, so that all hops mean the same moment by a deadline: a header that says how much is
//! left can't know how long it travels.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::error::BoxError;

use crate::{
    Size,
    chain::{HOPS, TERMS, within_deadlines},
    clients::Contestant,
    dice::{Dice, mix},
    progress::Progress,
    report::Bar,
    table::{Figure, Table},
    world::{Call, Wire, call, lock, reply, seconds, share, succeeded, virtual_time},
};

/// The time that a caller waits.
const PATIENCE: Duration = Duration::from_millis(300);
const RATE: f64 = 500.0;
/// The mean time that the backend takes.
const SERVICE: f64 = 0.1;
const FAILING: f64 = 0.5;
/// Longer than any call takes.
const REST: Duration = Duration::from_secs(60);

/// The deadlines of calls by their URI, and the attempts at all hops.
#[derive(Debug, Default)]
struct Seen {
    deadlines: HashMap<http::Uri, Instant>,
    attempts: u64,
    late: u64,
    succeeded: u64,
}

pub(crate) fn run(
    size: Size,
    seed: u64,
    progress: &mut Progress,
) -> Result<(Table, Vec<Bar>), BoxError> {
    let calls = match size {
        Size::Full => 100_000,
        Size::Quick => 1_000,
    };
    let name = "callers that wait 300 ms";
    let mut table = Table::new(name, ["attempts", "late", "succeed"]);
    let mut bars = Vec::new();
    let hasty = || TERMS.policy().total_timeout(PATIENCE);
    for (name, edge, deadlines) in [
        ("ours: stacks", hasty(), false),
        ("ours: stacks, deadlines", hasty().send_deadline(true), true),
    ] {
        progress.run(format_args!("{name}, callers that wait 300 ms"));
        let edge = Contestant::stack(name, edge.build()?);
        let inner = Contestant::stack(name, TERMS.policy().build()?);
        let seen = virtual_time(wait(&edge, &inner, deadlines, calls, seed))??;
        let figures = vec![
            Figure::Times(share(seen.attempts, calls)),
            Figure::Times(share(seen.late, calls)),
            Figure::Percent(share(seen.succeeded, calls)),
        ];
        table.row(name, figures);
        if deadlines {
            let what = format!(
                "attempts after the caller's deadline, of {}, {name}",
                seen.attempts
            );
            bars.push(Bar::at_most(0.0, seen.late as f64, what));
        }
    }
    Ok((table, bars))
}

async fn wait(
    edge: &Contestant,
    inner: &Contestant,
    deadlines: bool,
    calls: u64,
    seed: u64,
) -> Result<Seen, BoxError> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut next = backend(Dice::new(mix(seed, 0)));
    for hop in (0..HOPS).rev() {
        if hop + 1 < HOPS {
            next = inner.client(TERMS, mix(seed, 1 + hop as u64), next)?;
            if deadlines {
                next = within_deadlines(next);
            }
        }
        next = to_the_end(next, &seen);
    }
    let client = edge.client(TERMS, mix(seed, 10), next)?;
    let mut dice = Dice::new(mix(seed, 11));
    let mut at = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..calls {
        at += seconds(dice.exponential(RATE));
        sleep_until(at).await;
        let mut call = call();
        *call.uri_mut() = format!("http://server.example/{number}").parse()?;
        let deadline = Instant::now() + PATIENCE;
        lock(&seen).deadlines.insert(call.uri().clone(), deadline);
        let (client, seen) = (client.clone(), Arc::clone(&seen));
        running.spawn(async move {
            if succeeded(&client.oneshot(call).await) {
                lock(&seen).succeeded += 1;
            }
        });
        while running.try_join_next().is_some() {}
    }
    while running.join_next().await.is_some() {}
    sleep(REST).await;
    Ok(std::mem::take(&mut *lock(&seen)))
}

fn backend(dice: Dice) -> Wire {
    let dice = Arc::new(Mutex::new(dice));
    BoxCloneService::new(service_fn(move |_: Call| {
        let (takes, fails) = {
            let mut dice = lock(&dice);
            (dice.exponential(1.0 / SERVICE), dice.uniform() < FAILING)
        };
        async move {
            sleep(seconds(takes)).await;
            Ok(reply(match fails {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::OK,
            }))
        }
    }))
}

/// A service on the other end of a wire, that does not see its caller hang up.
fn to_the_end(service: Wire, seen: &Arc<Mutex<Seen>>) -> Wire {
    let seen = Arc::clone(seen);
    BoxCloneService::new(service_fn(move |mut call: Call| {
        call.extensions_mut().clear();
        {
            let mut seen = lock(&seen);
            let deadline = seen.deadlines.get(call.uri()).copied();
            seen.attempts += 1;
            seen.late += u64::from(deadline.is_some_and(|deadline| Instant::now() >= deadline));
        }
        let served = tokio::spawn(service.clone().oneshot(call));
        async move {
            let mut reply = served.await??;
            reply.extensions_mut().clear();
            Ok(reply)
        }
    }))
}
