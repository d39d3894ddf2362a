//! One page that shows what a compressed cache does: plots, tables, texts, and the commands that make them.
//!
//! | file | what |
//! | --- | --- |
//! | [`source`] | runs commands of this program and has their JSON |
//! | `chart.rs`, `heat.rs`, `svg.rs` | drawings, made with `plotters`, in the colours of the page |
//! | `page.rs`, `style.css` | the page: no script, nothing from elsewhere |
//! | `sections` | a file a section |
//!
//! Codecs, presets and layers are whatever the commands list. When not to use it: for a figure that is to be
//! exact, run the command that stands below its plot, with more windows.

mod chart;
mod heat;
mod page;
mod sections;
mod source;
mod svg;

pub(crate) use page::{Page, render};
pub(crate) use sections::{SECTIONS, Wanted};
pub(crate) use source::Source;

/// What stands under a heading.
#[derive(Debug, Default)]
pub(crate) struct Section {
    title: &'static str,
    /// Paragraphs before the drawing.
    lead: Vec<String>,
    figures: Vec<Figure>,
    tables: Vec<Table>,
    /// Text in the place of a drawing, as HTML.
    html: String,
    /// The commands that print the same data.
    commands: Vec<String>,
}

/// A drawing in two widths, and what its colours mean.
#[derive(Debug)]
struct Figure {
    /// What is to be seen, for those who do not see it.
    label: String,
    wide: String,
    narrow: String,
    legend: Vec<Key>,
}

/// What a colour stands for.
#[derive(Debug)]
struct Key {
    colour: usize,
    dashed: bool,
    name: String,
}

/// The data in rows.
#[derive(Debug)]
struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Whether it is to be seen without being asked for.
    open: bool,
}

impl Table {
    fn new(title: impl Into<String>, head: &[&str], rows: Vec<Vec<String>>) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self { title: title.into(), head, rows, open: false }
    }

    fn open(self) -> Self {
        Self { open: true, ..self }
    }
}
