//! Tables of figures, for people and for programs.

use serde_json::{Value, json};

/// Rows of figures by name.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<Figure>)>,
}

/// A figure, and how it is shown.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    Count(u64),
    /// A factor.
    Times(f64),
    /// A share of one.
    Percent(f64),
    Seconds(f64),
    Millis(f64),
    Nanos(f64),
    /// Of 1024 times 1024 bytes.
    Megabytes(f64),
}

impl Figure {
    fn show(self) -> String {
        match self {
            Self::Count(count) => count.to_string(),
            Self::Times(factor) => format!("{factor:.2}×"),
            Self::Percent(share) => format!("{:.1} %", share * 100.0),
            Self::Seconds(seconds) => format!("{seconds:.1} s"),
            Self::Millis(millis) => format!("{millis:.1} ms"),
            Self::Nanos(nanos) => format!("{nanos:.0} ns"),
            Self::Megabytes(megabytes) => format!("{megabytes:.1} MB"),
        }
    }

    fn to_json(self) -> Value {
        match self {
            Self::Count(count) => json!(count),
            Self::Times(figure)
            | Self::Percent(figure)
            | Self::Seconds(figure)
            | Self::Millis(figure)
            | Self::Nanos(figure)
            | Self::Megabytes(figure) => json!(rounded(figure)),
        }
    }
}

pub(crate) fn rounded(figure: f64) -> f64 {
    (figure * 10_000.0).round() / 10_000.0
}

impl Table {
    pub(crate) fn new<T: Into<String>>(
        name: &'static str,
        columns: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            name,
            columns: columns.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, name: impl Into<String>, figures: Vec<Figure>) {
        self.rows.push((name.into(), figures));
    }

    pub(crate) fn show(&self) {
        let first = self.rows.iter().map(|(name, _)| name.chars().count());
        let first = first.max().unwrap_or_default().max(self.name.len());
        let widths: Vec<_> = self
            .columns
            .iter()
            .map(|c| c.chars().count().max(7))
            .collect();
        print!("\n  {:<first$}", self.name);
        for (column, width) in self.columns.iter().zip(&widths) {
            print!("  {column:>width$}");
        }
        println!();
        for (name, figures) in &self.rows {
            print!("  {name:<first$}");
            for (figure, width) in figures.iter().zip(&widths) {
                print!("  {:>width$}", figure.show());
            }
            println!();
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|(name, figures)| {
            let figures = self.columns.iter().zip(figures);
            let figures = figures.map(|(column, figure)| (column.clone(), figure.to_json()));
            (name.clone(), Value::Object(figures.collect()))
        });
        Value::Object(rows.collect())
    }
}
