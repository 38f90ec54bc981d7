//! `reprise`: retries, idempotency keys, replay and dead letters for services in any language.
//!
//! ```text
//! reprise gateway --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 \
//!     --store sqlite:gateway.db --admin 127.0.0.1:8081
//! reprise audit policy.toml --gate merge
//! reprise simulate policy.toml
//! reprise letters list
//! ```
//!
//! The library does the work; the program reads flags, wires layers and shows what operators ask for.

mod admin;
mod admin_client;
mod audit;
mod cli;
mod commands;
mod gateway;
mod output;
mod simulate;
mod store;
mod usage_error;

use std::{pin::Pin, process::ExitCode};

use tower_reprise::error::BoxError;

/// Exit status of a command line or a file that can't be used.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            ExitCode::from(UNUSABLE)
        }
    }
}

/// Prints an error and its causes.
fn report(error: &BoxError) {
    eprintln!("reprise: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        eprintln!("  because: {error}");
        source = error.source();
    }
}

/// Runs a future to its end, on as many threads as there are cores.
fn block_on(future: impl Future<Output = Result<ExitCode, BoxError>>) -> ExitCode {
    // Of a type that all commands share, so that each is compiled once, not for each kind of runtime.
    let future: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(future);
    let done = tokio::runtime::Runtime::new()
        .map_err(BoxError::from)
        .and_then(|runtime| runtime.block_on(future));
    match done {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}
