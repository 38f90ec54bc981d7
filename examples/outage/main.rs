//! HEADER

mod chart;
mod fleet;
mod report;
mod server;
#[path = "../support/svg.rs"]
mod svg;
mod timeline;

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

usage: cargo run --release --example outage [-- --quick]

  --quick  10 s in place of 38 s: shorter phases, coarser figures
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
    let policy = Policy::synchronous()
        .service("outage-demo")
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
