//! The cost of the journal and its worker, each as a ratio within one run or as a plain rate.
//!
//! ```text
//! cargo bench --all-features --bench journal                  all of it
//! cargo bench --all-features --bench journal -- accept lease  some of it
//! cargo bench --all-features --bench journal -- --quick       fewer rounds, and shorter queues
//! ```
//!
//! PostgreSQL and Redis are left out unless REPRISE_TEST_POSTGRES and REPRISE_TEST_REDIS say where
//! they are; `tests/run journal` starts both and runs all of it.
//!
//! The last line is `journal {json}`. A figure out of its bound ends with status 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that can't run has nothing to report"
)]

mod accept;
mod drain;
mod fan_out;
#[path = "../stores/file.rs"]
mod file;
mod fill;
mod growth;
#[cfg(feature = "postgres")]
mod growth_postgres;
mod lease;
#[path = "../stores/middle.rs"]
mod middle;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[path = "../stores/report.rs"]
mod report;
#[cfg(feature = "postgres")]
mod wake;

use std::process::ExitCode;

use report::Report;

const QUEUE: &str = "bench";

type Part = (&'static str, fn(&mut Report, quick: bool));

const PARTS: &[Part] = &[
    ("accept", accept::run),
    ("drain", drain::run),
    #[cfg(feature = "postgres")]
    ("postgres", postgres::run),
    #[cfg(feature = "redis")]
    ("redis", redis::run),
    ("lease", lease::run),
    ("growth", growth::run),
    ("fan_out", fan_out::run),
];

fn main() -> ExitCode {
    #[cfg(feature = "postgres")]
    if wake::is_worker() {
        return ExitCode::SUCCESS;
    }
    // Cargo adds flags of its own.
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with('-'));
    let quick = flags.iter().any(|flag| flag == "--quick");
    let known = |name: &String| PARTS.iter().any(|(part, _)| part == name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
        eprintln!("no part '{unknown}', there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let mut report = Report::default();
    for (name, run) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run(&mut report, quick);
        }
    }
    report.print("journal")
}
