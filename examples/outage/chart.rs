//! The chart: a column for each phase, with success above load, and success over time below.

use std::fmt::Write;

use crate::{
    Run,
    fleet::{CALLS_PER_SECOND, Fleet},
    report::Figures,
    server::CAPACITY,
    svg::{Band, Svg},
    timeline::{Counts, Phase, Timeline},
};

const LEFT: f64 = 66.0;
const WIDTH: f64 = 980.0;
const SUCCESS: Band = Band {
    top: 136.0,
    height: 150.0,
};
const LOAD: Band = Band {
    top: 326.0,
    height: 150.0,
};
const TIME: Band = Band {
    top: 516.0,
    height: 110.0,
};
/// The end of the axis of the load.
const MOST: f64 = 4.5;
const BAR: f64 = 32.0;
/// The slots of a step of the lines.
const STEP: usize = 5;

const STYLE: &str = "
.outage { fill: #e03131; fill-opacity: .08 } .small { font-size: 11px; text-anchor: middle }
.phase { font-size: 13px; font-weight: 600; text-anchor: middle }
.ours { font-size: 12px; text-anchor: middle; font-weight: 700 }
.f0 { fill: #adb5bd; stroke: #868e96 } .f1 { fill: #ffa8a8; stroke: #fa5252 }
.f2 { fill: #ffd8a8; stroke: #fd7e14 } .f3 { fill: #2f9e44; stroke: #2b8a3e }
.line { fill: none; stroke-width: 1.6 } .f3.line { stroke-width: 3 }
.capacity { fill: none; stroke: #495057; stroke-width: 1.4; stroke-dasharray: 2 4 }
@media (prefers-color-scheme: dark) { .outage { fill: #ff6b6b; fill-opacity: .16 }
.f0 { fill: #868e96 } .f1 { fill: #c92a2a } .f2 { fill: #d9480f } .f3 { fill: #51cf66; stroke: #69db7c }
.line { fill: none } .capacity { stroke: #ced4da } }
";

/// Draws the figures and the runs they are of.
pub(crate) fn draw(fleets: &[Figures], runs: &[Run]) -> String {
    let about = "Success and load of four fleets of clients through blips, an outage and after it";
    let mut svg = Svg::new((LEFT + WIDTH + 20.0, TIME.bottom() + 64.0), about, STYLE);
    let title = "Four fleets of clients meet the same failures";
    svg.text(LEFT, 34.0, "title", title);
    svg.legend(fleets);
    svg.axis(SUCCESS, "calls served, %", 100.0, &[0, 50, 100]);
    svg.axis(LOAD, "requests a call", MOST, &[0, 1, 2, 3, 4]);
    svg.axis(TIME, "calls served, %", 100.0, &[0, 50, 100]);
    let spare = LOAD.y(f64::from(CAPACITY) / f64::from(CALLS_PER_SECOND) / MOST);
    svg.line("capacity", (LEFT, spare), (LEFT + WIDTH, spare));
    let Some(Run { timeline, .. }) = runs.first() else {
        return svg.finish();
    };
    for phase in Phase::ALL {
        let (from, to) = columns(timeline, phase);
        let middle = (from + to) / 2.0;
        for band in [SUCCESS, LOAD, TIME] {
            svg.line("frame", (from, band.top), (from, band.bottom()));
            if phase == Phase::Outage {
                svg.rect("outage", (from, band.top), (to - from, band.height));
            }
        }
        svg.text(middle, SUCCESS.top - 22.0, "phase", phase.title());
        svg.bars(middle, SUCCESS, fleets, |figures| {
            let success = figures.of(phase).success();
            (success, format!("{:.0}", success * 100.0))
        });
        svg.bars(middle, LOAD, fleets, |figures| {
            let load = figures.of(phase).load();
            (load / MOST, format!("{load:.1}×"))
        });
    }
    for Run {
        fleet, timeline, ..
    } in runs
    {
        let starts = (0..timeline.len()).step_by(STEP);
        svg.steps(
            *fleet,
            starts.map(|start| timeline.sum(start..start + STEP)),
        );
    }
    svg.seconds(timeline);
    svg.finish()
}

/// Where a phase begins and ends.
fn columns(timeline: &Timeline, phase: Phase) -> (f64, f64) {
    let at = |slot: usize| LEFT + slot as f64 / timeline.len() as f64 * WIDTH;
    let slots = timeline.of(phase);
    (at(slots.start), at(slots.end))
}

impl Svg {
    fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        ));
    }

    fn legend(&mut self, fleets: &[Figures]) {
        let mut x = LEFT;
        for figures in fleets {
            self.rect(&class(figures.fleet), (x, 54.0), (14.0, 12.0));
            let recovered = figures.recovered();
            let text = format!("{}, {recovered}", figures.fleet.about());
            self.text(x + 20.0, 64.0, "", &text);
            x += 20.0 + text.chars().count() as f64 * 6.3;
        }
        self.line("capacity", (LEFT, 80.0), (LEFT + 14.0, 80.0));
        let text = format!(
            "the most that a server can do: {CAPACITY} requests a second for {CALLS_PER_SECOND} calls. \
             Retries beyond it are paid for with the calls that they were to save."
        );
        self.text(LEFT + 20.0, 84.0, "", &text);
    }

    fn axis(&mut self, band: Band, label: &str, most: f64, marks: &[u8]) {
        self.turned(18.0, band, label);
        for &mark in marks {
            let y = band.y(f64::from(mark) / most);
            self.line("grid", (LEFT, y), (LEFT + WIDTH, y));
            self.text(LEFT - 8.0, y + 4.0, "end", &mark.to_string());
        }
    }

    /// A bar for each fleet: a share of the band, and its label.
    fn bars(
        &mut self,
        middle: f64,
        band: Band,
        fleets: &[Figures],
        figure: impl Fn(&Figures) -> (f64, String),
    ) {
        let mut x = middle - BAR * fleets.len() as f64 / 2.0;
        for figures in fleets {
            let (share, label) = figure(figures);
            let y = band.y(share.min(1.0));
            let size = (BAR - 6.0, band.bottom() - y);
            self.rect(&class(figures.fleet), (x + 3.0, y), size);
            let weight = match figures.fleet {
                Fleet::Ours => "ours",
                _ => "small",
            };
            self.text(x + BAR / 2.0, y - 4.0, weight, &label);
            x += BAR;
        }
    }

    /// The success of one fleet over time.
    fn steps(&mut self, fleet: Fleet, steps: impl ExactSizeIterator<Item = Counts>) {
        let width = WIDTH / steps.len() as f64;
        let (mut path, mut x) = (String::new(), LEFT + width / 2.0);
        for counts in steps {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            // Writing to a string cannot fail.
            let _ = write!(path, "{letter}{x:.1} {:.1}", TIME.y(counts.success()));
            x += width;
        }
        self.add(format_args!(
            "<path class=\"{} line\" d=\"{path}\"/>",
            class(fleet)
        ));
    }

    fn seconds(&mut self, timeline: &Timeline) {
        for phase in Phase::ALL {
            let (from, _) = columns(timeline, phase);
            let second = timeline.of(phase).start / 10;
            self.text(from, TIME.bottom() + 18.0, "middle", &second.to_string());
        }
        let text = "seconds; a call counts when it is made";
        self.text(LEFT + WIDTH / 2.0, TIME.bottom() + 40.0, "middle", text);
    }
}

fn class(fleet: Fleet) -> String {
    format!("f{}", fleet as u8)
}
