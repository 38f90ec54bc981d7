//! What three fleets of clients do to a server that has an outage, in one command:
//!
//! ```text
//! cargo run --release --example outage
//! ```
//!
//! A server on loopback can do 400 orders a second. It is well for 3 s, fails every order for 5 s,
//! and is well again. Three fleets meet it one after the other, each with 300 orders a second:
//!
//! - `none` takes the first answer, good or bad;
//! - `naive` repeats a failed call at once, up to three times;
//! - `reprise` has the five layers of this crate on its client.
//!
//! On a good day one reply in 300 is lost: `none` fails those calls, the others repeat them, and
//! only `reprise` sends a key by which the server knows that it did the order already.
//!
//! In the outage the naive fleet makes four requests of each call. They fill the server's queue,
//! and when the server is well again it works through requests that nobody waits for any more,
//! while their repeats queue up behind: the outage goes on though its cause is gone. `reprise`
//! sends a request now and then until one succeeds, and then all of them.
//!
//! You see the progress of each fleet, then a table, a chart in `target/outage.svg`, and a last
//! line `outage {…}` with the same figures as JSON. It takes 42 s, or 11 s with `--quick`.

mod chart;
mod fleet;
mod report;
mod server;
#[path = "../support/svg.rs"]
mod svg;
mod timeline;

use std::{path::Path, process::ExitCode, sync::Arc};

use tower_reprise::{Policy, error::BoxError};

use crate::{
    fleet::{CALLS_PER_SECOND, CLIENT_TIMEOUT, CLIENTS, Fleet, NAIVE_RETRIES},
    report::Figures,
    server::{CAPACITY, QUEUE, Server},
    timeline::{Plan, Timeline},
};

const USAGE: &str = "\
What three fleets of clients do to a server that has an outage.

usage: cargo run --release --example outage [-- --quick]

  --quick  11 s in place of 42 s: a shorter outage, coarser figures
  --help   this text";

#[tokio::main]
async fn main() -> ExitCode {
    let plan = match arguments(std::env::args().skip(1)) {
        Ok(Some(plan)) => plan,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(unknown) => {
            eprintln!("outage: unknown argument {unknown:?}, allowed: --quick, --help");
            return ExitCode::from(2);
        }
    };
    match run(plan).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outage: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The plan that was asked for; `None` if it is the help.
fn arguments(given: impl Iterator<Item = String>) -> Result<Option<Plan>, String> {
    let mut plan = Plan::FULL;
    for argument in given {
        match argument.as_str() {
            "--quick" => plan = Plan::QUICK,
            "--help" | "-h" => return Ok(None),
            _ => return Err(argument),
        }
    }
    Ok(Some(plan))
}

async fn run(plan: Plan) -> Result<(), BoxError> {
    // Defaults, but for the timeout, which the other fleets have too.
    let policy = Policy::synchronous()
        .service("outage-demo")
        .attempt_timeout(CLIENT_TIMEOUT)
        .build()?;
    introduce(plan, &policy);

    let mut runs = Vec::new();
    for fleet in Fleet::ALL {
        // Each fleet gets a server and a registry of its own: none inherits another's mess.
        let timeline = Arc::new(Timeline::start(plan));
        let server = Server::start(Arc::clone(&timeline)).await?;
        let clients = fleet.clients(&policy);
        tokio::select! {
            load = fleet::load(&clients, server.address(), &timeline) => load?,
            () = report::progress(fleet, &timeline) => {}
        }
        let figures = Figures::new(fleet, &timeline, server.repeated_orders());
        report::done(&figures);
        runs.push((figures, timeline));
    }

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/outage.svg");
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&file, chart::draw(&runs, plan))?;
    report::table(runs.iter().map(|(figures, _)| figures));
    println!("\nchart: target/outage.svg");
    report::json(runs.iter().map(|(figures, _)| figures));
    Ok(())
}

fn introduce(plan: Plan, policy: &Policy) {
    let breaker = policy.breaker();
    println!(
        "server    {CAPACITY} orders/s and a queue of {QUEUE}; {:?} well, {:?} outage, {:?} well\n\
         load      {CALLS_PER_SECOND} calls/s from {CLIENTS} clients that wait {CLIENT_TIMEOUT:?} for a request\n\
         none      no retries\n\
         naive     up to {NAIVE_RETRIES} retries, at once\n\
         reprise   Policy::synchronous(): up to {} retries, full jitter, budget {:.0} %, breaker {:?} to {:?};\n\
         \x20         changed: attempt_timeout {CLIENT_TIMEOUT:?}\n",
        plan.healthy,
        plan.outage,
        plan.recovery,
        policy.max_retries(),
        policy.budget().map_or(0.0, |budget| budget.ratio * 100.0),
        breaker.cooldown,
        breaker.max_cooldown,
    );
}
