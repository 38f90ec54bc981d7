//! The findings of a simulation.

use serde_json::{Map, Value, json};

use crate::{
    chart::Panel,
    table::{Table, rounded},
};

/// The result of one setting.
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    /// The subject of the setting, in a line.
    pub(crate) title: &'static str,
    pub(crate) seed: u64,
    pub(crate) tables: Vec<Table>,
    pub(crate) panels: Vec<Panel>,
    pub(crate) bars: Vec<Bar>,
    /// The caveats of the figures.
    pub(crate) notes: Vec<String>,
}

/// A figure and its bound.
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) figure: f64,
    pub(crate) bound: Bound,
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    pub(crate) fn at_most(bound: f64, figure: f64, what: impl Into<String>) -> Self {
        let (what, bound) = (what.into(), Bound::AtMost(bound));
        Self {
            what,
            figure,
            bound,
        }
    }

    pub(crate) fn at_least(bound: f64, figure: f64, what: impl Into<String>) -> Self {
        let (what, bound) = (what.into(), Bound::AtLeast(bound));
        Self {
            what,
            figure,
            bound,
        }
    }

    pub(crate) fn holds(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.figure <= bound,
            Bound::AtLeast(bound) => self.figure >= bound,
        }
    }

    fn show(&self) -> String {
        let (sign, bound) = match self.bound {
            Bound::AtMost(bound) => ('≤', bound),
            Bound::AtLeast(bound) => ('≥', bound),
        };
        let held = if self.holds() { "holds " } else { "MISSED" };
        let Self { what, figure, .. } = self;
        format!("{held}  {what}: {figure:.3}, to be {sign} {bound:.3}")
    }

    fn to_json(&self) -> Value {
        let (bound, sign) = match self.bound {
            Bound::AtMost(bound) => (bound, "at_most"),
            Bound::AtLeast(bound) => (bound, "at_least"),
        };
        let (figure, bound) = (rounded(self.figure), rounded(bound));
        json!({ "what": self.what, "figure": figure, sign: bound, "holds": self.holds() })
    }
}

impl Finding {
    /// Prints tables and bars.
    pub(crate) fn show(&self) {
        println!("\n{}: {} (seed {})", self.name, self.title, self.seed);
        for table in &self.tables {
            table.show();
        }
        for bar in &self.bars {
            println!("  {}", bar.show());
        }
        for note in &self.notes {
            println!("  note    {note}");
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let tables: Map<_, _> = self
            .tables
            .iter()
            .map(|table| (table.name.to_owned(), table.to_json()))
            .collect();
        let bars: Vec<_> = self.bars.iter().map(Bar::to_json).collect();
        json!({ "seed": self.seed, "tables": tables, "bars": bars, "notes": self.notes })
    }
}
