//! A minimal SVG writer for the charts of the examples.

use std::fmt::{Arguments, Write};

/// The style of all charts, light and dark.
const STYLE: &str = "
text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #495057 }
.title { font-size: 18px; font-weight: 600; fill: #212529 }
.name { font-size: 15px; font-weight: 600; fill: #212529 }
.middle { text-anchor: middle } .end { text-anchor: end }
.back { fill: #ffffff } .frame { fill: none; stroke: #adb5bd }
.grid { stroke: #868e96; stroke-opacity: .25 }
@media (prefers-color-scheme: dark) {
text { fill: #ced4da } .title, .name { fill: #f8f9fa }
.back { fill: #16191d } .frame { stroke: #5c636a }
}
";

/// A horizontal part of the picture.
#[derive(Clone, Copy)]
pub(crate) struct Band {
    pub(crate) top: f64,
    pub(crate) height: f64,
}

impl Band {
    pub(crate) fn bottom(self) -> f64 {
        self.top + self.height
    }

    pub(crate) fn y(self, share: f64) -> f64 {
        self.bottom() - share * self.height
    }
}

/// A picture that is being drawn.
pub(crate) struct Svg(String);

impl Svg {
    /// An empty picture of that size. `style` adds to what all charts look like.
    pub(crate) fn new((width, height): (f64, f64), about: &str, style: &str) -> Self {
        let mut svg = Self(String::new());
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\
             <title>{about}</title>\
             <style>{STYLE}{style}</style><rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"8\"/>"
        ));
        svg
    }

    pub(crate) fn add(&mut self, element: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(element);
        self.0.push('\n');
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// A text that runs upward along a band.
    pub(crate) fn turned(&mut self, x: f64, band: Band, text: &str) {
        let y = band.y(0.5);
        self.add(format_args!(
            "<text class=\"middle\" transform=\"translate({x} {y:.1}) rotate(-90)\">{text}</text>"
        ));
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(
            "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>"
        ));
    }

    pub(crate) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}
