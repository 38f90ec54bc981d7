//! Payments over a bad network, to a server that is killed again and again: and each is made once.
//!
//! ```text
//! cargo run --release --features full --example payments
//! ```
//!
//! A bank's server is a process of its own: an axum router under an `IdempotencyLayer`, with its
//! records in a SQLite file, and a ledger in another one. Customers call it through a network that
//! cuts one connection in three, half of them after the server has made the payment and before the
//! customer hears of it. Meanwhile the server is killed (SIGKILL, at any point) and started again.
//!
//! Each customer's client has the layers of this crate: it repeats what failed, with the same key.
//! Where even that gives up, the customer presses the button again, for the same order.
//!
//! At the end the ledger is compared with what was ordered: each order must be there once, with
//! its amount. You see the progress, then a table, and a last line `payments {…}` with the same
//! figures as JSON. It takes about 15 s, or 5 s with `--quick`.

mod customers;
mod ledger;
mod network;
mod server;

use std::{
    env,
    path::Path,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use tower_reprise::error::BoxError;

use crate::{customers::Customers, ledger::Ledger, network::Network, server::Server};

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--serve", folder] => server::serve(Path::new(folder))
            .await
            .map(|()| ExitCode::SUCCESS),
        ["--quick"] => run(150, 4).await,
        [] => run(600, 12).await,
        _ => Err("usage: payments [--quick]".into()),
    }
}

/// Makes so many payments while the server is killed so many times.
async fn run(payments: u64, kills: u32) -> Result<ExitCode, BoxError> {
    let folder = env::temp_dir().join(format!("payments-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let started = Instant::now();
    let mut server = Server::start(&folder).await?;
    let network = Arc::new(Network::start(server.address()).await?);
    let customers = Customers::start(network.address(), payments)?;

    let mut killed = 0;
    while !customers.are_done() {
        tokio::time::sleep(Duration::from_millis(250)).await;
        // The last payments must meet a dead server too, so kills are spread over all of them.
        if killed < kills && customers.paid() * u64::from(kills) >= u64::from(killed) * payments {
            server.kill().await?;
            server = Server::start(&folder).await?;
            network.leads_to(server.address());
            killed += 1;
        }
        eprint!(
            "\r{:>4} of {payments} paid, {killed} kills, {} connections cut ",
            customers.paid(),
            network.cut.load(Ordering::Relaxed),
        );
    }
    eprintln!();
    let asked = customers.finish().await?;
    server.kill().await?;

    let ledger = Ledger::open(&folder)?;
    let (once, twice, missing) = ledger.compare(payments)?;
    let guarded = ledger.guarded()?;
    let cut = network.cut.load(Ordering::Relaxed);
    println!("payments ordered                          {payments:>6}");
    println!(
        "requests that reached the network         {:>6}",
        asked.requests
    );
    println!(
        "times a customer pressed the button again {:>6}",
        asked.pressed_again
    );
    println!("connections cut                           {cut:>6}");
    println!("server killed and started again           {killed:>6}");
    println!(
        "replies that came from the store          {:>6}",
        asked.replayed
    );
    println!("executions after a kill that found it paid {guarded:>5}");
    println!("in the ledger: once {once}, twice {twice}, missing {missing}");
    println!(
        r#"payments {{"payments":{payments},"requests":{},"cut":{cut},"kills":{killed},"replayed":{},"guarded":{guarded},"once":{once},"twice":{twice},"missing":{missing},"seconds":{:.1}}}"#,
        asked.requests,
        asked.replayed,
        started.elapsed().as_secs_f64()
    );
    std::fs::remove_dir_all(&folder)?;
    Ok(if once == payments && twice == 0 && missing == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
