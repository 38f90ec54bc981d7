//! The cost of a call that succeeds: a service that answers at once, bare and under retry layers
//! of several makes.

mod budget;
mod contestant;
mod instructions;
mod others;
mod request;
mod timing;

use std::process::ExitCode;

use self::{
    budget::Deposits,
    contestant::{BARE, Contestant, HEDGE, RESILIENCE, RETRY, STACK, TOWER},
    request::Shape,
    timing::{Cost, Effort},
};
use crate::report;

const THREADS: [usize; 3] = [1, 2, 8];

pub(crate) fn run(quick: bool) {
    let runtime = runtime();
    let _context = runtime.enter();
    let contestants = contestant::all();
    let names: Vec<_> = contestants.iter().map(|c| c.name).collect();
    let effort = Effort {
        processes: if quick { 5 } else { 40 },
        rounds: 20,
        calls: 500,
    };
    eprintln!("timing and counting allocations");
    let mut values = Vec::new();
    for (shape, costs) in timing::measure(&names, effort) {
        let counted = count_instructions(&contestants, shape, quick);
        print(shape, &contestants, &costs, counted.as_deref());
        values.extend(summary(shape, &costs, counted.as_deref()));
    }
    let (rounds, each) = if quick { (5, 100_000) } else { (11, 500_000) };
    let deposits: Vec<_> = THREADS
        .into_iter()
        .inspect(|threads| eprintln!("deposits by {threads} threads"))
        .map(|threads| budget::measure(threads, rounds, each))
        .collect();
    print_deposits(&deposits);
    values.extend(deposits.iter().map(|deposit| {
        let key = format!("budget_{}_threads_ratio", deposit.threads);
        (key, deposit.ours.nanos / deposit.tower.nanos)
    }));
    // With fewer than two cores at hand nothing was contended, whatever the threads.
    let cores = deposits.iter().map(|deposit| deposit.ours.cores);
    values.push(("budget_cores".into(), cores.fold(0.0, f64::max)));
    report::json("client", &values);
}

/// Makes so many calls and nothing else, for valgrind to count.
pub(crate) fn one(contestant: &str, shape: &str, calls: &str) -> ExitCode {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut contestants = contestant::all();
    let found = contestants.iter_mut().find(|c| c.name == contestant);
    match (found, Shape::from_name(shape), calls.parse()) {
        (Some(contestant), Some(shape), Ok(calls)) => contestant.run(shape, calls),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Takes the sample of one process.
pub(crate) fn sample(shape: &str, rounds: &str, calls: &str) -> ExitCode {
    let runtime = runtime();
    let _context = runtime.enter();
    match (Shape::from_name(shape), rounds.parse(), calls.parse()) {
        (Some(shape), Ok(rounds), Ok(calls)) => timing::sample(shape, rounds, calls),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// For its clock and timers only: nothing is spawned, all futures are polled by hand.
fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime")
}

fn count_instructions(contestants: &[Contestant], shape: Shape, quick: bool) -> Option<Vec<f64>> {
    if quick {
        return None;
    }
    if !instructions::available() {
        eprintln!("no valgrind: instructions are not counted");
        return None;
    }
    eprintln!("{}: counting instructions", shape.title());
    contestants
        .iter()
        .map(|contestant| instructions::per_call(contestant.name, shape))
        .collect()
}

fn print(shape: Shape, contestants: &[Contestant], costs: &[Cost], counted: Option<&[f64]>) {
    let rows: Vec<_> = contestants
        .iter()
        .zip(costs)
        .enumerate()
        .map(|(index, (contestant, cost))| {
            let instructions = counted.map_or("-".into(), |c| format!("{:.0}", c[index]));
            let added = counted.map_or("-".into(), |c| format!("{:.0}", c[index] - c[0]));
            vec![
                contestant.title.into(),
                format!("{:.0}", cost.nanos),
                format!("{:.0}", cost.added_nanos),
                match cost.name {
                    BARE => "-".into(),
                    _ => format!(
                        "{:.2} ({:.2}-{:.2})",
                        cost.ratio[1], cost.ratio[0], cost.ratio[2]
                    ),
                },
                format!("{:.2}", cost.allocations),
                format!("{:.2}", cost.added_allocations),
                instructions,
                added,
                contestant.future_size.to_string(),
            ]
        })
        .collect();
    let head = [
        "per call",
        "ns",
        "added ns",
        "to tower's (half of processes)",
        "allocs",
        "added allocs",
        "instr.",
        "added instr.",
        "future bytes",
    ];
    report::table(shape.title(), &head, &rows);
}

fn print_deposits(deposits: &[Deposits]) {
    let rows: Vec<_> = deposits
        .iter()
        .map(|deposit| {
            vec![
                deposit.threads.to_string(),
                format!("{:.1}", deposit.ours.nanos),
                format!("{:.1}", deposit.tower.nanos),
                format!("{:.2}", deposit.ours.nanos / deposit.tower.nanos),
                format!("{:.1}", deposit.ours.cores),
                format!("{:.1}", deposit.tower.cores),
            ]
        })
        .collect();
    let head = [
        "threads",
        "our ns",
        "TpsBudget ns",
        "ratio",
        "our cores",
        "TpsBudget cores",
    ];
    let title = "deposits into one budget, wall time by deposits of all threads";
    report::table(title, &head, &rows);
}

/// Ratios are of what is added to the bare service, over what `tower::retry` adds to it, in the
/// same process; half of all processes saw a time ratio from `low` to `high`.
fn summary(shape: Shape, costs: &[Cost], counted: Option<&[f64]>) -> Vec<(String, f64)> {
    let at = |name| costs.iter().position(|cost| cost.name == name).unwrap_or(0);
    let suffix = match shape {
        Shape::Get => String::new(),
        other => format!("_{}", other.name()),
    };
    let mut values = Vec::new();
    for (key, name) in [
        ("retry", RETRY),
        ("stack", STACK),
        ("tower_resilience", RESILIENCE),
    ] {
        let [low, middle, high] = costs[at(name)].ratio;
        values.push((format!("{key}_time_ratio{suffix}"), middle));
        values.push((format!("{key}_time_ratio{suffix}_low"), low));
        values.push((format!("{key}_time_ratio{suffix}_high"), high));
        if let Some(counted) = counted {
            let added = |name| counted[at(name)] - counted[at(BARE)];
            let key = format!("{key}_instruction_ratio{suffix}");
            values.push((key, added(name) / added(TOWER)));
        }
    }
    // The time of the bare service tells a busy machine from an idle one.
    values.push((format!("bare_nanos{suffix}"), costs[at(BARE)].nanos));
    let extra = |name| costs[at(name)].added_allocations;
    match shape {
        Shape::Get => values.extend([
            ("hedge_added_nanos".into(), costs[at(HEDGE)].added_nanos),
            ("hedge_extra_allocs".into(), extra(HEDGE)),
            ("retry_extra_allocs".into(), extra(RETRY)),
            ("stack_extra_allocs_get".into(), extra(STACK)),
            ("tower_extra_allocs_get".into(), extra(TOWER)),
        ]),
        Shape::Post => values.extend([
            ("retry_extra_allocs_post".into(), extra(RETRY)),
            ("stack_extra_allocs_post".into(), extra(STACK)),
            ("tower_extra_allocs_post".into(), extra(TOWER)),
        ]),
        Shape::GetConst | Shape::GetMixed => {}
    }
    values
}
