//! A client and a server of this crate for ten minutes, over real connections, with all that goes
//! wrong in ten minutes: nothing grows, nothing is left behind, and no bound is broken.
//!
//! ```text
//! cargo bench --all-features --bench soak               ten minutes
//! cargo bench --all-features --bench soak -- --quick    one
//! cargo bench --all-features --bench soak -- --seed 7
//! cargo bench --all-features --bench soak -- failover   a store that fails over, see `failover.rs`
//! ```
//!
//! 200 customers call 1,000 dependencies through the whole client stack. All of these are one server
//! on loopback, whose orders are under an `IdempotencyLayer` with its records in memory. It loses
//! requests and replies, breaks bodies off, is slow, busy and wrong, and some dependencies are down
//! for a while. Customers hang up, and mistype names that are not there. At first each of 100,000
//! keys is used once, as fast as it goes; that is the warm-up. Then keys come again at random, at a
//! steady rate.
//!
//! The soak test asserts:
//!
//! - memory is flat: of the seconds after the warm-up, the median of the last fifth is at most a
//!   twentieth above that of the first fifth, for what is allocated and for what the process takes,
//!   and a call leaves no more than 128 bytes behind;
//! - nothing is left: when all customers have gone, there are as many tasks and open files as before;
//! - bounds are kept, as seen by a witness that knows nothing of the layers: retries in a window of
//!   the budget, dependencies in the registry, records in the store;
//! - no order is executed twice, and every reply is that of its key.
//!
//! The last line is `soak {json}`, or `failover-SERVER {json}`. A figure out of its bound ends with status 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that can't run has nothing to report"
)]

mod customers;
#[path = "../../examples/support/dice.rs"]
#[allow(dead_code, reason = "the simulator uses the rest")]
mod dice;
mod failover;
#[path = "../stores/middle.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod middle;
#[path = "../../examples/support/progress.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod progress;
#[path = "../stores/report.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod report;
mod samples;
mod server;
#[path = "../../tests/support"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support {
    pub(crate) mod database;
    pub(crate) mod ports;
    pub(crate) mod postgres;
    pub(crate) mod redis;
}
#[path = "../../examples/support/table.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod table;
mod witness;

use std::{alloc::System, process::ExitCode, sync::Arc, time::Duration};

use cap::Cap;
use tokio::time::{Instant, interval, sleep};
use tower_reprise::{Dependencies, Policy};

use crate::{
    customers::Customers,
    progress::Progress,
    report::Report,
    samples::{ENOUGH, FLAT, Samples, open_files, open_files_allowed, tasks},
    server::{MOST_RECORDS, Server},
    support::database::left_out,
    witness::{Witness, shown},
};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const DEPENDENCIES: usize = 1000;
const KEYS: usize = 100_000;
/// Connections to each dependency have two ends, both here.
const FILES: u64 = 4 * DEPENDENCIES as u64;
/// Until caches and pools have what they will have, when all keys were used.
const SETTLING: Duration = Duration::from_secs(15);
/// The time limit for connections and tasks to end.
const ENDING: Duration = Duration::from_secs(30);

struct Arguments {
    /// The servers that fail over, instead of what goes wrong without any.
    failover: Vec<String>,
    length: Duration,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("soak: {wrong}");
            return ExitCode::from(2);
        }
    };
    if let Some(allowed) = open_files_allowed().filter(|allowed| *allowed < FILES) {
        eprintln!("soak: {allowed} open files are allowed, it takes {FILES}: ulimit -n {FILES}");
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    if arguments.failover.is_empty() {
        return runtime.block_on(run(&arguments)).print("soak");
    }
    let mut status = ExitCode::SUCCESS;
    for server in &arguments.failover {
        let Arguments { length, seed, .. } = arguments;
        println!("{server}, seed {seed}, {} s", length.as_secs());
        let Some(report) = runtime.block_on(failover::run(server, length, seed)) else {
            left_out(server, "it is not installed");
            continue;
        };
        if report.print(&format!("failover-{server}")) != ExitCode::SUCCESS {
            status = ExitCode::FAILURE;
        }
    }
    status
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        failover: Vec::new(),
        length: Duration::from_secs(600),
        seed: 1,
    };
    while let Some(argument) = given.next() {
        match &*argument {
            "--quick" => arguments.length = Duration::from_secs(60),
            "--seed" => {
                let seed = given.next().ok_or("--seed needs a value")?;
                let wrong = |_| format!("--seed is {seed:?}, allowed: 0 to {}", u64::MAX);
                arguments.seed = seed.parse().map_err(wrong)?;
            }
            "failover" => {
                let servers = failover::SERVERS.map(str::to_owned);
                arguments.failover = servers.to_vec();
                if let Some(seconds) = number("REPRISE_FAILOVER_SECONDS")? {
                    arguments.length = Duration::from_secs(seconds);
                }
            }
            server if !arguments.failover.is_empty() && failover::SERVERS.contains(&server) => {
                arguments.failover = vec![argument];
            }
            // Cargo's own.
            "--bench" => {}
            _ => {
                let allowed = "failover [postgres|redis], --quick, --seed";
                return Err(format!("unknown {argument:?}, allowed: {allowed}"));
            }
        }
    }
    Ok(arguments)
}

fn number(name: &str) -> Result<Option<u64>, String> {
    let Ok(value) = std::env::var(name) else {
        return Ok(None);
    };
    let number = value.parse().map(Some);
    number.map_err(|_| format!("{name} is {value:?}, allowed: a number"))
}

async fn run(arguments: &Arguments) -> Report {
    let Arguments { length, seed, .. } = *arguments;
    println!("seed {seed}, {} s", length.as_secs());
    let witness = Arc::new(Witness::new());
    let server = Server::start(seed, Arc::clone(&witness)).await;
    sleep(Duration::from_millis(100)).await;
    let (tasks_before, files_before) = (tasks(), open_files());

    let policy = Policy::http()
        .honours_keys()
        .service("soak")
        .total_timeout(Duration::from_secs(3))
        .attempt_timeout(Duration::from_millis(250))
        .base(Duration::from_millis(20))
        .cap(Duration::from_millis(200))
        .build()
        .expect("a policy");
    let deps = Dependencies::builder(policy)
        .capacity(DEPENDENCIES)
        .idle(Duration::from_secs(60))
        .seed(seed)
        .build();
    // Before strangers take their places.
    for dependency in 0..DEPENDENCIES {
        drop(deps.get(&witness::name(dependency)));
    }
    let customers = Customers::start(seed, server.address(), deps.clone(), &witness);
    let mut samples = Samples::new(["dependencies", "records"]);
    watch(length, &witness, &server, &deps, &mut samples).await;
    customers.leave().await;

    let ending = Instant::now();
    let left = || (tasks() > tasks_before) || (open_files() > files_before);
    while left() && ending.elapsed() < ENDING {
        sleep(Duration::from_millis(100)).await;
    }
    samples.table().show();
    witness.table().show();
    println!();
    let mut report = Report::default();
    report.note("seed", seed as f64);
    report.note("seconds", length.as_secs_f64());
    witness.judge(&mut report);
    samples.judge(&mut report, FLAT, FLAT);
    // One more for all that there is no room for.
    let most_dependencies = DEPENDENCIES as f64 + 1.0;
    report.at_most("most_dependencies", samples.most(0), most_dependencies);
    report.at_most("most_records", samples.most(1), MOST_RECORDS as f64);
    let more = |now: usize, before: usize| now as f64 - before as f64;
    report.at_most("tasks_left", more(tasks(), tasks_before), 0.0);
    report.at_most("files_left", more(open_files(), files_before), 0.0);
    report
}

/// Looks every second, and shows what it sees.
async fn watch<C, L>(
    length: Duration,
    witness: &Witness,
    server: &Server,
    deps: &Dependencies<C, L>,
    samples: &mut Samples,
) {
    let mut progress = Progress::new("soaking", false);
    progress.begin("soak");
    let mut ticks = interval(Duration::from_secs(1));
    let started = Instant::now();
    let mut warm_since = None;
    let mut calls_before = 0;
    // On a slow machine it takes longer to have used all keys.
    let enough = |samples: &Samples| samples.warm() >= ENOUGH || started.elapsed() > 3 * length;
    while started.elapsed() < length || !enough(samples) {
        ticks.tick().await;
        if witness.all_keys_were_used() {
            warm_since.get_or_insert_with(Instant::now);
        }
        let warm = warm_since.is_some_and(|since: Instant| since.elapsed() > SETTLING);
        let (calls, known) = (witness.calls(), deps.list().len());
        samples.take(
            started.elapsed(),
            warm,
            calls,
            [known as u64, server.records()],
        );
        let second = started.elapsed().as_secs();
        if progress.is_in_place() || second.is_multiple_of(10) {
            progress.tell(format_args!(
                "{second:>4} s  {:>6} calls/s  {}  {}{}",
                calls - calls_before,
                samples.last_line(),
                shown(witness),
                if warm { "" } else { "  (warming up)" }
            ));
        }
        calls_before = calls;
    }
    progress.end();
}
