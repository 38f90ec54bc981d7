//! The graph as a picture: a row of boxes per floor, and a line per edge.

use std::{collections::BTreeMap, fmt::Write};

use crate::graph::Graph;

const WIDTH: usize = 150;
const HEIGHT: usize = 26;
const ROW: usize = 96;

pub(crate) fn draw(graph: &Graph) -> String {
    let mut places = BTreeMap::new();
    let mut rows = vec![0; graph.floors()];
    for room in graph.rooms() {
        if let Some(floor) = graph.floor(room) {
            places.insert(
                room,
                (
                    10 + rows[floor] * (WIDTH + 12),
                    10 + (graph.floors() - 1 - floor) * ROW,
                ),
            );
            rows[floor] += 1;
        }
    }
    let widest = rows.into_iter().max().unwrap_or_default();
    let (width, height) = (20 + widest * (WIDTH + 12), 20 + graph.floors() * ROW);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">"#
    );
    for (room, (x, y)) in &places {
        for (to_x, to_y) in graph.uses(room).filter_map(|used| places.get(used)) {
            let (x, y) = (x + WIDTH / 2, y + HEIGHT);
            let to_x = to_x + WIDTH / 2;
            write!(
                svg,
                "\n<line x1=\"{x}\" y1=\"{y}\" x2=\"{to_x}\" y2=\"{to_y}\" stroke=\"#99a\"/>"
            )
            .unwrap();
        }
    }
    for (room, (x, y)) in &places {
        let (text_x, text_y) = (x + WIDTH / 2, y + 17);
        write!(
            svg,
            "\n<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"4\" fill=\"#eef\" stroke=\"#446\"/>\
             <text x=\"{text_x}\" y=\"{text_y}\" text-anchor=\"middle\">{room}</text>"
        )
        .unwrap();
    }
    svg.push_str("\n</svg>");
    svg
}
