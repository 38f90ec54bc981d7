//! The figures, while it runs and at the end.

use std::{
    io::{IsTerminal, Write, stdout},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::time::interval;

use crate::{
    Run,
    fleet::{CALLS_PER_SECOND, Fleet},
    server::CAPACITY,
    timeline::{Counts, Phase, SLOT, Timeline, slots},
};

/// A fleet is well again when this share of the calls of the next half second succeeds.
const WELL: f64 = 0.95;
const HALF_SECOND: Duration = Duration::from_millis(500);
/// The most cells of a bar of text.
const BAR: f64 = 20.0;

/// The figures of one fleet.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) fleet: Fleet,
    phases: [Counts; 4],
    recovery: Option<Duration>,
    repeated_orders: u32,
}

impl Figures {
    pub(crate) fn new(run: &Run) -> Self {
        let Run {
            fleet, timeline, ..
        } = run;
        Self {
            fleet: *fleet,
            phases: Phase::ALL.map(|phase| timeline.sum(timeline.of(phase))),
            recovery: recovery(timeline),
            repeated_orders: run.server.repeated_orders(),
        }
    }

    pub(crate) fn of(&self, phase: Phase) -> Counts {
        self.phases[phase as usize]
    }

    /// When the fleet was well after the outage, in words.
    pub(crate) fn recovered(&self) -> String {
        match self.recovery {
            Some(after) => format!("well again in {:.1} s", after.as_secs_f64()),
            None => "not well again".into(),
        }
    }

    fn to_json(&self) -> Value {
        let mut figures: Map<_, _> = Phase::ALL
            .iter()
            .map(|&phase| {
                let counts = self.of(phase);
                let (success, load) = (rounded(counts.success()), rounded(counts.load()));
                let figures = json!({ "calls": counts.calls, "success": success, "load": load });
                (phase.name().to_owned(), figures)
            })
            .collect();
        let recovery = self.recovery.map(|after| after.as_secs_f64());
        figures.insert("recovery_seconds".into(), json!(recovery));
        figures.insert("repeated_orders".into(), json!(self.repeated_orders));
        Value::Object(figures)
    }
}

fn recovery(timeline: &Timeline) -> Option<Duration> {
    let (recovery, width) = (timeline.of(Phase::Recovery), slots(HALF_SECOND));
    let well = |&first: &usize| timeline.sum(first..first + width).success() >= WELL;
    let mut starts = recovery.start..=recovery.end - width;
    let slots = starts.find(well)? - recovery.start;
    Some(SLOT * u32::try_from(slots).ok()?)
}

fn rounded(figure: f64) -> f64 {
    (figure * 10_000.0).round() / 10_000.0
}

/// Shows the load of all fleets until it is dropped: in place on a terminal, a line a second
/// elsewhere.
pub(crate) async fn progress(runs: &[Run]) {
    let terminal = stdout().is_terminal();
    let mut ticks = interval(Duration::from_millis(if terminal { 250 } else { 1000 }));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(Run { timeline, .. }) = runs.first() else {
            return;
        };
        let (at, phase) = (
            timeline.elapsed().as_secs_f64(),
            timeline.phase().map_or("calm", Phase::name),
        );
        let Some(now) = timeline.now() else {
            continue;
        };
        let mut line = format!("{at:>4.0} s  {phase:<8}  requests a call:");
        for Run {
            fleet, timeline, ..
        } in runs
        {
            let counts = timeline.sum(now.saturating_sub(slots(HALF_SECOND))..now);
            line += &format!("  {} {:.2}", fleet.name(), counts.load());
        }
        if terminal {
            print!("\r\x1b[2K{line}");
            // A terminal that is gone is no reason to stop.
            let _ = stdout().flush();
        } else {
            println!("{line}");
        }
    }
}

/// Shows success and load side by side, phase by phase.
pub(crate) fn table(fleets: &[Figures]) {
    println!("\n{:<42}requests a call", "calls that succeed");
    for phase in Phase::ALL {
        println!("{}", phase.title());
        for figures in fleets {
            let counts = figures.of(phase);
            let (success, load) = (counts.success(), counts.load());
            println!(
                "  {:<12} {:>5.1} % {:<20}  {load:>4.2} {}",
                figures.fleet.name(),
                success * 100.0,
                bar(success),
                bar(load / 4.0),
            );
        }
    }
    println!("after the outage (well: 95 % of the calls of half a second succeed)");
    for figures in fleets {
        println!(
            "  {:<12} {}, {} orders done twice",
            figures.fleet.name(),
            figures.recovered(),
            figures.repeated_orders
        );
    }
    println!(
        "\nA server can do {:.2} requests a call. Retries beyond it are paid for with the calls that \
         they were to save.",
        f64::from(CAPACITY) / f64::from(CALLS_PER_SECOND)
    );
}

fn bar(share: f64) -> String {
    "█".repeat((share * BAR).round() as usize)
}

pub(crate) fn json(fleets: &[Figures]) {
    let by_name: Map<_, _> = fleets
        .iter()
        .map(|figures| (figures.fleet.name().to_owned(), figures.to_json()))
        .collect();
    println!("outage {}", Value::Object(by_name));
}
