//! The chart: a column for each fleet, load above, success below.

use std::{fmt::Write, sync::Arc};

use crate::{
    fleet::{CALLS_PER_SECOND, Fleet},
    report::{Figures, summary},
    server::CAPACITY,
    svg::{Band, Svg},
    timeline::{Counts, Phase, Plan, SLOT, Timeline},
};

const LEFT: f64 = 66.0;
const COLUMN: f64 = 316.0;
const GAP: f64 = 26.0;
const LOAD: Band = Band {
    top: 156.0,
    height: 220.0,
};
const SUCCESS: Band = Band {
    top: 412.0,
    height: 110.0,
};
const WIDTH: f64 = LEFT + 3.0 * COLUMN + 2.0 * GAP + 20.0;
const HEIGHT: f64 = 576.0;

const STYLE: &str = "
.outage { fill: #e03131; fill-opacity: .1 }
.upstream { fill: #e8590c; fill-opacity: .22; stroke: #d9480f; stroke-width: 1.8 }
.offered { fill: none; stroke: #1971c2; stroke-width: 2 }
.capacity { fill: none; stroke: #495057; stroke-width: 1.4; stroke-dasharray: 2 4 }
.success { fill: #2f9e44; fill-opacity: .22; stroke: #2b8a3e; stroke-width: 1.8 }
@media (prefers-color-scheme: dark) {
.outage { fill: #ff6b6b; fill-opacity: .16 }
.upstream { fill: #ff922b; stroke: #ff922b } .offered { stroke: #74c0fc }
.capacity { stroke: #ced4da } .success { fill: #69db7c; stroke: #69db7c }
}
";

/// Draws all runs.
pub(crate) fn draw(runs: &[(Figures, Arc<Timeline>)], plan: Plan) -> String {
    let about = "Load and success of three fleets of clients through an outage";
    let mut svg = Svg::new((WIDTH, HEIGHT), about, STYLE);
    svg.text(LEFT, 34.0, "title", "One outage, three fleets of clients");
    svg.legend();
    let most = runs
        .iter()
        .flat_map(|(_, timeline)| timeline.counts())
        .map(|counts| per_second(counts.upstream))
        .fold(f64::from(CAPACITY), f64::max);
    let (step, top) = scale(most);
    svg.turned(18.0, LOAD, "requests per second");
    svg.turned(18.0, SUCCESS, "calls served, %");
    for (column, (figures, timeline)) in (0_u8..).zip(runs) {
        let left = LEFT + f64::from(column) * (COLUMN + GAP);
        let name = match figures.fleet {
            Fleet::None => "none: no retries",
            Fleet::Naive => "naive: retries at once",
            Fleet::Reprise => "reprise: the five layers",
        };
        svg.text(left, 106.0, "name", name);
        svg.text(left, 125.0, "", &summary(figures));
        svg.frame(left, LOAD, plan, (step, top), column == 0);
        svg.frame(left, SUCCESS, plan, (50.0, 100.0), column == 0);
        svg.phases(left, plan);
        svg.seconds(left, plan);

        let counts = timeline.counts();
        let upstream = counts.iter().map(|c| per_second(c.upstream) / top);
        let offered = counts.iter().map(|c| per_second(c.calls) / top);
        svg.steps(left, LOAD, "upstream", upstream, true);
        svg.steps(left, LOAD, "offered", offered, false);
        svg.level(left, LOAD.y(f64::from(CAPACITY) / top));
        let success = counts.iter().map(Counts::success);
        svg.steps(left, SUCCESS, "success", success, true);
    }
    svg.finish()
}

fn per_second(count: u32) -> f64 {
    f64::from(count) / SLOT.as_secs_f64()
}

/// The step of the axis and its end, in round numbers.
fn scale(most: f64) -> (f64, f64) {
    let steps = [100.0, 200.0, 250.0, 400.0, 500.0, 1000.0, 2000.0];
    let step = steps.into_iter().find(|step| most / step <= 5.0);
    let step = step.unwrap_or(5000.0);
    (step, (most / step).ceil() * step)
}

impl Svg {
    fn legend(&mut self) {
        let entries = [
            (
                "offered",
                format!("calls made, {CALLS_PER_SECOND}/s"),
                150.0,
            ),
            ("upstream", "requests that reach the server".into(), 220.0),
            ("capacity", format!("what it can do, {CAPACITY}/s"), 165.0),
            ("success", "calls that succeed".into(), 148.0),
            ("outage", "the server fails everything".into(), 0.0),
        ];
        let mut x = LEFT;
        for (class, text, width) in entries {
            match class {
                "offered" | "capacity" => self.line(class, (x, 60.0), (x + 20.0, 60.0)),
                _ => self.add(format_args!(
                    "<rect class=\"{class}\" x=\"{x}\" y=\"54\" width=\"20\" height=\"12\"/>"
                )),
            }
            self.text(x + 27.0, 64.0, "", &text);
            x += width + 32.0;
        }
    }

    fn frame(&mut self, left: f64, band: Band, plan: Plan, (step, top): (f64, f64), labels: bool) {
        let (from, to) = (
            x(left, plan, Phase::Outage, 0.0),
            x(left, plan, Phase::Outage, 1.0),
        );
        self.add(format_args!(
            "<rect class=\"outage\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            band.top,
            to - from,
            band.height
        ));
        let mut value = 0.0;
        while value <= top {
            let y = band.y(value / top);
            self.line("grid", (left, y), (left + COLUMN, y));
            if labels {
                self.text(left - 8.0, y + 4.0, "end", &format!("{value:.0}"));
            }
            value += step;
        }
        self.line(
            "frame",
            (left, band.bottom()),
            (left + COLUMN, band.bottom()),
        );
    }

    fn phases(&mut self, left: f64, plan: Plan) {
        for phase in Phase::ALL {
            let middle = x(left, plan, phase, 0.5);
            self.text(middle, LOAD.top - 7.0, "middle", phase.name());
        }
    }

    fn seconds(&mut self, left: f64, plan: Plan) {
        let end = plan.end().as_secs_f64();
        let step = if end > 6.0 { 2.0 } else { 0.5 };
        let mut second = 0.0;
        while second <= end {
            let x = left + second / end * COLUMN;
            self.text(x, SUCCESS.bottom() + 18.0, "middle", &second.to_string());
            second += step;
        }
        let middle = left + COLUMN / 2.0;
        self.text(middle, SUCCESS.bottom() + 38.0, "middle", "seconds");
    }

    /// A level for each slot, as shares of the band's height.
    fn steps(
        &mut self,
        left: f64,
        band: Band,
        class: &str,
        shares: impl ExactSizeIterator<Item = f64>,
        filled: bool,
    ) {
        let slots = u32::try_from(shares.len()).map_or(1.0, f64::from);
        let width = COLUMN / slots;
        let mut path = String::new();
        let mut x = left;
        for share in shares {
            let y = band.y(share);
            let command = match (path.is_empty(), filled) {
                (true, true) => format!("M{left:.1} {:.1}V{y:.1}", band.bottom()),
                (true, false) => format!("M{left:.1} {y:.1}"),
                (false, _) => format!("V{y:.1}"),
            };
            x += width;
            let _ = write!(path, "{command}H{x:.1}");
        }
        if filled {
            let _ = write!(path, "V{:.1}Z", band.bottom());
        }
        self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
    }

    fn level(&mut self, left: f64, y: f64) {
        self.line("capacity", (left, y), (left + COLUMN, y));
    }
}

/// Where in a column a part of a phase is.
fn x(left: f64, plan: Plan, phase: Phase, part: f64) -> f64 {
    let (start, length) = match phase {
        Phase::Healthy => (0.0, plan.healthy),
        Phase::Outage => (plan.healthy.as_secs_f64(), plan.outage),
        Phase::Recovery => (plan.outage_end().as_secs_f64(), plan.recovery),
    };
    let at = start + part * length.as_secs_f64();
    left + at / plan.end().as_secs_f64() * COLUMN
}
