//! The cost of a call as things grow: dependencies, live keys, queues, threads.
//!
//! ```text
//! cargo bench --all-features --bench scale                  all of it
//! cargo bench --all-features --bench scale -- keys queue    some of it
//! cargo bench --all-features --bench scale -- --quick       fewer turns, and a smaller million
//! ```
//!
//! All sizes of a curve take turns in one run, each time in another order, so that a slow minute of
//! the machine is one for all; the lower quartile of a size's turns counts. Where a thing is so large
//! that the processor does not keep it close by, that is in the figures: each call goes to a place
//! that is drawn at random.
//!
//! You see tables, a chart for each curve in `target/scale`, and a last line `scale {json}`. A figure
//! out of its bound ends with status 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that can't run has nothing to report"
)]

#[path = "../../examples/support/chart.rs"]
mod chart;
mod curve;
mod dependencies;
#[path = "../../examples/support/dice.rs"]
#[allow(dead_code, reason = "the simulator uses the rest")]
mod dice;
#[path = "../stores/file.rs"]
mod file;
#[path = "../journal/fill.rs"]
mod fill;
mod keys;
#[path = "../../examples/support/progress.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod progress;
mod queue;
#[path = "../stores/report.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod report;
mod requests;
#[path = "../../examples/support/svg.rs"]
mod svg;
#[path = "../../examples/support/table.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod table;
mod threads;
mod wire;
#[path = "../stores/work.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod work;

use std::{path::Path, process::ExitCode};

use curve::Turns;
use report::Report;

const QUEUE: &str = "scale";

type Part = (
    &'static str,
    fn(&mut Report, &mut Turns) -> Vec<curve::Chart>,
);

const PARTS: [Part; 4] = [
    ("dependencies", dependencies::run),
    ("keys", keys::run),
    ("queue", queue::run),
    ("threads", threads::run),
];

fn main() -> ExitCode {
    // Cargo adds flags of its own.
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with('-'));
    let quick = flags.iter().any(|flag| flag == "--quick");
    let names = PARTS.map(|(name, _)| name);
    if let Some(unknown) = wanted.iter().find(|wanted| !names.contains(&&***wanted)) {
        eprintln!("no part '{unknown}', there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/scale");
    std::fs::create_dir_all(&folder).expect("a folder");
    println!("seed {}", curve::SEED);
    let (mut report, mut turns) = (Report::default(), Turns::new(quick));
    for (name, run) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            for chart in run(&mut report, &mut turns) {
                chart.write(&folder);
            }
        }
    }
    println!("charts: target/scale/*.svg");
    report.print("scale")
}
