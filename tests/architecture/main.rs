//! The rooms of `src` and which of them uses which: no room uses a higher floor, and none is in a
//! circle.
//!
//! `REPRISE_GRAPH=text cargo test --test architecture -- --nocapture` prints the graph, and
//! `REPRISE_GRAPH=svg` draws it.

#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

mod graph;
mod source;
mod svg;

use std::{env, path::Path};

use graph::Graph;

/// The rooms from the lowest floor to the highest. `*` stands for each module of a folder.
const FLOORS: &[&[&str]] = &[
    &["backoff", "call", "error", "http", "sync", "telemetry"],
    &["classify", "policy"],
    &["dependency", "store"],
    &["client::*", "delivery::*", "server::*"],
    &["forrst"],
    &["config", "guide", "stacks"],
];

fn graph_of_src() -> Graph {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut graph = Graph::new(FLOORS);
    for file in source::files(&root) {
        for path in source::paths(&file) {
            graph.add(&file, &path);
        }
    }
    graph
}

#[test]
fn no_room_uses_a_higher_floor() {
    let graph = graph_of_src();
    assert_eq!(
        graph.unknown(),
        Vec::<String>::new(),
        "rooms without a floor"
    );
    assert_eq!(graph.upward(), Vec::<String>::new());
}

#[test]
fn no_room_is_in_a_circle() {
    assert_eq!(graph_of_src().cycles(), Vec::<Vec<String>>::new());
}

/// A name at the root says nothing of the room that it comes from.
#[test]
fn rooms_use_each_other_by_their_names() {
    assert_eq!(graph_of_src().root_items(), Vec::<String>::new());
}

#[test]
fn the_graph_can_be_printed() {
    let graph = graph_of_src();
    match env::var("REPRISE_GRAPH").as_deref() {
        Ok("svg") => println!("{}", svg::draw(&graph)),
        Ok("text") => println!("{graph}"),
        _ => {}
    }
    let text = graph.to_string();
    assert!(text.contains("client::retry -> "), "{text}");
    assert!(svg::draw(&graph).ends_with("</svg>"));
}

#[test]
fn the_graph_on_file_is_the_graph() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let graph = graph_of_src().to_string();
    assert!(
        page.contains(&graph),
        "ARCHITECTURE.md should have:\n{graph}"
    );
}

/// The check itself, on rooms that are wrong.
#[test]
fn a_wrong_edge_is_found() {
    let mut graph = Graph::new(FLOORS);
    let file = |module: &str| source::File::of_text(module, "");
    graph.add(&file("call"), &["policy".into(), "Policy".into()]);
    graph.add(&file("policy::audit"), &["classify".into()]);
    graph.add(
        &file("classify::codes"),
        &["policy".into(), "Policy".into()],
    );
    graph.add(&file("store"), &["Policy".into()]);
    assert_eq!(graph.upward(), ["call -> policy: src/call"]);
    assert_eq!(graph.cycles(), [["classify", "policy"]]);
    assert_eq!(graph.root_items(), ["Policy: src/store"]);
}

#[test]
fn paths_are_read_out_of_use_trees_code_and_macros() {
    let text = r#"
use std::fmt;
use crate::{call::{Attempt, key::MAX}, http::problem};
use super::layer::Layer;
// use crate::forrst::Hidden;
/// [`crate::forrst`]
fn f() -> crate::error::BoxError { "crate::stacks"; $crate::sync::lock(); }
mod tests {
    use super::*;
    use super::super::service;
}
"#;
    let file = source::File::of_text("client::retry::future", text);
    let paths: Vec<_> = source::paths(&file)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    assert_eq!(
        paths,
        [
            "call::Attempt",
            "call::key::MAX",
            "http::problem",
            "client::retry::layer::Layer",
            "error::BoxError",
            "sync::lock",
            "client::retry::future::*",
            "client::retry::service",
        ]
    );
}
