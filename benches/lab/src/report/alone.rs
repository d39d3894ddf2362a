//! A drawing as a file of its own, in the page's colours for light paper. Viewers of images know no
//! variables.

use std::fmt::Write as _;

use super::page::escape;
use super::svg::{WIDE, with_colours};
use super::{Figure, Key};

/// Height of a line of text in pixels.
const LINE: u32 = 24;
/// Space around the text.
const MARGIN: u32 = 16;

impl Figure {
    /// The wide drawing below its description, with the legend below it.
    pub(crate) fn alone(&self) -> String {
        let (top, lines) = (MARGIN + LINE, self.legend.len() as u32);
        let (width, height) = (WIDE.width, top + WIDE.height + lines * LINE + MARGIN);
        let place = format!("<svg y=\"{top}\" width=\"{width}\" height=\"{}\" ", WIDE.height);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"14\" role=\"img\" aria-label=\"{label}\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"var(--card)\"/>\n\
             <text x=\"{MARGIN}\" y=\"{MARGIN}\" dy=\"10\" font-size=\"16\" fill=\"var(--ink)\">{label}</text>\n{drawing}\n",
            label = escape(&self.label),
            drawing = self.wide.replacen("<svg ", &place, 1),
        );
        for (i, Key { colour, dashed, name }) in self.legend.iter().enumerate() {
            let y = top + WIDE.height + MARGIN / 2 + i as u32 * LINE;
            let (dash, name) = (if *dashed { " stroke-dasharray=\"6 4\"" } else { "" }, escape(name));
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<path d=\"M {MARGIN} {y} h 22\" stroke=\"var(--c{colour})\" stroke-width=\"3\"{dash}/>\
                 <text x=\"{}\" y=\"{y}\" dy=\"5\" fill=\"var(--ink)\">{name}</text>",
                MARGIN + 30
            );
        }
        svg.push_str("</svg>\n");
        with_colours(&svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_legend_and_colours_of_its_own() {
        let key = |colour, dashed, name: &str| Key { colour, dashed, name: name.into() };
        let figure = Figure {
            label: "a & b".into(),
            wide: "<svg viewBox=\"0 0 860 420\"><path stroke=\"var(--c1)\" fill=\"var(--grid)\"/></svg>"
                .into(),
            narrow: String::new(),
            legend: vec![key(1, false, "s4 < f16"), key(7, true, "reading")],
        };
        let svg = figure.alone();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(
            svg.contains("a &amp; b") && svg.contains("s4 &lt; f16") && svg.contains("stroke-dasharray"),
            "{svg}"
        );
        assert!(svg.contains("stroke=\"#c8500a\"") && !svg.contains("var("), "{svg}");
    }
}
