//! What an exporter shows, and what dashboards, alert rules and the guide say of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// One metric: its type, its help text, and the values of its labels.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: Option<String>,
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
    samples: BTreeSet<String>,
}

/// The metrics of an exporter's text.
#[derive(Debug, Default)]
pub(crate) struct Exported(pub(crate) BTreeMap<String, Family>);

impl Exported {
    pub(crate) fn parse(text: &str) -> Self {
        let mut families = BTreeMap::<_, Family>::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                families.entry(name.to_owned()).or_default().help = Some(help.to_owned());
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                families.entry(name.to_owned()).or_default().kind = kind.to_owned();
            } else {
                let sample = Scanner::new(line).sample();
                let known = |name: &&str| families.contains_key(*name);
                let suffixes = ["", "_sum", "_count", "_bucket"];
                let mut names = suffixes.iter().filter_map(|end| sample.0.strip_suffix(end));
                let name = names.find(known).expect("a type before its samples");
                let family = families.get_mut(name).unwrap();
                for (label, value) in sample.1 {
                    family.labels.entry(label).or_default().insert(value);
                }
                family.samples.insert(sample.0);
            }
        }
        Self(families)
    }

    fn of(&self, sample: &str) -> Option<&Family> {
        let mut families = self.0.values();
        families.find(|family| family.samples.contains(sample))
    }

    /// Says what an expression asks for that is not exported.
    pub(crate) fn misses(&self, expr: &str) -> Vec<String> {
        let mut scanner = Scanner::new(expr);
        scanner.expr(self);
        let known = |label: &String| {
            let mut families = self.0.values();
            families.any(|family| family.labels.contains_key(label))
        };
        let unknown = scanner.grouped.iter().filter(|label| !known(label));
        let unknown: Vec<_> = unknown.map(|label| format!("label {label}")).collect();
        scanner.missing.extend(unknown);
        scanner.missing
    }
}

/// Reads the text of an exporter, and as much of PromQL as names are in.
struct Scanner<'a> {
    rest: &'a str,
    grouped: Vec<String>,
    missing: Vec<String>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            grouped: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn take(&mut self, what: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !what(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn word(&mut self) -> &'a str {
        self.take(|c| c.is_alphanumeric() || c == '_' || c == ':')
    }

    fn blank(&mut self) {
        self.take(char::is_whitespace);
    }

    fn eat(&mut self, text: &str) -> bool {
        self.blank();
        let found = self.rest.strip_prefix(text);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn quoted(&mut self) -> &'a str {
        assert!(self.eat("\""), "a quoted value at {}", self.rest);
        let value = self.take(|c| c != '"');
        self.rest = &self.rest[1..];
        value
    }

    /// Reads `{label="value",…}`, as label, operator and value.
    fn matchers(&mut self) -> Vec<(&'a str, &'a str, &'a str)> {
        let mut matchers = Vec::new();
        while self.eat("{") || self.eat(",") {
            self.blank();
            let label = self.word();
            let operator = self.take(|c| "=!~".contains(c));
            if !label.is_empty() {
                matchers.push((label, operator, self.quoted()));
            }
        }
        if !matchers.is_empty() {
            assert!(self.eat("}"), "an end of matchers at {}", self.rest);
        }
        matchers
    }

    fn sample(mut self) -> (String, Vec<(String, String)>) {
        let name = self.word().to_owned();
        let labels = self.matchers().into_iter();
        let labels = labels.map(|(label, _, value)| (label.to_owned(), value.to_owned()));
        (name, labels.collect())
    }

    fn expr(&mut self, exported: &Exported) {
        const GROUPING: [&str; 6] = [
            "by",
            "without",
            "on",
            "ignoring",
            "group_left",
            "group_right",
        ];
        const OPERATORS: [&str; 6] = ["and", "or", "unless", "offset", "bool", "sum"];
        while !self.rest.is_empty() {
            // Templates of Grafana, numbers and times.
            if self.eat("$") || self.rest.starts_with(|c: char| c.is_ascii_digit()) {
                self.word();
                continue;
            }
            let word = self.word();
            if word.is_empty() {
                self.rest = self
                    .rest
                    .split_at(self.rest.chars().next().map_or(0, char::len_utf8))
                    .1;
            } else if GROUPING.contains(&word) {
                assert!(self.eat("("), "labels at {}", self.rest);
                let labels = self.take(|c| c != ')');
                let labels = labels.split(',').map(|label| label.trim().to_owned());
                self.grouped.extend(labels);
            } else if word == "label_values" {
                assert!(self.eat("("));
                let (selector, label) = self.rest.rsplit_once(',').unwrap();
                let label = label.trim().trim_end_matches(')').to_owned();
                self.rest = selector;
                self.grouped.push(label);
            } else if OPERATORS.contains(&word) || self.rest.trim_start().starts_with('(') {
                // An operator, a function, or an aggregation.
            } else if !self.rest.trim_start().starts_with("by") {
                self.metric(word, exported);
            }
        }
    }

    fn metric(&mut self, name: &str, exported: &Exported) {
        let family = exported.of(name);
        if family.is_none() {
            self.missing.push(format!("metric {name}"));
        }
        for (label, operator, value) in self.matchers() {
            let values = family.map(|family| family.labels.get(label));
            let Some(Some(values)) = values else {
                self.missing.push(format!("label {label} of {name}"));
                continue;
            };
            let wanted = value.split('|').filter(|value| !value.starts_with('$'));
            for value in wanted.filter(|value| !values.contains(*value)) {
                self.missing
                    .push(format!("{label}{operator}{value} of {name}"));
            }
        }
    }
}

/// The expressions of an alert file, by alert, in the shape in which the file is written.
pub(crate) fn alerts(yaml: &str) -> Vec<(String, String)> {
    let mut alerts = Vec::<(String, String)>::new();
    let mut folded = false;
    for line in yaml.lines() {
        let text = line.trim_start();
        if let Some(name) = text.strip_prefix("- alert: ") {
            alerts.push((name.to_owned(), String::new()));
        } else if let Some(expr) = text.strip_prefix("expr: ") {
            folded = expr == "|";
            let expr = if folded { "" } else { expr };
            alerts.last_mut().unwrap().1.push_str(expr);
        } else if folded && line.starts_with("          ") {
            let expr = &mut alerts.last_mut().unwrap().1;
            expr.push_str(text);
            expr.push('\n');
        } else {
            folded = false;
        }
    }
    assert!(alerts.iter().all(|(_, expr)| !expr.is_empty()));
    alerts
}

/// The expressions of a dashboard, with the labels that its legends show.
pub(crate) fn panels(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match dashboard {
        Value::Object(fields) => {
            let text = |name| fields.get(name).and_then(Value::as_str);
            found.extend(text("expr").map(str::to_owned));
            let query = text("query").filter(|query| query.starts_with("label_values"));
            found.extend(query.map(str::to_owned));
            let legend = text("legendFormat").unwrap_or_default();
            let labels = legend.split("{{").skip(1);
            let labels = labels.filter_map(|label| Some(label.split_once("}}")?.0));
            found.extend(labels.map(|label| format!("by ({label})")));
            found.extend(fields.values().flat_map(panels));
        }
        Value::Array(items) => found.extend(items.iter().flat_map(panels)),
        _ => {}
    }
    found
}

/// The rows of the guide's table of metrics: name, type, labels and help.
pub(crate) fn documented(page: &str) -> Vec<[String; 4]> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rows = rows.map(|row| row.split('|').map(|cell| cell.trim().replace('`', "")));
    let rows = rows.map(Iterator::collect::<Vec<_>>);
    let rows = rows.filter(|cells| ["counter", "gauge", "histogram"].contains(&&*cells[1]));
    rows.map(|cells| [0, 1, 2, 3].map(|n| cells[n].clone()))
        .collect()
}

/// Asserts that the guide has every metric of these with its type, labels and help, and no other.
pub(crate) fn assert_documented(exported: &Exported, ours: impl Fn(&str) -> bool) {
    let page = include_str!("../../src/guide/operating.rs");
    let mut rows = documented(page);
    rows.retain(|[name, ..]| ours(name));
    rows.sort();
    let found: Vec<_> = exported
        .0
        .iter()
        .filter(|(name, _)| ours(name))
        .map(|(name, family)| {
            let kind = family.kind.replace("summary", "histogram");
            let labels: Vec<_> = family.labels.keys().map(String::as_str).collect();
            let labels = labels
                .into_iter()
                .filter(|label| !["le", "quantile"].contains(label));
            let labels = Vec::from_iter(labels).join(", ");
            let help = family
                .help
                .clone()
                .unwrap_or_else(|| panic!("{name} has no help"));
            [name.clone(), kind, labels, help]
        })
        .collect();
    assert_eq!(rows, found);
}
