//! Curves: what is measured by turns at several sizes, and how it is shown.

use std::{fmt::Display, path::Path};

use crate::{
    chart::{Axis, Panel, draw},
    dice::mix,
    progress::Progress,
    table::{Figure, Table},
    work::lower_quartile,
};

/// Everything random is drawn from it.
pub(crate) const SEED: u64 = 1;

/// The n-th of numbers that are drawn below a size.
pub(crate) fn draw_below(size: usize, n: usize) -> usize {
    (mix(SEED, n as u64) % size as u64) as usize
}

/// Measures the sizes in turn, and shows progress.
pub(crate) struct Turns {
    quick: bool,
    progress: Progress,
}

impl Turns {
    pub(crate) fn new(quick: bool) -> Self {
        let progress = Progress::new("measuring", false);
        Self { quick, progress }
    }

    /// Not the largest if there is little time.
    pub(crate) fn sizes<'a>(&self, all: &'a [usize]) -> &'a [usize] {
        &all[..all.len() - usize::from(self.quick)]
    }

    pub(crate) fn begin(&mut self, what: &'static str) {
        self.progress.begin(what);
    }

    /// Something takes a while.
    pub(crate) fn tell(&mut self, what: impl Display) {
        self.progress.run(format_args!("{what}"));
    }

    /// So many turns of each size, in another order each time: the lower quartile of what the turns
    /// of a size took. `turn` gets the size's place and the number of the turn, and says what it took.
    pub(crate) fn take(
        &mut self,
        rounds: usize,
        sizes: usize,
        mut turn: impl FnMut(usize, usize) -> f64,
    ) -> Vec<f64> {
        let rounds = if self.quick { rounds / 4 } else { rounds }.max(5);
        let mut took = vec![Vec::with_capacity(rounds); sizes];
        for round in 0..rounds {
            self.tell(format_args!("{round} of {rounds} turns"));
            let mut order: Vec<_> = (0..sizes).collect();
            order.sort_by_key(|size| mix(SEED, (round * sizes + size) as u64));
            for size in order {
                took[size].push(turn(size, round));
            }
        }
        self.progress.end();
        took.into_iter().map(lower_quartile).collect()
    }
}

/// Curves over the same sizes.
pub(crate) struct Chart {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The quantity that grows.
    pub(crate) grows: &'static str,
    pub(crate) sizes: Vec<usize>,
    pub(crate) curves: Vec<(&'static str, Vec<f64>)>,
}

impl Chart {
    /// Prints the table, and draws the chart into a folder.
    pub(crate) fn write(&self, folder: &Path) {
        let columns = self.sizes.iter().map(|size| short(*size));
        let mut table = Table::new(self.grows, columns.chain(["last/first".into()]));
        for (name, nanos) in &self.curves {
            let growth = nanos[nanos.len() - 1] / nanos[0];
            let nanos = nanos.iter().map(|nanos| Figure::Nanos(*nanos));
            table.row(*name, nanos.chain([Figure::Times(growth)]).collect());
        }
        println!("\n{}", self.title);
        table.show();
        println!();
        let lines = self.curves.iter().map(|(name, nanos)| {
            let points = self.sizes.iter().zip(nanos);
            let points = points.map(|(size, nanos)| (*size as f64, *nanos));
            ((*name).to_owned(), points.collect())
        });
        let panel = Panel {
            x: Axis::logarithmic(self.grows),
            y: Axis::plain("nanoseconds"),
            lines: lines.collect(),
        };
        let path = folder.join(self.name).with_extension("svg");
        std::fs::write(path, draw(self.title, &[panel])).expect("a chart");
    }
}

fn short(size: usize) -> String {
    match size {
        1_000_000.. => format!("{}m", size / 1_000_000),
        1000.. => format!("{}k", size / 1000),
        _ => size.to_string(),
    }
}
