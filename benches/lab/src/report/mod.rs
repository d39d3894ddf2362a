//! One page that shows what a compressed cache does: plots, tables, texts, and the commands that make them.
//!
//! | file | content |
//! | --- | --- |
//! | [`source`] | runs commands of this program and reads their JSON |
//! | `chart.rs`, `heat.rs`, `svg.rs` | drawings, made with `plotters`, in the colours of the page |
//! | `alone.rs` | a drawing as a file of its own |
//! | `cells.rs` | the cells of all tables as one CSV file |
//! | `page.rs`, `style.css` | the page: no script, nothing from elsewhere |
//! | `sections` | one file per section |
//!
//! Codecs, presets and layers are those that the commands list. For an exact figure, do not use the page: run
//! the command below the plot with more windows.

mod alone;
mod cells;
pub(crate) mod chart;
mod heat;
mod page;
mod sections;
mod source;
mod svg;

pub(crate) use cells::write_cells;
pub(crate) use page::{Page, escape, render};
pub(crate) use sections::{SECTIONS, Wanted};
pub(crate) use source::{Row, Source};

/// The content below a heading.
#[derive(Debug, Default)]
pub(crate) struct Section {
    title: &'static str,
    /// Paragraphs before the drawing.
    lead: Vec<String>,
    figures: Vec<Figure>,
    tables: Vec<Table>,
    /// Text in place of a drawing, as HTML.
    html: String,
    /// Commands that print the same data.
    commands: Vec<String>,
}

/// A drawing in two widths, with the legend of its colours.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Description of the drawing for readers who cannot see it.
    label: String,
    wide: String,
    narrow: String,
    legend: Vec<Key>,
}

/// A legend entry: a colour and its meaning.
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
    /// True if the table is shown open.
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
