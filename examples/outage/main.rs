//! Four fleets of clients meet a server that fails: now and then, half of the time, always, and no
//! more. In one command:
//!
//! ```text
//! cargo run --release --features hyper --example outage
//! ```
//!
//! Each fleet makes 120 calls a second to a server of its own on loopback, which can do 160:
//!
//! - `none` takes the first answer, good or bad;
//! - `naive` repeats a failed call at once, up to three times;
//! - `tower::retry` repeats it after tower's backoff, within tower's default budget;
//! - `ours` is `stacks::client` with the default policy.
//!
//! A request may take 500 ms and a call 30 s, in all fleets. In one run:
//!
//! | calls that succeed | none | naive | tower::retry | ours |
//! | --- | --- | --- | --- | --- |
//! | blips, 10 % fail for 5 s | 89 % | 100 % | 100 % | 100 % |
//! | 50 % fail for 10 s | 46 % | 18 % | 32 % | 59 % |
//! | recovery, 10 s | 100 % | 0 % | 12 % | 100 % |
//! | **requests a call** in the outage of 10 s | 1.0 | 4.0 | 1.6 | 0.15 |
//! | well again after it | at once | not | not | at once |
//!
//! The price of a retry is load. A server with room for all of them would answer 94 % of the naive
//! fleet's calls in the half failure, at 1.9 requests a call. This one has room for 1.33. What goes
//! beyond fills its queue, and then it works on requests that nobody waits for any more, while their
//! repeats queue up behind: the outage goes on when its cause is gone. `ours` stays below 1.33
//! but for moments, and in the outage it sends a request now and then until one succeeds. Calls that
//! are made before it knows wait for that a second or two, and come back little by little.
//!
//! Half of the failures are replies that were lost after the order was done. `naive` and
//! `tower::retry` do such orders twice; `ours` sends a key by which the server knows them.
//!
//! You see the load as it goes, then success and load of each phase side by side, a chart in
//! `target/outage.svg`, and a last line `outage {…}` with the same figures as JSON. It takes 44 s, or
//! 12 s with `--quick`.

mod chart;
mod fleet;
mod report;
mod server;
#[path = "../support/svg.rs"]
mod svg;
mod timeline;
#[path = "../support/tower_retry.rs"]
mod tower_retry;

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tower_reprise::{Policy, error::BoxError};

use crate::{
    fleet::{CALLS_PER_SECOND, CLIENT_TIMEOUT, CLIENTS, Fleet, PATIENCE, RETRIES},
    report::Figures,
    server::{CAPACITY, QUEUE, Server},
    timeline::Timeline,
};

const USAGE: &str = "\
Four fleets of clients meet a server that fails more and more.

usage: cargo run --release --features hyper --example outage [-- --quick]

  --quick  12 s in place of 44 s: shorter phases, coarser figures
  --help   this text";

/// The length of the blips. Each other phase takes twice the time.
const FULL: Duration = Duration::from_secs(5);
const QUICK: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    let blips = match arguments(std::env::args().skip(1)) {
        Ok(Some(blips)) => blips,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(unknown) => {
            eprintln!("outage: unknown argument {unknown:?}, allowed: --quick, --help");
            return ExitCode::from(2);
        }
    };
    match run(blips).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outage: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The length of the blips that was asked for; `None` if it is the help.
fn arguments(given: impl Iterator<Item = String>) -> Result<Option<Duration>, String> {
    let mut blips = FULL;
    for argument in given {
        match argument.as_str() {
            "--quick" => blips = QUICK,
            "--help" | "-h" => return Ok(None),
            _ => return Err(argument),
        }
    }
    Ok(Some(blips))
}

/// One fleet with a server of its own, so that no fleet feels another.
struct Run {
    fleet: Fleet,
    timeline: Arc<Timeline>,
    server: Server,
}

async fn run(blips: Duration) -> Result<(), BoxError> {
    // Defaults, but for the time limits, which the other fleets have too.
    let policy = Policy::http()
        .service("outage-demo")
        .honours_keys()
        .attempt_timeout(CLIENT_TIMEOUT)
        .total_timeout(PATIENCE)
        .build()?;
    introduce(blips, &policy);

    let mut runs = Vec::new();
    let mut loads = JoinSet::new();
    for fleet in Fleet::ALL {
        let timeline = Arc::new(Timeline::start(blips));
        let server = Server::start(Arc::clone(&timeline)).await?;
        let clients = fleet.clients(&policy)?;
        loads.spawn(fleet::load(
            clients,
            server.address(),
            Arc::clone(&timeline),
        ));
        runs.push(Run {
            fleet,
            timeline,
            server,
        });
    }
    let ended = async {
        while let Some(ended) = loads.join_next().await {
            ended??;
        }
        Ok::<_, BoxError>(())
    };
    tokio::select! {
        ended = ended => ended?,
        () = report::progress(&runs) => {}
    }

    let fleets: Vec<_> = runs.iter().map(Figures::new).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/outage.svg");
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&file, chart::draw(&fleets, &runs))?;
    report::table(&fleets);
    println!("\nchart: target/outage.svg");
    report::json(&fleets);
    Ok(())
}

fn introduce(blips: Duration, policy: &Policy) {
    let (more, budget) = (blips * 2, policy.budget());
    println!(
        "servers       {CAPACITY} orders/s and a queue of {QUEUE:?}; blips for {blips:?}, all else for {more:?}\n\
         fleets        {CALLS_PER_SECOND} calls/s from {CLIENTS} clients: {CLIENT_TIMEOUT:?} a request, {PATIENCE:?} a call\n\
         none          no retries\n\
         naive         up to {RETRIES} retries, at once\n\
         tower::retry  up to {RETRIES} retries, tower's backoff and default budget\n\
         ours          stacks::client, defaults: up to {} retries, budget {:.0} %, breaker\n",
        policy.max_retries(),
        budget.map_or(0.0, |budget| budget.ratio * 100.0),
    );
}
