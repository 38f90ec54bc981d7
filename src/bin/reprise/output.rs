//! Answers on stdout, as text for people or as JSON for programs.

use std::io::{IsTerminal, Write, stderr, stdout};

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Prints an answer as JSON, or the lines of it.
pub(crate) fn show(format: Format, answer: &Value, lines: impl FnOnce(&Value) -> String) {
    match format {
        Format::Json => print(&format!("{answer:#}")),
        Format::Text => print(&lines(answer)),
    }
}

/// Prints text, harmless to a terminal. A reader that left has seen enough.
pub(crate) fn print(text: &str) {
    let _ = writeln!(stdout(), "{}", harmless(text));
}

/// A table with a line for each row.
pub(crate) fn table(columns: &[&str], rows: &[Value]) -> String {
    let head = columns
        .iter()
        .map(|name| name.to_ascii_uppercase().replace('_', " "));
    let cells = |row: &Value| columns.iter().map(|name| cell(&row[*name])).collect();
    let lines: Vec<Vec<String>> = std::iter::once(head.collect())
        .chain(rows.iter().map(cells))
        .collect();
    let mut widths = vec![0; columns.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: &Vec<String>| {
        let padded = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let lines: Vec<_> = lines.iter().map(line).collect();
    lines.join("\n")
}

/// One line of a table or a list: no line breaks.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.replace(['\n', '\r', '\t'], " "),
        value => value.to_string(),
    }
}

/// Fields with their names, a line for each.
pub(crate) fn fields(value: &Value, names: &[&str]) -> String {
    let lines = names
        .iter()
        .map(|name| format!("{:11} {}", name.replace('_', " "), cell(&value[*name])));
    lines.collect::<Vec<_>>().join("\n")
}

/// Shows control characters instead of sending them to a terminal: a body may hold any.
fn harmless(text: &str) -> String {
    let show = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(show).collect()
}

/// A bar on a terminal; nothing where nobody looks.
pub(crate) fn progress(done: u64, total: u64) {
    const WIDTH: u64 = 40;
    if !stderr().is_terminal() {
        return;
    }
    let filled = usize::try_from(done * WIDTH / total.max(1)).unwrap_or_default();
    let bar = "#".repeat(filled);
    eprint!("\r[{bar:40}] {done}/{total}");
    if done >= total {
        eprintln!();
    }
}
