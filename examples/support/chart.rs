//! A chart for each setting: panels side by side, a line for each contestant.

use std::fmt::Write;

use crate::svg::{Band, Svg};

const LEFT: f64 = 70.0;
/// All columns together.
const COLUMNS: f64 = 800.0;
const GAP: f64 = 76.0;
const HEIGHT: f64 = 270.0;
const LEGEND: f64 = 190.0;
const ROW: f64 = 18.0;
const COLOURS: [&str; 9] = [
    "#868e96", "#e03131", "#e8590c", "#f08c00", "#9c36b5", "#1971c2", "#2f9e44", "#0c8599",
    "#5c940d",
];

/// One of the pictures in a chart.
pub(crate) struct Panel {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) logarithmic: bool,
}

impl Axis {
    pub(crate) const fn plain(label: &'static str) -> Self {
        let logarithmic = false;
        Self { label, logarithmic }
    }

    pub(crate) const fn logarithmic(label: &'static str) -> Self {
        let logarithmic = true;
        Self { label, logarithmic }
    }

    /// Values that are marked: from the first to the last of them goes the axis.
    fn marks(self, least: f64, most: f64) -> Vec<f64> {
        if self.logarithmic {
            let powers =
                least.max(1e-3).log10().floor() as i32..=most.max(1.0).log10().ceil() as i32;
            return powers.map(|power| 10_f64.powi(power)).collect();
        }
        let rough = most.max(1e-9) / 5.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = steps.into_iter().find(|step| step * unit >= rough);
        let step = step.unwrap_or(10.0) * unit;
        let first = if least * 4.0 > most {
            (least / step).floor()
        } else {
            0.0
        };
        let last = (most / step - 1e-9).ceil();
        let marks = first as i64..=last as i64;
        marks.map(|mark| mark as f64 * step).collect()
    }

    fn share(self, marks: &[f64], value: f64) -> f64 {
        let (Some(&first), Some(&last)) = (marks.first(), marks.last()) else {
            return 0.0;
        };
        let place = |value: f64| match self.logarithmic {
            true => value.max(first).log10(),
            false => value,
        };
        let span = place(last) - place(first);
        ((place(value) - place(first)) / span.max(1e-9)).clamp(0.0, 1.0)
    }
}

pub(crate) fn draw(title: &str, panels: &[Panel]) -> String {
    let names = names(panels);
    let count = panels.len() as f64;
    let column = COLUMNS / count;
    let width = LEFT + COLUMNS + (count - 1.0) * GAP + 24.0;
    let in_row = ((width - LEFT) / LEGEND).floor().max(1.0) as usize;
    let mut style = String::new();
    for (colour, number) in COLOURS.iter().zip(0..) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            style,
            ".c{number} {{ fill: none; stroke: {colour}; stroke-width: 2.2 }}"
        );
    }
    // Ours stand out.
    style.push_str(".ours { stroke-width: 3.4 }");
    let rows = names.len().div_ceil(in_row) as f64;
    let band = Band {
        top: 78.0 + rows * ROW,
        height: HEIGHT,
    };
    let mut svg = Svg::new((width, band.bottom() + 60.0), title, &style);
    svg.text(LEFT, 34.0, "title", title);
    for (number, name) in names.iter().enumerate() {
        let x = LEFT + (number % in_row) as f64 * LEGEND;
        let y = 58.0 + (number / in_row) as f64 * ROW;
        svg.line(&class(number, name), (x, y), (x + 20.0, y));
        svg.text(x + 26.0, y + 4.0, "", name);
    }
    for (number, panel) in panels.iter().enumerate() {
        let left = LEFT + number as f64 * (column + GAP);
        svg.panel((left, column), band, panel, &names);
    }
    svg.finish()
}

fn names(panels: &[Panel]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&&**name) {
            names.push(name);
        }
    }
    names
}

fn class(number: usize, name: &str) -> String {
    let ours = if name.starts_with("ours") {
        " ours"
    } else {
        ""
    };
    format!("c{}{ours}", number % COLOURS.len())
}

impl Svg {
    fn panel(&mut self, (left, width): (f64, f64), band: Band, panel: &Panel, names: &[&str]) {
        let points = || panel.lines.iter().flat_map(|(_, points)| points);
        let marks = |axis: Axis, value: fn(&(f64, f64)) -> f64, begin: f64| {
            let least = points().map(value).fold(begin, f64::min);
            axis.marks(least, points().map(value).fold(0.0, f64::max))
        };
        let across = marks(panel.x, |point| point.0, f64::INFINITY);
        let begin = if panel.y.logarithmic {
            f64::INFINITY
        } else {
            0.0
        };
        let up = marks(panel.y, |point| point.1, begin);
        let x = |value| left + panel.x.share(&across, value) * width;
        let y = |value| band.y(panel.y.share(&up, value));
        for &mark in &up {
            self.line("grid", (left, y(mark)), (left + width, y(mark)));
            self.text(left - 8.0, y(mark) + 4.0, "end", &short(mark));
        }
        for &mark in &across {
            self.text(x(mark), band.bottom() + 18.0, "middle", &short(mark));
        }
        let bottom = band.bottom();
        self.line("frame", (left, bottom), (left + width, bottom));
        self.turned(left - 50.0, band, panel.y.label);
        self.text(left + width / 2.0, bottom + 38.0, "middle", panel.x.label);
        for (name, points) in &panel.lines {
            let mut path = String::new();
            for &(across, up) in points {
                let letter = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(path, "{letter}{:.1} {:.1}", x(across), y(up));
            }
            let number = names.iter().position(|known| known == name);
            let class = class(number.unwrap_or_default(), name);
            if points.len() < 15 {
                for &(across, up) in points {
                    let (x, y) = (x(across), y(up));
                    self.add(format_args!(
                        "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>"
                    ));
                }
            }
            self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }
}

fn short(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    rounded.to_string()
}
