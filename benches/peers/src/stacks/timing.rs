//! Nanoseconds and allocations per call.
//!
//! As in `client`, one process is one draw of where things lie in memory, so several are asked and
//! the median of them counts. In each the contestants of a kind take turns in rounds that are
//! short, so that a slow moment of the machine is one for all of them.

use std::process::Command;

use tokio::runtime::Runtime;

use super::{
    contestant::{BARE, Contestant, Kind},
    loopback, reqwest,
};
use crate::{
    report::quantile,
    rounds::{SEED, shuffle},
};

/// The cost of one call through one contestant.
#[derive(Debug, Clone, Copy)]
struct Sample {
    nanos: f64,
    added_nanos: f64,
    percent: f64,
    allocations: f64,
    added_allocations: f64,
}

/// The same over all processes.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) nanos: f64,
    pub(super) added_nanos: f64,
    /// The added time, in percent of a call without layers: a quarter of the processes saw less
    /// than the first figure, a quarter more than the last.
    pub(super) percent: [f64; 3],
    pub(super) allocations: f64,
    pub(super) added_allocations: f64,
}

/// The amount of measuring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    pub(super) processes: usize,
    pub(super) rounds: usize,
    pub(super) calls: u64,
}

pub(super) fn measure(effort: Effort) -> Vec<Cost> {
    let contestants = contestants();
    let samples: Vec<_> = (1..=effort.processes)
        .inspect(|process| eprintln!("process {process} of {}", effort.processes))
        .map(|_| ask(contestants.len(), effort))
        .collect();
    let costs = contestants.iter().enumerate();
    costs.map(|(i, c)| cost(c, i, &samples)).collect()
}

fn cost(contestant: &Contestant, index: usize, samples: &[Vec<Sample>]) -> Cost {
    let over = |value: fn(&Sample) -> f64, share| {
        let values = samples.iter().map(|sample| value(&sample[index]));
        quantile(values.collect(), share)
    };
    Cost {
        kind: contestant.kind,
        name: contestant.name,
        title: contestant.title,
        nanos: over(|s| s.nanos, 0.5),
        added_nanos: over(|s| s.added_nanos, 0.5),
        percent: [0.25, 0.5, 0.75].map(|share| over(|s| s.percent, share)),
        allocations: over(|s| s.allocations, 0.5),
        added_allocations: over(|s| s.added_allocations, 0.5),
    }
}

/// Has another process of this program take a sample.
fn ask(contestants: usize, effort: Effort) -> Vec<Sample> {
    let program = std::env::current_exe().expect("this program's path");
    let output = Command::new(program)
        .arg("stack-sample")
        .args([effort.rounds.to_string(), effort.calls.to_string()])
        .output()
        .expect("a process");
    let lines = String::from_utf8_lossy(&output.stdout);
    let samples: Vec<_> = lines.lines().filter_map(parse).collect();
    assert_eq!(samples.len(), contestants, "a sample failed: {output:?}");
    samples
}

fn parse(line: &str) -> Option<Sample> {
    let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    Some(Sample {
        nanos: next()?,
        added_nanos: next()?,
        percent: next()?,
        allocations: next()?,
        added_allocations: next()?,
    })
}

pub(super) fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

fn contestants() -> Vec<Contestant> {
    let server = loopback::http_server();
    let mut all = reqwest::without_network();
    all.extend(reqwest::over_loopback(&server));
    all.extend(loopback::hyper(&server));
    all.extend(loopback::tonic());
    all
}

/// Calls before each turn that are not timed, so that nobody pays for what the one before left in
/// the caches.
const WARM_UP: u64 = 10;

/// Takes one process's sample and prints it, a line for each contestant.
pub(super) fn sample(rounds: usize, calls: u64) {
    let mut contestants = contestants();
    for kind in Kind::ALL {
        let mut ours: Vec<_> = contestants.iter_mut().filter(|c| c.kind == kind).collect();
        for (nanos, added, percent, allocated, added_allocated) in
            sample_kind(&mut ours, rounds, calls)
        {
            println!("{nanos} {added} {percent} {allocated} {added_allocated}");
        }
    }
}

fn sample_kind(
    contestants: &mut [&mut Contestant],
    rounds: usize,
    calls: u64,
) -> Vec<(f64, f64, f64, f64, f64)> {
    let count = contestants.len();
    let mut nanos = vec![Vec::with_capacity(rounds); count];
    let mut order: Vec<_> = (0..count).collect();
    let mut random = SEED;
    for _ in 0..rounds {
        shuffle(&mut order, &mut random);
        for &index in &order {
            contestants[index].run(WARM_UP);
            let took = contestants[index].run(calls);
            nanos[index].push(took.as_nanos() as f64 / calls as f64);
        }
    }
    let allocated: Vec<_> = contestants
        .iter_mut()
        .map(|contestant| contestant.count_allocations(calls) as f64 / calls as f64)
        .collect();
    let bare = contestants.iter().position(|c| c.name == BARE).unwrap_or(0);
    let bare_nanos = quantile(nanos[bare].clone(), 0.5);
    (0..count)
        .map(|index| {
            // Round by round, as a slow round is slow for all.
            let added = nanos[index].iter().zip(&nanos[bare]).map(|(a, b)| a - b);
            let added = quantile(added.collect(), 0.5);
            (
                quantile(nanos[index].clone(), 0.5),
                added,
                added / bare_nanos * 100.0,
                allocated[index],
                allocated[index] - allocated[bare],
            )
        })
        .collect()
}

/// Makes so many calls and nothing else, for a profiler to watch.
pub(super) fn one(kind: &str, name: &str, calls: u64) -> Option<()> {
    let mut contestants = contestants();
    let is = |c: &&mut Contestant| format!("{:?}", c.kind) == kind && c.name == name;
    let contestant = contestants.iter_mut().find(is)?;
    contestant.run(calls);
    Some(())
}
