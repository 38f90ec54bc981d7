//! Contending writers: everybody wants to change one row, and one of them at a time can.
//!
//! The setting of "Exponential Backoff And Jitter" (AWS architecture blog, 2015): a write succeeds
//! only if the row is still as the writer read it. Each way of the network takes |N(10, 2)| ms, the
//! backoff has a base of 5 ms and a cap of 2 s, and everybody begins at the same moment.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    Policy,
    error::{BoxError, Rule},
};

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::{Dice, mix},
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    world::{Call, Wire, call, lock, reply, seconds, succeeded, virtual_time},
};

const TERMS: Terms = Terms {
    retries: 100,
    base: Duration::from_millis(5),
    cap: Duration::from_secs(2),
    timeout: None,
};

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let (crowds, runs): (&[u64], u64) = match size {
        Size::Full => (&[1, 10, 25, 50, 75, 100, 150, 200], 20),
        Size::Quick => (&[10, 100], 5),
    };
    let contestants = contestants()?;
    let columns = crowds.iter().map(|crowd| format!("{crowd} writers"));
    let mut calls = Table::new("calls a writer", columns.clone());
    let mut times = Table::new("until all are done", columns);
    let (mut call_lines, mut time_lines) = (Vec::new(), Vec::new());
    for contestant in &contestants {
        let (mut made, mut took) = (Vec::new(), Vec::new());
        for &crowd in crowds {
            let (mut attempts, mut time) = (0, 0.0);
            for run in 0..runs {
                progress.run(format_args!("{}, {crowd} writers", contestant.name));
                let seed = mix(mix(seed, crowd), run);
                let (more, longer) = virtual_time(contend(contestant, crowd, seed))??;
                attempts += more;
                time += longer / runs as f64;
            }
            made.push((crowd as f64, attempts as f64 / runs as f64));
            took.push((crowd as f64, time));
        }
        let each = made
            .iter()
            .map(|(crowd, calls)| Figure::Times(calls / crowd));
        calls.row(contestant.name, each.collect());
        times.row(
            contestant.name,
            took.iter()
                .map(|(_, time)| Figure::Seconds(*time))
                .collect(),
        );
        call_lines.push((contestant.name.into(), made));
        time_lines.push((contestant.name.into(), took));
    }
    let at_100 = |name: &str| {
        let line = call_lines
            .iter()
            .find(|(known, _): &&(String, _)| known == name);
        let point = line.and_then(|(_, points)| points.iter().find(|(crowd, _)| *crowd == 100.0));
        point.map_or(f64::NAN, |(_, calls)| *calls)
    };
    let saved = 1.0 - at_100("ours: full jitter") / at_100("plain exponential");
    let bars = vec![Bar::at_least(
        0.5,
        saved,
        "share of calls that full jitter saves at 100 writers (published: 0.57)",
    )];
    let panel = |label, lines| Panel {
        x: Axis::plain("writers"),
        y: Axis::plain(label),
        lines,
    };
    Ok(Finding {
        name: "writers",
        title: "one row, optimistic concurrency, everybody at once",
        seed,
        tables: vec![calls, times],
        panels: vec![
            panel("calls in all", call_lines),
            panel("seconds until all are done", time_lines),
        ],
        bars,
        notes: Vec::new(),
    })
}

fn contestants() -> Result<[Contestant; 6], BoxError> {
    // One row that a crowd fights for takes more attempts than any service should be asked for.
    let why = "simulated contention";
    let policy = || {
        Policy::batch_item()
            .max_retries(TERMS.retries)
            .base(TERMS.base)
            .cap(TERMS.cap)
            .without_budget()
            .retry_status(StatusCode::CONFLICT)
            .approve(Rule::R2, why)
            .approve(Rule::R4, why)
            .approve(Rule::R7, why)
    };
    Ok([
        Contestant::looped("no backoff", Wait::Never),
        Contestant::looped("plain exponential", Wait::Exponential),
        Contestant::TOWER,
        Contestant::RESILIENCE,
        Contestant::retry("ours: full jitter", policy().build()?),
        Contestant::retry("ours: decorrelated", policy().decorrelated().build()?),
    ])
}

/// Attempts of all writers together, and how long the last of them took.
async fn contend(contestant: &Contestant, crowd: u64, seed: u64) -> Result<(u64, f64), BoxError> {
    let attempts = Arc::new(AtomicU64::new(0));
    let row = row(Arc::clone(&attempts), Dice::new(mix(seed, 0)));
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for number in 1..=crowd {
        let client = contestant.client(TERMS, mix(seed, number), row.clone())?;
        writers.spawn(async move { while !succeeded(&client.clone().oneshot(call()).await) {} });
    }
    while writers.join_next().await.is_some() {}
    Ok((
        attempts.load(Ordering::Relaxed),
        start.elapsed().as_secs_f64(),
    ))
}

/// The row: a call reads its version, and writes if it is still the same.
fn row(attempts: Arc<AtomicU64>, dice: Dice) -> Wire {
    let (version, dice) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(dice)));
    BoxCloneService::new(service_fn(move |_: Call| {
        let (attempts, version) = (Arc::clone(&attempts), Arc::clone(&version));
        let dice = Arc::clone(&dice);
        async move {
            let way = || sleep(seconds(lock(&dice).normal(0.01, 0.002).abs()));
            attempts.fetch_add(1, Ordering::Relaxed);
            way().await;
            let read = version.load(Ordering::Relaxed);
            way().await;
            way().await;
            let (same, next) = (Ordering::Relaxed, read + 1);
            let written = version.compare_exchange(read, next, same, same).is_ok();
            way().await;
            Ok(reply(match written {
                true => StatusCode::OK,
                false => StatusCode::CONFLICT,
            }))
        }
    }))
}
