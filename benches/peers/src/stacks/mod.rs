//! The cost that the layers add to a successful call, on widely used clients.
//!
//! Without a network the cost of reqwest-retry is the measure: both are a middleware of the same
//! chain, whose last one answers at once. Over loopback it is the call itself. There tower's `Timeout`
//! alone is measured beside the layers: it costs what any time limit costs, a timer that is set and
//! removed, and a runtime that does not sleep without an end.

mod contestant;
mod loopback;
mod reqwest;
mod timing;

use std::process::ExitCode;

use self::{
    contestant::Kind,
    timing::{Cost, Effort},
};
use crate::report;

pub(crate) fn run(quick: bool) {
    let effort = Effort {
        processes: if quick { 3 } else { 20 },
        rounds: if quick { 40 } else { 100 },
        calls: 50,
    };
    let costs = timing::measure(effort);
    for kind in Kind::ALL {
        print(kind, &costs);
    }
    report::json("stacks", &summary(&costs));
}

/// Takes the sample of one process.
pub(crate) fn sample(rounds: &str, calls: &str) -> ExitCode {
    match (rounds.parse(), calls.parse()) {
        (Ok(rounds), Ok(calls)) => timing::sample(rounds, calls),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Makes so many calls of one kind, for a profiler to watch: `NoNetwork our-retry 100000`.
pub(crate) fn one(kind: &str, contestant: &str, calls: &str) -> ExitCode {
    let made = calls
        .parse()
        .ok()
        .and_then(|calls| timing::one(kind, contestant, calls));
    made.map_or(ExitCode::from(2), |()| ExitCode::SUCCESS)
}

fn print(kind: Kind, costs: &[Cost]) {
    let rows: Vec<_> = costs
        .iter()
        .filter(|cost| cost.kind == kind)
        .map(|cost| {
            let [low, middle, high] = cost.percent;
            vec![
                cost.title.into(),
                format!("{:.0}", cost.nanos),
                format!("{:.0}", cost.added_nanos),
                format!("{middle:.2} ({low:.2}-{high:.2})"),
                format!("{:.2}", cost.allocations),
                format!("{:.2}", cost.added_allocations),
            ]
        })
        .collect();
    let head = [
        "per call",
        "ns",
        "added ns",
        "added % (half of processes)",
        "allocs",
        "added allocs",
    ];
    report::table(kind.title(), &head, &rows);
}

fn summary(costs: &[Cost]) -> Vec<(String, f64)> {
    let of = |kind, name| {
        let cost = costs.iter().find(|c| c.kind == kind && c.name == name);
        cost.expect("every contestant was measured")
    };
    let retry = of(Kind::NoNetwork, contestant::RETRY);
    let stack = of(Kind::NoNetwork, contestant::STACK);
    let theirs = of(Kind::NoNetwork, contestant::REQWEST_RETRY);
    let time = |cost: &Cost| cost.added_nanos / theirs.added_nanos;
    let allocs = |cost: &Cost| cost.added_allocations / theirs.added_allocations;
    let mut values = vec![
        ("reqwest_time_ratio".into(), time(retry)),
        ("reqwest_allocs_ratio".into(), allocs(retry)),
        ("reqwest_stack_time_ratio".into(), time(stack)),
        ("reqwest_stack_allocs_ratio".into(), allocs(stack)),
    ];
    for (key, kind, name) in [
        ("reqwest", Kind::Reqwest, contestant::STACK),
        ("tonic", Kind::Tonic, contestant::STACK),
        ("tonic_timeout", Kind::Tonic, contestant::TIMEOUT),
        ("tonic_keyed", Kind::Tonic, contestant::KEYED),
        ("hyper", Kind::Hyper, contestant::STACK),
        ("hyper_timeout", Kind::Hyper, contestant::TIMEOUT),
    ] {
        let [low, middle, high] = of(kind, name).percent;
        values.push((format!("{key}_added_percent"), middle));
        values.push((format!("{key}_added_percent_low"), low));
        values.push((format!("{key}_added_percent_high"), high));
    }
    values
}
