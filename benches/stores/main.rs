//! The cost of the stores, each as a ratio within one run, so that it holds on any machine.
//!
//! ```text
//! cargo bench --all-features --bench stores                  all of it
//! cargo bench --all-features --bench stores -- sqlite keys   some of it
//! cargo bench --all-features --bench stores -- growth        what runs by name only
//! ```
//!
//! PostgreSQL and Redis are left out unless REPRISE_TEST_POSTGRES and REPRISE_TEST_REDIS say where
//! they are; `tests/run stores` starts both and runs all of it.
//!
//! The last line is `stores {json}`. A figure out of its bound ends with status 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that can't run has nothing to report"
)]

#[cfg(feature = "postgres")]
mod bare;
#[cfg(feature = "postgres")]
mod churn;
#[cfg(feature = "sqlite")]
mod file;
#[cfg(feature = "forrst")]
mod forrst;
#[cfg(feature = "postgres")]
mod growth;
mod keys;
mod layer;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod middle;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod report;
#[cfg(feature = "sqlite")]
mod sqlite;
mod work;

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use report::Report;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

type Part = (&'static str, fn(&mut Report));

const PARTS: &[Part] = &[
    ("layer", layer::run),
    #[cfg(feature = "forrst")]
    ("forrst", forrst::run),
    ("keys", keys::run),
    #[cfg(feature = "sqlite")]
    ("sqlite", sqlite::run),
    #[cfg(feature = "postgres")]
    ("postgres", postgres::run),
    #[cfg(feature = "redis")]
    ("redis", redis::run),
];

const BY_NAME: &[Part] = &[
    #[cfg(feature = "postgres")]
    ("growth", growth::run),
    #[cfg(feature = "postgres")]
    ("churn", churn::run),
    #[cfg(feature = "postgres")]
    ("postgres-idle", postgres::run_idle),
];

fn main() -> ExitCode {
    // Cargo adds flags of its own.
    let wanted: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let parts = || PARTS.iter().chain(BY_NAME);
    let known = |name: &String| parts().any(|(part, _)| part == name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        let names: Vec<_> = parts().map(|(name, _)| *name).collect();
        eprintln!("no part '{unknown}', there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let mut report = Report::default();
    let all = if wanted.is_empty() { PARTS } else { &[] };
    let named = parts().filter(|(name, _)| wanted.iter().any(|wanted| wanted == name));
    for (_, run) in all.iter().chain(named) {
        run(&mut report);
    }
    report.print("stores")
}
