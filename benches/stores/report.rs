use std::process::ExitCode;

use serde_json::{Map, Value};

/// The measured figures, and those that are out of bounds.
#[derive(Default)]
pub(crate) struct Report {
    figures: Map<String, Value>,
    missed: Vec<String>,
}

impl Report {
    /// A figure that has no bound.
    pub(crate) fn note(&mut self, name: &str, value: f64) {
        println!("{name}: {value:.2}");
        let rounded = (value * 100.0).round() / 100.0;
        self.figures.insert(name.to_owned(), rounded.into());
    }

    pub(crate) fn at_least(&mut self, name: &str, value: f64, bound: f64) {
        self.note(name, value);
        if value < bound {
            self.missed
                .push(format!("{name} is {value:.2}, at least {bound}"));
        }
    }

    pub(crate) fn at_most(&mut self, name: &str, value: f64, bound: f64) {
        self.note(name, value);
        if value > bound {
            self.missed
                .push(format!("{name} is {value:.2}, at most {bound}"));
        }
    }

    /// The last line is `name {json}`.
    pub(crate) fn print(self, name: &str) -> ExitCode {
        for missed in &self.missed {
            println!("missed: {missed}");
        }
        println!("{name} {}", Value::Object(self.figures));
        match self.missed.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}
