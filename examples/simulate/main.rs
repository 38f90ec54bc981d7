//! The effect of retries on a service, and of the layers that limit it, in virtual time:
//!
//! ```text
//! cargo run --release --example simulate
//! ```
//!
//! The layers of this crate, not a model of them, next to tower's retry, tower-resilience's and
//! plain loops, in settings that others have published:
//!
//! - `writers`: everybody wants to write the same row, with and without jitter;
//! - `failures`: a server that fails some of its calls;
//! - `crowd`: an outage, and many small clients with budgets of their own;
//! - `collapse`: a server that gets slower with load, through a ramp and through a spike;
//! - `chain`: three hops that all retry, and callers that wait no longer;
//! - `herd`: everybody is told the same Retry-After;
//! - `recovery`: an outage, and its end;
//! - `overload`: twice as many calls as a server can bear;
//! - `hedge`: stragglers, with second requests for calls that take long.
//!
//! The clock is tokio's, paused: it jumps to the next timer, in steps of a millisecond. Everything
//! random comes from one seed, so that a run can be repeated, to the byte.
//!
//! You see tables, a chart for each setting in `target/simulate`, which of the figures that this
//! crate promises were missed (and then it fails, unless it is `--quick`), and a last line `simulate {…}` with all figures
//! and seeds as JSON.

mod chain;
#[path = "../support/chart.rs"]
mod chart;
mod clients;
mod collapse;
mod crowd;
#[path = "../support/dice.rs"]
mod dice;
mod failures;
mod hedge;
mod hedgers;
mod herd;
mod late;
mod others;
mod overload;
#[path = "../support/progress.rs"]
#[allow(dead_code, reason = "benchmarks use the rest")]
mod progress;
mod recovery;
mod report;
#[path = "../support/svg.rs"]
mod svg;
#[path = "../support/table.rs"]
#[allow(dead_code, reason = "benchmarks use the rest")]
mod table;
#[path = "../support/tower_retry.rs"]
mod tower_retry;
mod trials;
mod world;
mod writers;

use std::{path::Path, process::ExitCode};

use serde_json::{Map, Value, json};
use tower_reprise::error::BoxError;

use crate::{progress::Progress, report::Finding};

const USAGE: &str = "\
What retries do to a service, and what keeps them from it, in virtual time.

usage: cargo run --release --example simulate [-- OPTIONS]

  --quick      fewer clients, shorter runs, coarser figures
  --only NAME  one setting: writers, failures, crowd, collapse, chain, herd, recovery, overload,
               hedge
  --seed N     another seed than 1; everything random comes from it
  --help       this text";

/// The size of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Full,
    Quick,
}

type Setting = fn(Size, u64, &mut Progress) -> Result<Finding, BoxError>;

const SETTINGS: [(&str, Setting); 9] = [
    ("writers", writers::run),
    ("failures", failures::run),
    ("crowd", crowd::run),
    ("collapse", collapse::run),
    ("chain", chain::run),
    ("herd", herd::run),
    ("recovery", recovery::run),
    ("overload", overload::run),
    ("hedge", hedge::run),
];

#[derive(Debug)]
struct Arguments {
    size: Size,
    seed: u64,
    only: Option<String>,
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("simulate: {wrong}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("simulate: {missed} figures were missed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments; `None` if they ask for help.
fn arguments(mut given: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        size: Size::Full,
        seed: 1,
        only: None,
    };
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => arguments.size = Size::Quick,
            "--seed" => {
                let seed = value()?;
                let number = seed.parse();
                arguments.seed = number
                    .map_err(|_| format!("--seed is {seed:?}, allowed: 0 to {}", u64::MAX))?;
            }
            "--only" => {
                let name = value()?;
                let names = SETTINGS.map(|(name, _)| name);
                if !names.contains(&&*name) {
                    let names = names.join(", ");
                    return Err(format!("--only is {name:?}, allowed: {names}"));
                }
                arguments.only = Some(name);
            }
            "--help" | "-h" => return Ok(None),
            _ => {
                return Err(format!(
                    "unknown argument {argument:?}, allowed: --quick, --only, --seed, --help"
                ));
            }
        }
    }
    Ok(Some(arguments))
}

/// Runs the simulation, and returns the number of missed figures.
fn run(arguments: &Arguments) -> Result<usize, BoxError> {
    println!("seed {}", arguments.seed);
    let findings = simulate(
        arguments,
        &mut Progress::new("simulating", false),
        Finding::show,
    )?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/simulate");
    std::fs::create_dir_all(&folder)?;
    for finding in &findings {
        let chart = chart::draw(finding.title, &finding.panels);
        std::fs::write(folder.join(finding.name).with_extension("svg"), chart)?;
    }
    println!("\ncharts: target/simulate/*.svg");
    let bars = || findings.iter().flat_map(|finding| &finding.bars);
    let missed = bars().filter(|bar| !bar.holds()).count();
    println!(
        "figures that must hold: {}, missed: {missed}",
        bars().count()
    );
    println!("simulate {}", to_json(arguments, &findings));
    // They are those of a whole run: chance has more say in a short one.
    Ok(if arguments.size == Size::Full {
        missed
    } else {
        0
    })
}

/// Runs what was asked for, each setting with a seed of its own, and shows what came out of it.
fn simulate(
    arguments: &Arguments,
    progress: &mut Progress,
    show: fn(&Finding),
) -> Result<Vec<Finding>, BoxError> {
    let mut findings = Vec::new();
    for (name, setting) in SETTINGS {
        if arguments.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        progress.begin(name);
        let finding = setting(arguments.size, dice::named(arguments.seed, name), progress)?;
        progress.end();
        show(&finding);
        findings.push(finding);
    }
    Ok(findings)
}

fn to_json(arguments: &Arguments, findings: &[Finding]) -> Value {
    let settings: Map<_, _> = findings
        .iter()
        .map(|finding| (finding.name.to_owned(), finding.to_json()))
        .collect();
    json!({
        "seed": arguments.seed,
        "quick": arguments.size == Size::Quick,
        "settings": settings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(seed: u64) -> String {
        let arguments = Arguments {
            size: Size::Quick,
            seed,
            only: None,
        };
        let mut progress = Progress::new("simulating", true);
        let findings = simulate(&arguments, &mut progress, |_| {}).unwrap();
        to_json(&arguments, &findings).to_string()
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        let [first, again] = std::thread::scope(|scope| {
            [scope.spawn(|| quick(7)), scope.spawn(|| quick(7))].map(|run| run.join().unwrap())
        });
        assert_eq!(first, again);
    }

    #[test]
    fn arguments_that_are_wrong_are_named() {
        let parse = |given: &[&str]| arguments(given.iter().map(ToString::to_string));
        assert!(parse(&["--seed", "x"]).unwrap_err().contains("\"x\""));
        assert!(parse(&["--only", "x"]).unwrap_err().contains("writers"));
        assert!(parse(&["--fast"]).unwrap_err().contains("--quick"));
        assert!(parse(&["--only"]).unwrap_err().contains("needs a value"));
    }
}
