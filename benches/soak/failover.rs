//! A store that fails over for ten minutes under 2,000 callers.
//!
//! A PostgreSQL or Redis server of its own is shut down, stopped at once or killed every few seconds,
//! and started again. Meanwhile 2,000 callers insist on one operation after the other, each under its
//! key, through [services](ledger::Kind) with their records in that store; a tenth of them through a
//! journal, which a worker drains. Handlers take effect in a ledger outside of the store.
//!
//! It asserts:
//!
//! - none is lost, none is done twice: each operation whose caller got a reply took effect once, by
//!   the execution of that reply, and who asks again after the run gets the same one;
//! - each replay that was accepted ends in one state: completed with one effect, or a dead letter
//!   without any; one that is gone, or has no end after five minutes, is lost;
//! - nothing grows and nothing is left: memory, tasks and connections, looked at while the server is
//!   up, and all of them at the end. Memory is judged in a run of five minutes or more.

mod callers;
mod ledger;
mod outages;
mod shop;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, interval, sleep};
use tower_reprise::store::{IdempotencyStore, PostgresStore, RedisStore, journal::Journal};

use self::{
    callers::Callers,
    ledger::Ledger,
    outages::Outages,
    shop::{LONG_LEASE, Shop},
};
use crate::{
    ENDING,
    progress::Progress,
    report::Report,
    samples::{FLAT, Samples, open_files, tasks},
    support::{postgres, redis},
};

/// The outages after which pools, caches and the allocator have what they will have.
const WARM_UP: u32 = 6;
/// In a shorter run there are too few samples after the warm-up.
const LONG: Duration = Duration::from_secs(300);
/// The most that counts may grow: of tasks, and of files, which are connections most of all.
const STEADY: f64 = 1.25;

/// The servers that fail over.
pub(crate) const SERVERS: [&str; 2] = ["postgres", "redis"];

/// Runs with that server; `None` if it is not installed.
pub(crate) async fn run(server: &str, length: Duration, seed: u64) -> Option<Report> {
    let report = if server == "postgres" {
        let make = async || {
            let server = postgres::Own::new().await?;
            let address = server.url();
            Some((server, address))
        };
        let (outages, address) = Outages::start(seed, make)?;
        let open = async || PostgresStore::connect(address).await.expect("a store");
        soak(outages, open, length, seed).await
    } else {
        let make = async || {
            let server = redis::Own::new(&["--appendfsync", "always"]).await?;
            let address = server.url();
            Some((server, address))
        };
        let (outages, address) = Outages::start(seed, make)?;
        let open = async || RedisStore::connect(address).await.expect("a store");
        soak(outages, open, length, seed).await
    };
    Some(report)
}

async fn soak<St>(
    outages: Outages,
    open: impl AsyncFnOnce() -> St,
    length: Duration,
    seed: u64,
) -> Report
where
    St: IdempotencyStore + Journal + Clone,
{
    let (tasks_before, files_before) = (tasks(), open_files());
    let store = open().await;
    let ledger = Arc::new(Ledger::new());
    let shop = Shop::new(&store, &ledger);
    let callers = Callers::start(seed, &shop, &store, &ledger);
    let mut samples = Samples::new(["outages", "answered"]);
    watch(length, &outages, &ledger, &mut samples).await;
    outages.stop();
    callers.leave().await;
    // A short lease runs out while its settlement waits, and a repeat is told that nobody knows.
    let unsettled = shop.settled(ENDING).await;
    callers::check(&shop, &store, &ledger).await;
    shop.end(ENDING).await;
    drop(store);
    let ending = Instant::now();
    let left = || (tasks() > tasks_before) || (open_files() > files_before);
    while left() && ending.elapsed() < ENDING {
        sleep(Duration::from_millis(100)).await;
    }
    samples.table().show();
    println!();
    let mut report = Report::default();
    report.note("seed", seed as f64);
    report.note("seconds", length.as_secs_f64());
    outages.judge(&mut report, LONG_LEASE / 3);
    ledger.judge(&mut report);
    if length >= LONG {
        samples.judge(&mut report, f64::INFINITY, STEADY);
        report.at_most("resident_peak_growth", samples.peak_growth(), FLAT);
    }
    let more = |now: usize, before: usize| now as f64 - before as f64;
    report.at_most("unsettled", unsettled as f64, 0.0);
    report.at_most("tasks_left", more(tasks(), tasks_before), 0.0);
    report.at_most("files_left", more(open_files(), files_before), 0.0);
    outages.end();
    report
}

/// Looks every second. What it sees while the server is up counts.
async fn watch(length: Duration, outages: &Outages, ledger: &Ledger, samples: &mut Samples) {
    let mut progress = Progress::new("soaking", false);
    progress.begin("failover");
    let mut ticks = interval(Duration::from_secs(1));
    let started = Instant::now();
    while started.elapsed() < length {
        ticks.tick().await;
        let count = outages.count();
        let calm = count >= WARM_UP && outages.is_calm();
        let answered = ledger.answered.load(Ordering::Relaxed);
        let others = [u64::from(count), answered];
        samples.take(started.elapsed(), calm, answered, others);
        let second = started.elapsed().as_secs();
        if progress.is_in_place() || second.is_multiple_of(10) {
            progress.tell(format_args!(
                "{second:>4} s  {count:>4} outages  {}  {:>8} refused",
                samples.last_line(),
                ledger.refused.load(Ordering::Relaxed),
            ));
        }
    }
    progress.end();
}
