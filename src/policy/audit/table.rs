use std::{borrow::Cow, fmt};

use super::{Audit, Finding};

const COLUMNS: [&str; 7] = [
    "RULE",
    "SEVERITY",
    "DEPENDENCY",
    "FIELD",
    "VALUE",
    "ALLOWED",
    "APPROVAL",
];

/// A table with a line for each finding, the worst last.
impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return f.write_str("nothing to report");
        }
        let lines: Vec<_> = std::iter::once(COLUMNS.map(Cow::Borrowed))
            .chain(self.findings.iter().map(cells))
            .collect();
        let mut widths = [0; COLUMNS.len()];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            let [first @ .., last] = line;
            for (cell, width) in first.iter().zip(widths) {
                write!(f, "{cell:width$}  ")?;
            }
            f.write_str(last)?;
        }
        Ok(())
    }
}

fn cells(finding: &Finding) -> [Cow<'_, str>; COLUMNS.len()] {
    [
        finding.rule.to_string().into(),
        finding.severity.as_str().into(),
        one_line(finding.dependency.as_deref().unwrap_or("-").into()),
        one_line(Cow::Borrowed(&finding.field)),
        one_line(Cow::Borrowed(&finding.value)),
        one_line(Cow::Borrowed(&finding.allowed)),
        one_line(finding.decided()),
    ]
}

/// Replaces control characters, which would break the line.
fn one_line(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        return text.replace(char::is_control, " ").into();
    }
    text
}
