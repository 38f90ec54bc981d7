//! An outage and its end: what clients ask of a server that is down, and how soon they are back when
//! it is well.
//!
//! One client calls at a steady rate. After five seconds the server fails all calls for thirty, and
//! then none. A client is back from the moment on at which 95 % of the calls of the next half second
//! succeed.

use std::sync::{Arc, Mutex};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tower::ServiceExt;
use tower_reprise::error::BoxError;

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::{Dice, mix},
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    world::{Timeline, call, flaky, lock, seconds, share, succeeded, sum, virtual_time},
};

const TERMS: Terms = Terms::STANDARD;
const DOWN: usize = 5;
const WELL: usize = 35;
const END: f64 = 40.0;
/// Calls over so long are looked at to tell whether a client is back.
const LOOK: f64 = 0.5;

/// The requests of a call in the outage, and the calls after it: the time after the outage at which
/// each was made, and its success.
#[derive(Default)]
struct Run {
    calls: u64,
    requests: u64,
    after: Vec<(f64, bool)>,
}

impl Run {
    fn load(&self) -> f64 {
        share(self.requests, self.calls)
    }

    /// The share of calls that succeed, of those that begin at that time.
    fn success(&self, from: f64) -> f64 {
        let calls = || {
            self.after
                .iter()
                .filter(|(at, _)| (from..from + LOOK).contains(at))
        };
        let succeeded = calls().filter(|(_, succeeded)| *succeeded).count();
        share(succeeded as u64, calls().count() as u64)
    }

    /// The seconds after which 95 % of the calls succeed.
    fn back(&self) -> f64 {
        let tenths = (0_u32..=40).map(|tenth| f64::from(tenth) / 10.0);
        let mut back = tenths.filter(|at| self.success(*at) >= 0.95);
        back.next().unwrap_or(f64::INFINITY)
    }
}

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let rates: &[(f64, u64)] = match size {
        Size::Full => &[(10.0, 100), (300.0, 10), (5000.0, 2)],
        Size::Quick => &[(10.0, 5)],
    };
    let name = |rate: f64| format!("{rate:.0} a second");
    let columns = || rates.iter().map(|(rate, _)| name(*rate));
    let mut loads = Table::new("requests a call in the outage", columns());
    let mut backs = Table::new("back after", columns());
    let (mut lines, mut bars) = (Vec::new(), Vec::new());
    for contestant in contestants()? {
        let (mut load, mut back) = (Vec::new(), Vec::new());
        for (rate, runs) in rates {
            progress.run(format_args!("{}, {}", contestant.name, name(*rate)));
            let mut all = Run::default();
            for run in 0..*runs {
                let seed = mix(mix(seed, *rate as u64), run);
                let run = virtual_time(outage(&contestant, *rate, seed))??;
                all.calls += run.calls;
                all.requests += run.requests;
                all.after.extend(run.after);
            }
            load.push(Figure::Times(all.load()));
            back.push(Figure::Seconds(all.back()));
            if contestant.name == OURS {
                let rate = name(*rate);
                bars.push(Bar::at_most(
                    0.1,
                    all.load(),
                    format!("load in the outage, {rate}"),
                ));
                let what = format!("seconds until it is back, {rate}");
                bars.push(Bar::at_most(0.5, all.back(), what));
            }
            if *rate == rates[0].0 {
                let points = (0_u32..=20).map(|tenth| f64::from(tenth) / 5.0);
                let points = points.map(|at| (at, all.success(at) * 100.0));
                lines.push((contestant.name.to_owned(), points.collect()));
            }
        }
        loads.row(contestant.name, load);
        backs.row(contestant.name, back);
    }
    Ok(Finding {
        name: "recovery",
        title: "down for 30 s, then well",
        seed,
        tables: vec![loads, backs],
        panels: vec![Panel {
            x: Axis::plain("seconds after the outage, 10 calls a second"),
            y: Axis::plain("calls that succeed, %"),
            lines,
        }],
        bars,
        notes: Vec::new(),
    })
}

const OURS: &str = "ours: stack";

fn contestants() -> Result<[Contestant; 6], BoxError> {
    Ok([
        Contestant::ONCE,
        Contestant::looped("3 retries, jitter", Wait::Full),
        Contestant::TOWER,
        Contestant::RESILIENCE,
        Contestant::budget("ours: retry, budget", TERMS.policy().build()?),
        Contestant::stack(OURS, TERMS.policy().build()?),
    ])
}

async fn outage(contestant: &Contestant, rate: f64, seed: u64) -> Result<Run, BoxError> {
    let timeline = Timeline::start();
    let start = Instant::now();
    let down = DOWN as f64..WELL as f64;
    let failing = move |at| if down.contains(&at) { 1.0 } else { 0.0 };
    let server = flaky(&timeline, Dice::new(mix(seed, 0)), failing);
    let client = contestant.client(TERMS, mix(seed, 1), server)?;
    let mut dice = Dice::new(mix(seed, 2));
    let after = Arc::new(Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    let mut at = dice.exponential(rate);
    while at < END {
        sleep_until(start + seconds(at)).await;
        timeline.count(|counts| counts.calls += 1);
        let (client, after) = (client.clone(), Arc::clone(&after));
        calls.spawn(async move {
            let succeeded = succeeded(&client.oneshot(call()).await);
            if at >= WELL as f64 {
                lock(&after).push((at - WELL as f64, succeeded));
            }
        });
        while calls.try_join_next().is_some() {}
        at += dice.exponential(rate);
    }
    while calls.join_next().await.is_some() {}
    let counts = timeline.counts();
    let outage = sum(counts.get(DOWN..WELL).unwrap_or_default());
    Ok(Run {
        calls: outage.calls,
        requests: outage.requests,
        after: std::mem::take(&mut *lock(&after)),
    })
}
