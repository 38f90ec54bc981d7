//! Nanoseconds and allocations per call.

use tokio::time::Instant;

use super::{
    contestant::{BARE, Contestant},
    request::Shape,
};
use crate::{allocations, calibration, report::median};

/// What one contestant needs for one call, and what of it is more than the bare service needs.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    pub(super) name: &'static str,
    pub(super) nanos: f64,
    pub(super) added_nanos: f64,
    pub(super) allocations: f64,
    pub(super) added_allocations: f64,
}

/// Calls before each turn that are not timed, so that nobody pays for what the one before left in
/// the caches and on the heap.
const WARM_UP: u64 = 50;

/// Takes turns in many short rounds, each in another order, so that whatever else the machine
/// does meets all of them alike and nobody always follows the same one. Returns the costs, and
/// how much of a core there was.
pub(super) fn measure(
    contestants: &mut [Contestant],
    shape: Shape,
    rounds: usize,
    calls: u64,
) -> (Vec<Cost>, f64) {
    let count = contestants.len();
    let mut nanos = vec![Vec::with_capacity(rounds); count];
    let mut order: Vec<_> = (0..count).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut parallel_steps = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        parallel_steps.push(calibration::parallel_steps());
        shuffle(&mut order, &mut random);
        for &index in &order {
            contestants[index].run(shape, WARM_UP);
            let start = Instant::now();
            contestants[index].run(shape, calls);
            nanos[index].push(start.elapsed().as_nanos() as f64 / calls as f64);
        }
    }
    let allocated: Vec<_> = contestants
        .iter_mut()
        .map(|contestant| allocations::during(|| contestant.run(shape, calls)) as f64)
        .map(|allocated| allocated / calls as f64)
        .collect();
    let bare = contestants.iter().position(|c| c.name == BARE).unwrap_or(0);
    let costs = (0..count)
        .map(|index| Cost {
            name: contestants[index].name,
            nanos: median(nanos[index].clone()),
            // Round by round, as a slow round is slow for all.
            added_nanos: median(
                nanos[index]
                    .iter()
                    .zip(&nanos[bare])
                    .map(|(with, without)| with - without)
                    .collect(),
            ),
            allocations: allocated[index],
            added_allocations: allocated[index] - allocated[bare],
        })
        .collect();
    (costs, median(parallel_steps))
}

/// The same orders in every run.
fn shuffle(order: &mut [usize], random: &mut u64) {
    for last in (1..order.len()).rev() {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        order.swap(last, (*random % (last as u64 + 1)) as usize);
    }
}
