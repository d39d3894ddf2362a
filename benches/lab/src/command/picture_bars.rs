//! Panels of bars as a picture of its own, in colours for light and for dark pages.

use std::fmt::{Arguments, Write as _};

use serde::Serialize;

use crate::report::escape;

const WIDTH: usize = 860;
const ROW: usize = 24;
/// Space for the texts after the bars.
const TEXT: usize = 180;
/// Space for labels of any length up to 13 letters, and for each letter of longer ones.
const LABELS: (usize, usize) = (120, 8);
/// Bars of this ratio and less begin at zero. The marks of others have a logarithmic scale.
const LINEAR: f64 = 50.0;

/// A value with its label and the text next to it. Grey values are those of other programs.
#[derive(Debug, Serialize)]
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    pub(super) text: String,
    pub(super) grey: bool,
}

/// A heading and the bars below it.
#[derive(Debug, Serialize)]
pub(super) struct Panel {
    pub(super) heading: String,
    pub(super) bars: Vec<Bar>,
}

/// The words of a picture that are not in its panels, and its scale.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// A description for readers who cannot see it.
    pub(super) title: &'a str,
    /// The command that draws the picture.
    pub(super) command: &'a str,
    /// True if bars of all panels have one unit.
    pub(super) one_scale: bool,
}

/// All panels, one below the other.
pub(super) fn draw(frame: &Frame<'_>, panels: &[Panel]) -> String {
    let bars = || panels.iter().flat_map(|panel| &panel.bars);
    let letters = bars().map(|bar| bar.label.chars().count()).max().unwrap_or(0);
    let left = LABELS.0.max((letters + 2) * LABELS.1);
    let mut svg = String::new();
    let mut y = ROW;
    for panel in panels {
        let heading = escape(&panel.heading);
        line(&mut svg, format_args!("<text x=\"0\" y=\"{y}\" font-weight=\"bold\">{heading}</text>"));
        let limits = if frame.one_scale { limits(bars()) } else { limits(&panel.bars) };
        y = put_bars(&mut svg, &panel.bars, limits, (left, y)) + 2 * ROW;
    }
    let height = y - ROW;
    let (title, command) = (escape(frame.title), escape(frame.command));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         font-family=\"sans-serif\" font-size=\"14\" role=\"img\">\n<title>{title}</title>\n\
         <metadata>{command}</metadata>\n<style>text{{fill:#222}} .f16{{fill:#9a9a9a}} .code{{fill:#2a78b8}} \
         .grid{{stroke:#8884}} @media(prefers-color-scheme:dark){{text{{fill:#ddd}} .code{{fill:#5aa9e6}}}}\
         </style>\n{svg}</svg>\n"
    )
}

/// The least positive value and the largest one.
fn limits<'a>(bars: impl IntoIterator<Item = &'a Bar>) -> (f64, f64) {
    let values = bars.into_iter().map(|bar| bar.value).filter(|value| *value > 0.0);
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

/// Draws the bars right of `left` and below `y`. Returns the line of the last one.
fn put_bars(
    svg: &mut String,
    bars: &[Bar],
    (least, most): (f64, f64),
    (left, mut y): (usize, usize),
) -> usize {
    let length = (WIDTH - TEXT - left) as f64;
    let decades = (most > LINEAR * least).then(|| (least.log10().floor(), most.log10().ceil()));
    if let Some((first, last)) = decades {
        y += ROW;
        for decade in first as i32..=last as i32 {
            let x = left as f64 + (f64::from(decade) - first) / (last - first) * length;
            let (top, bottom) = (y + 8, y + 8 + bars.len() * ROW);
            let name = 10f64.powi(decade);
            line(svg, format_args!("<path class=\"grid\" d=\"M {x:.1} {top} V {bottom}\"/>"));
            line(svg, format_args!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"));
        }
    }
    for bar in bars {
        y += ROW;
        let (label, text) = (escape(&bar.label), escape(&bar.text));
        line(svg, format_args!("<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{label}</text>", left - 8));
        let class = if bar.grey { "f16" } else { "code" };
        let share = match decades {
            None => bar.value / most,
            // Zero has no place on this scale, so its text stands alone.
            Some(_) if bar.value <= 0.0 => 0.0,
            Some((first, last)) => (bar.value.log10() - first) / (last - first),
        };
        let end = left as f64 + share * length;
        if decades.is_none() {
            let (top, width) = (y - 13, share * length);
            line(
                svg,
                format_args!(
                    "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{width:.1}\" height=\"16\"/>"
                ),
            );
        } else if bar.value > 0.0 {
            line(svg, format_args!("<circle class=\"{class}\" cx=\"{end:.1}\" cy=\"{}\" r=\"6\"/>", y - 5));
        }
        let gap = if decades.is_none() { 8.0 } else { 12.0 };
        line(svg, format_args!("<text x=\"{:.1}\" y=\"{y}\">{text}</text>", end + gap));
    }
    y
}

fn line(svg: &mut String, text: Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(svg, "{text}");
}
