//! Counting an original request, by many threads at once. Both read the clock and count.

use std::{
    sync::{Arc, Barrier},
    thread,
};

use tokio::time::Instant;
use tower::retry::budget::Budget;

use super::{contestant::deps, others::tps_budget};
use crate::report::quantile;

/// Nanoseconds per deposit, over all threads together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deposits {
    pub(super) threads: usize,
    pub(super) ours: Round,
    pub(super) tower: Round,
}

/// The time of one round, and the number of cores in use: threads that share a core never contend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) nanos: f64,
    pub(super) cores: f64,
}

pub(super) fn measure(threads: usize, rounds: usize, each: u64) -> Deposits {
    let ours = deps().get("stock.example");
    let tower = Arc::new(tps_budget());
    let (mut our_rounds, mut tower_rounds) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        our_rounds.push(round(threads, each, || ours.deposit()));
        tower_rounds.push(round(threads, each, || tower.deposit()));
    }
    Deposits {
        threads,
        ours: middle(&our_rounds),
        tower: middle(&tower_rounds),
    }
}

fn middle(rounds: &[Round]) -> Round {
    Round {
        nanos: quantile(rounds.iter().map(|round| round.nanos).collect(), 0.5),
        cores: quantile(rounds.iter().map(|round| round.cores).collect(), 0.5),
    }
}

/// From the first thread's start to the last one's end, as the threads saw it: whoever waits for
/// them may be woken late.
fn round(threads: usize, each: u64, deposit: impl Fn() + Sync) -> Round {
    let barrier = Barrier::new(threads);
    let work = &|| {
        barrier.wait();
        let (start, before) = (Instant::now(), on_cpu());
        (0..each).for_each(|_| deposit());
        (start, Instant::now(), on_cpu() - before)
    };
    let spans: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|span| span.expect("no panic")).collect()
    });
    let start = spans.iter().map(|(start, ..)| *start).min();
    let end = spans.iter().map(|(_, end, _)| *end).max();
    let elapsed = end.zip(start).map(|(end, start)| end - start);
    let elapsed = elapsed.unwrap_or_default().as_nanos() as f64;
    Round {
        nanos: elapsed / (each * threads as u64) as f64,
        cores: spans.iter().map(|(.., busy)| busy).sum::<f64>() / elapsed,
    }
}

/// Nanoseconds that this thread has run.
#[cfg(unix)]
fn on_cpu() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes to the struct that it is given, and to nothing else.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } {
        0 => time.tv_sec as f64 * 1e9 + time.tv_nsec as f64,
        _ => f64::NAN,
    }
}

#[cfg(not(unix))]
fn on_cpu() -> f64 {
    f64::NAN
}
