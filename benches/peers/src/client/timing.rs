//! Nanoseconds and allocations per call.
//!
//! Where the stack and the heap of a process happen to lie moves what a layer adds by a factor of
//! two and more, for the same code. One process is one draw of that, so many are asked, each for a
//! short while, and the median of them counts.

use std::process::Command;

use tokio::time::Instant;

use super::{
    contestant::{self, BARE, TOWER},
    request::Shape,
};
use crate::{
    allocations,
    report::quantile,
    rounds::{SEED, shuffle},
};

/// The cost of one call through one contestant.
#[derive(Debug, Clone, Copy)]
struct Sample {
    nanos: f64,
    added_nanos: f64,
    allocations: f64,
}

/// The same over all processes, and what of it is more than the bare service needs.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    pub(super) name: &'static str,
    pub(super) nanos: f64,
    pub(super) added_nanos: f64,
    /// The added time over that of `tower::retry`: a quarter of the processes saw less than the
    /// first, a quarter more than the last.
    pub(super) ratio: [f64; 3],
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

/// All shapes by turns, so that a slow minute of the machine is a slow one for all.
pub(super) fn measure(names: &[&'static str], effort: Effort) -> Vec<(Shape, Vec<Cost>)> {
    let mut samples = Shape::ALL.map(|shape| (shape, Vec::new()));
    for process in 1..=effort.processes {
        for (shape, samples) in &mut samples {
            samples.push(ask(*shape, names.len(), effort));
        }
        if process % 10 == 0 {
            eprintln!("{process} of {} processes", effort.processes);
        }
    }
    let costs =
        |samples: &[Vec<Sample>]| (0..names.len()).map(|i| cost(names, i, samples)).collect();
    let all = samples.iter();
    all.map(|(shape, samples)| (*shape, costs(samples)))
        .collect()
}

fn cost(names: &[&'static str], index: usize, samples: &[Vec<Sample>]) -> Cost {
    let of = |name| names.iter().position(|n| *n == name).unwrap_or(0);
    let (bare, tower) = (of(BARE), of(TOWER));
    let over = |value: &dyn Fn(&[Sample]) -> f64, share| {
        quantile(samples.iter().map(|sample| value(sample)).collect(), share)
    };
    let ratio = |sample: &[Sample]| sample[index].added_nanos / sample[tower].added_nanos;
    Cost {
        name: names[index],
        nanos: over(&|sample| sample[index].nanos, 0.5),
        added_nanos: over(&|sample| sample[index].added_nanos, 0.5),
        ratio: [0.25, 0.5, 0.75].map(|share| over(&ratio, share)),
        allocations: over(&|sample| sample[index].allocations, 0.5),
        added_allocations: over(
            &|sample| sample[index].allocations - sample[bare].allocations,
            0.5,
        ),
    }
}

/// Has another process of this program take a sample.
fn ask(shape: Shape, contestants: usize, effort: Effort) -> Vec<Sample> {
    let program = std::env::current_exe().expect("this program's path");
    let output = Command::new(program)
        .args(["sample", shape.name()])
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
        allocations: next()?,
    })
}

/// Calls before each turn that are not timed, so that nobody pays for what the one before left in
/// the caches.
const WARM_UP: u64 = 50;

/// Takes one process's sample and prints it, a line for each contestant. They take turns in short
/// rounds, each in another order, so that nobody always follows the same one.
pub(super) fn sample(shape: Shape, rounds: usize, calls: u64) {
    let mut contestants = contestant::all();
    let count = contestants.len();
    let mut nanos = vec![Vec::with_capacity(rounds); count];
    let mut order: Vec<_> = (0..count).collect();
    let mut random = SEED;
    for _ in 0..rounds {
        shuffle(&mut order, &mut random);
        for &index in &order {
            contestants[index].run(shape, WARM_UP);
            let start = Instant::now();
            contestants[index].run(shape, calls);
            nanos[index].push(start.elapsed().as_nanos() as f64 / calls as f64);
        }
    }
    let bare = contestants.iter().position(|c| c.name == BARE).unwrap_or(0);
    for (index, contestant) in contestants.iter_mut().enumerate() {
        let allocated = allocations::during(|| contestant.run(shape, calls)) as f64 / calls as f64;
        // Round by round, as a slow round is slow for all.
        let added = nanos[index].iter().zip(&nanos[bare]).map(|(a, b)| a - b);
        let added = quantile(added.collect(), 0.5);
        println!(
            "{} {added} {allocated}",
            quantile(nanos[index].clone(), 0.5)
        );
    }
}
