//! A failure-rate sweep: what retries cost a server that fails some of its calls, and what they
//! are worth to its clients.
//!
//! The setting of "Fixing retries with token buckets and circuit breakers" (Brooker, 2022): 100
//! clients with 10 calls a second each, all with budgets of their own, and a server whose failures
//! do not depend on its load. Then one client that makes 200 calls a second alone, which is where
//! breakers differ: what chance brings, it brings to a busy client sooner.
//!
//! A sweep takes a minute, and ten where 99 % fail: a client with 10 calls a second that may send a
//! tenth of them in an outage needs some minutes to find out that this is none.

use tower_reprise::error::BoxError;

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::mix,
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    trials::{Load, sweep},
    world::{Counts, virtual_time},
};

const TERMS: Terms = Terms::STANDARD;

/// The length of a sweep in which hardly any call succeeds.
const RARE_SUCCESS: f64 = 600.0;

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let (rates, clients, length, busy): (&[f64], u64, f64, f64) = match size {
        Size::Full => (
            &[
                0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 0.9, 0.99, 1.0,
            ],
            100,
            60.0,
            60.0,
        ),
        Size::Quick => (&[0.5], 25, 16.0, 5.0),
    };
    let many = Load {
        clients,
        rate: 10.0,
        length,
    };
    let one = Load {
        clients: 1,
        rate: 200.0,
        length: busy,
    };
    let contestants = contestants()?;
    let columns = rates
        .iter()
        .map(|rate| format!("{:.0} % fail", rate * 100.0));
    let mut loads = Table::new("requests a call", columns.clone());
    let mut successes = Table::new("calls that succeed", columns.clone());
    let mut alone = Table::new("one busy client, calls that succeed", columns);
    let (mut load_lines, mut success_lines) = (Vec::new(), Vec::new());
    let (mut at_half, mut bars) = (Vec::new(), Vec::new());
    let mut once: [Vec<(f64, Counts)>; 2] = Default::default();
    for contestant in &contestants {
        let client = |seed, wire| contestant.client(TERMS, seed, wire);
        let mut found = Vec::new();
        for (&rate, number) in rates.iter().zip(0..) {
            progress.run(format_args!(
                "{}, {:.0} % fail",
                contestant.name,
                rate * 100.0
            ));
            let seed = mix(seed, number);
            let length = match rate {
                0.99 => RARE_SUCCESS,
                _ => many.length,
            };
            let load = Load { length, ..many };
            found.push((rate, virtual_time(sweep(client, rate, load, seed))??));
        }
        let mut busy = Vec::new();
        for (&rate, number) in rates.iter().zip(0..) {
            let seed = mix(mix(seed, 1000), number);
            busy.push((rate, virtual_time(sweep(client, rate, one, seed))??));
        }
        let succeed = busy
            .iter()
            .map(|(_, counts)| Figure::Percent(counts.success()));
        alone.row(contestant.name, succeed.collect());
        if contestant.name == Contestant::ONCE.name {
            once = [found.clone(), busy.clone()];
        }
        if contestant.name == STACK {
            for ((rate, ours), (_, once)) in found.iter().zip(&once[0]) {
                bars.extend(promises("many clients", *rate, *ours, *once));
            }
            for ((rate, ours), (_, once)) in busy.iter().zip(&once[1]) {
                bars.extend(promises("a busy one", *rate, *ours, *once));
            }
        }
        let figures = |figure: fn(&Counts) -> Figure| {
            found.iter().map(|(_, counts)| figure(counts)).collect()
        };
        loads.row(
            contestant.name,
            figures(|counts| Figure::Times(counts.load())),
        );
        successes.row(
            contestant.name,
            figures(|counts| Figure::Percent(counts.success())),
        );
        let line = |figure: fn(&Counts) -> f64| {
            let points = found
                .iter()
                .map(|(rate, counts)| (rate * 100.0, figure(counts)));
            (contestant.name.to_owned(), points.collect())
        };
        load_lines.push(line(Counts::load));
        success_lines.push(line(|counts| counts.success() * 100.0));
        at_half.extend(
            found
                .iter()
                .find(|(rate, _)| *rate == 0.5)
                .map(|found| found.1),
        );
    }
    let half = |name: &str| {
        let number = contestants.iter().position(|known| known.name == name);
        number
            .and_then(|number| at_half.get(number).copied())
            .unwrap_or_default()
    };
    bars.push(Bar::at_least(
        half("token bucket").success(),
        half(OURS).success(),
        format!("success at 50 % failures next to the token bucket, {OURS}"),
    ));
    let panel = |label, lines| Panel {
        x: Axis::plain("calls that fail, %"),
        y: Axis::plain(label),
        lines,
    };
    Ok(Finding {
        name: "failures",
        title: "clients with 10 calls a second each and budgets of their own",
        seed,
        tables: vec![loads, successes, alone],
        panels: vec![
            panel("requests a call", load_lines),
            panel("calls that succeed, %", success_lines),
        ],
        bars,
        notes: Vec::new(),
    })
}

const OURS: &str = "ours: retry, budget";
const STACK: &str = "ours: stack";

/// The figures that the whole stack promises at a failure rate, next to a client without retries:
/// never fewer successes, nearly as many as 20 % of retries can bring, and no more load than that.
fn promises(what: &str, failing: f64, ours: Counts, once: Counts) -> Vec<Bar> {
    let percent = failing * 100.0;
    let named = |figure: &str| format!("{figure} at {percent:.0} %, {what}");
    let best = (1.2 * (1.0 - failing)).min(1.0);
    let most = if failing < 1.0 { 1.2 } else { 0.1 };
    let mut bars = vec![Bar::at_most(most, ours.load(), named("load"))];
    let least = once.success() - 0.005;
    bars.push(Bar::at_least(least, ours.success(), named("success")));
    if failing <= 0.75 {
        bars.push(Bar::at_least(
            0.97 * best,
            ours.success(),
            named("success by the best"),
        ));
    }
    bars
}

fn contestants() -> Result<[Contestant; 7], BoxError> {
    Ok([
        Contestant::ONCE,
        Contestant::looped("3 retries", Wait::Never),
        Contestant::BUCKET,
        Contestant::TOWER,
        Contestant::RESILIENCE,
        Contestant::budget(OURS, TERMS.policy().build()?),
        Contestant::stack(STACK, TERMS.policy().build()?),
    ])
}
