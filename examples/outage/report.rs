//! What is shown while it runs, and at the end.

use std::{
    io::{IsTerminal, Write, stdout},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::time::interval;

use crate::{
    fleet::Fleet,
    timeline::{Counts, Phase, SLOT, Timeline, slot},
};

/// The server counts as recovered from the first slot on after which no slot has fewer calls
/// that succeed.
const RECOVERED: f64 = 0.99;

/// One fleet's figures.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) fleet: Fleet,
    calls: u32,
    upstream: u32,
    /// Requests that reached the server in the outage, by calls made then.
    pub(crate) amplification_outage: f64,
    success: [f64; 3],
    /// The success rate of the last slot.
    success_recovered: f64,
    pub(crate) recovery: Option<Duration>,
    /// How long it was given to recover.
    watched: Duration,
    pub(crate) repeated_orders: u32,
}

impl Figures {
    pub(crate) fn new(fleet: Fleet, timeline: &Timeline, repeated_orders: u32) -> Self {
        let plan = timeline.plan;
        let end = slot(plan.end());
        let all = timeline.sum(0..end);
        let outage = timeline.sum(plan.slots(Phase::Outage));
        let last = end.saturating_sub(1)..end;
        Self {
            fleet,
            calls: all.calls,
            upstream: all.upstream,
            amplification_outage: f64::from(outage.upstream) / f64::from(outage.calls.max(1)),
            success: Phase::ALL.map(|phase| timeline.sum(plan.slots(phase)).success()),
            success_recovered: timeline.sum(last).success(),
            recovery: recovery(&timeline.counts()[plan.slots(Phase::Recovery)]),
            watched: plan.recovery,
            repeated_orders,
        }
    }

    fn to_json(&self) -> Value {
        let [healthy, outage, recovery] = self.success;
        json!({
            "calls": self.calls,
            "upstream": self.upstream,
            "amplification_outage": rounded(self.amplification_outage),
            "success_healthy": rounded(healthy),
            "success_outage": rounded(outage),
            "success_recovery": rounded(recovery),
            "success_recovered": rounded(self.success_recovered),
            "recovery_seconds": self.recovery.map(|after| after.as_secs_f64()),
            "repeated_orders": self.repeated_orders,
        })
    }
}

/// How long after the outage calls were served as they should be, and stayed so.
fn recovery(after_outage: &[Counts]) -> Option<Duration> {
    let bad = |counts: &Counts| counts.success() < RECOVERED;
    let first = after_outage.iter().rposition(bad).map_or(0, |bad| bad + 1);
    let slots = u32::try_from(first).ok()?;
    (first < after_outage.len()).then(|| SLOT * slots)
}

fn rounded(figure: f64) -> f64 {
    (figure * 10_000.0).round() / 10_000.0
}

/// Shows where a fleet's run stands, until it is dropped: in place on a terminal, a line a second
/// elsewhere.
pub(crate) async fn progress(fleet: Fleet, timeline: &Timeline) {
    let terminal = stdout().is_terminal();
    let mut ticks = interval(Duration::from_millis(if terminal { 250 } else { 1000 }));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let now = timeline.elapsed();
        // The last slot that is over.
        let Some(last) = slot(now).checked_sub(1) else {
            continue;
        };
        let phase = timeline.plan.phase(now.saturating_sub(SLOT));
        let counts = timeline.sum(last..last + 1);
        let per_second = |count: u32| f64::from(count) / SLOT.as_secs_f64();
        let line = format!(
            "{:<8}  {:<8} {:>5.1} s  {:>4.0} calls/s  {:>5.0} upstream/s  {:>5.1} % succeed",
            fleet.name(),
            phase.name(),
            now.as_secs_f64(),
            per_second(counts.calls),
            per_second(counts.upstream),
            counts.success() * 100.0,
        );
        if terminal {
            print!("\r\x1b[2K{line}");
            // A terminal that is gone is no reason to stop.
            let _ = stdout().flush();
        } else {
            println!("{line}");
        }
    }
}

/// One fleet's run is over.
pub(crate) fn done(figures: &Figures) {
    let start = if stdout().is_terminal() {
        "\r\x1b[2K"
    } else {
        ""
    };
    println!(
        "{start}{:<8}  done: {}",
        figures.fleet.name(),
        summary(figures)
    );
}

fn times(factor: f64) -> String {
    let digits = if factor < 0.1 { 3 } else { 2 };
    format!("{factor:.digits$}×")
}

/// The two figures that matter most.
pub(crate) fn summary(figures: &Figures) -> String {
    format!(
        "{} load in the outage, {}",
        times(figures.amplification_outage),
        match figures.recovery {
            Some(Duration::ZERO) => "well again at once".into(),
            Some(after) => format!("well again {:.1} s after it", after.as_secs_f64()),
            None => format!("not well {:.1} s after it", figures.watched.as_secs_f64()),
        }
    )
}

pub(crate) fn table<'a>(fleets: impl Iterator<Item = &'a Figures>) {
    println!(
        "\n{:8}  {:>6} {:>9} {:>9}   {:>30}   {:>10} {:>9}",
        "", "", "upstream", "load in", "calls that succeed, %      ", "recovered", "orders"
    );
    println!(
        "{:8}  {:>6} {:>9} {:>9}   {:>9} {:>9} {:>10}   {:>10} {:>9}",
        "fleet",
        "calls",
        "requests",
        "outage",
        "healthy",
        "outage",
        "recovery",
        "after",
        "repeated"
    );
    for figures in fleets {
        let [healthy, outage, recovery] = figures.success.map(|rate| rate * 100.0);
        let after = match figures.recovery {
            Some(after) => format!("{:.1} s", after.as_secs_f64()),
            None => format!("> {:.1} s", figures.watched.as_secs_f64()),
        };
        println!(
            "{:8}  {:>6} {:>9} {:>9}   {healthy:>9.1} {outage:>9.1} {recovery:>10.1}   {after:>10} {:>9}",
            figures.fleet.name(),
            figures.calls,
            figures.upstream,
            times(figures.amplification_outage),
            figures.repeated_orders,
        );
    }
}

pub(crate) fn json<'a>(fleets: impl Iterator<Item = &'a Figures>) {
    let by_name: Map<_, _> = fleets
        .map(|figures| (figures.fleet.name().to_owned(), figures.to_json()))
        .collect();
    println!("outage {}", Value::Object(by_name));
}
