//! Tables for people, one line of JSON for programs.

use std::fmt::Write;

/// Prints rows in aligned columns: the first to the left, the others to the right.
pub(crate) fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<_> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells
                .chain([head[column].chars().count()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let mut line = format!("  {:<1$}", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        println!("{}", line.trim_end());
    };
    println!("{title}");
    line(head.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
    println!();
}

/// The line that programs read: `name {"key":value,…}`.
pub(crate) fn json(name: &str, values: &[(String, f64)]) {
    let values: Vec<_> = values
        .iter()
        .map(|(key, value)| match value.is_finite() {
            true => format!("\"{key}\":{}", (value * 1000.0).round() / 1000.0),
            false => format!("\"{key}\":null"),
        })
        .collect();
    println!("{name} {{{}}}", values.join(","));
}

/// The value that this share of all is below: 0.5 for the median.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = share * last as f64;
    let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
    below + (above - below) * at.fract()
}
