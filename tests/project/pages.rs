//! The page of each layer has one shape: what it is, when to use it and when not, defaults, an
//! example that runs, what is promised and what is not, and what goes wrong. A page that adds to that
//! of a layer says what is promised, too.

use std::{fs, path::Path};

const PAGES: [&str; 16] = [
    "src/client/circuit_breaker/mod.rs",
    "src/client/idempotency_key/mod.rs",
    "src/client/peek/mod.rs",
    "src/client/retry/mod.rs",
    "src/client/retry_after/mod.rs",
    "src/client/retry_budget/mod.rs",
    "src/delivery/dead_letter/mod.rs",
    "src/delivery/replay/mod.rs",
    "src/delivery/webhooks/mod.rs",
    "src/delivery/webhooks/verify/mod.rs",
    "src/forrst/mod.rs",
    "src/server/deadline/mod.rs",
    "src/server/idempotency/events/mod.rs",
    "src/server/idempotency/mod.rs",
    "src/server/inbound_budget.rs",
    "src/server/problem/mod.rs",
];

/// Pages that add to those of layers.
const ADDITIONS: [&str; 6] = [
    "src/client/attempt_span/mod.rs",
    "src/client/hedge/mod.rs",
    "src/forrst/guidance/mod.rs",
    "src/forrst/idempotency/mod.rs",
    "src/forrst/key.rs",
    "src/forrst/replay/mod.rs",
];

fn section<'a>(docs: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = docs.split_once(&format!("\n# {heading}\n"))?;
    rest.split("\n# ").next()
}

/// Whether a page says what is promised and what is not.
fn has_promises(docs: &str) -> bool {
    let promises = section(docs, "Promises");
    promises.is_some_and(|text| text.contains("| promised | not promised |"))
}

/// Returns what is missing on a page.
fn missing(docs: &str) -> Vec<&'static str> {
    let headings = ["When to use it", "Defaults", "What goes wrong"];
    let [when, defaults, wrong] = headings.map(|heading| section(docs, heading));
    let has = |section: Option<&str>, part: &str| section.is_some_and(|text| text.contains(part));
    let checks = [
        ("# When to use it", when.is_some()),
        ("a paragraph `Not …` on when not to", has(when, "\nNot ")),
        ("# Defaults, with a table", has(defaults, "\n| --- | ---")),
        (
            "# What goes wrong, with a table of mistakes",
            has(wrong, "| mistake | what happens | instead |"),
        ),
        ("# Promises, with a table", has_promises(docs)),
        ("an example that runs", docs.contains("\n```\n")),
        (
            "an introduction before the first heading",
            docs.find("\n# ").is_some_and(|heading| heading > 200),
        ),
    ];
    let absent = checks.into_iter().filter(|(_, there)| !there);
    absent.map(|(what, _)| what).collect()
}

/// Returns the docs of a file.
fn docs(page: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let source = fs::read_to_string(file).unwrap();
    let docs = source.lines().map_while(|line| line.strip_prefix("//!"));
    let docs: Vec<_> = docs
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    format!("\n{}\n", docs.join("\n"))
}

#[test]
fn each_layer_has_a_page_of_the_same_shape() {
    let mut wanting = Vec::new();
    for page in PAGES {
        let missing = missing(&docs(page));
        if !missing.is_empty() {
            wanting.push(format!("{page} lacks {}", missing.join(", ")));
        }
    }
    assert!(wanting.is_empty(), "{}", wanting.join("\n"));
}

#[test]
fn each_addition_to_a_layer_says_what_is_promised() {
    let silent: Vec<_> = ADDITIONS
        .iter()
        .filter(|page| !has_promises(&docs(page)))
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
}

#[test]
fn a_page_that_lacks_a_part_is_found() {
    let lacks = missing("\nA layer.\n\n# Defaults\n\nNone.\n");
    assert_eq!(lacks.len(), 7, "{lacks:?}");
}
