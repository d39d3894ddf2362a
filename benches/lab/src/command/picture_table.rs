//! The figures of a table in a document as a picture. Each text of the picture is a cell of the table, so the
//! two cannot disagree.

use std::fs;
use std::path::{Path, PathBuf};

use tqkv_cli::error::CliError;

use super::picture_bars::{Bar, Frame, Panel, draw};

/// A chart of a table in a document.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A table instead of a measurement")]
pub(super) struct TableArgs {
    /// Markdown file that holds the table.
    #[arg(long, value_name = "FILE.md", requires_all = ["under", "title"])]
    page: Option<PathBuf>,
    /// First words of the second-level heading above the table.
    #[arg(long, value_name = "HEADING", requires = "page")]
    under: Option<String>,
    /// A description for readers who cannot see it.
    #[arg(long, value_name = "WORDS", requires = "page")]
    title: Option<String>,
    /// Column to draw, and the words above its bars; it may be repeated.
    #[arg(long, value_name = "NAME=WORDS", requires = "page", conflicts_with = "row")]
    column: Vec<String>,
    /// Row to draw instead of columns; it may be repeated.
    #[arg(long, value_name = "NAME=WORDS", requires = "page")]
    row: Vec<String>,
    /// First letters of labels whose bars are grey, because they are other formats; it may be repeated.
    #[arg(long, value_name = "LABEL", requires = "page")]
    grey: Vec<String>,
    /// Draw all bars to one scale, because they have one unit.
    #[arg(long, requires = "page")]
    one_scale: bool,
}

/// The rows of a table. The first row is its head, and the first cell of each row its label.
type PageTable = Vec<Vec<String>>;

impl TableArgs {
    /// The panels, if a table is to be drawn.
    pub(super) fn panels(&self) -> Option<Result<Vec<Panel>, CliError>> {
        self.page.as_deref().map(|page| self.read(page))
    }

    /// The picture of panels. Its title is `title` unless a table is drawn.
    pub(super) fn draw(&self, title: &str, panels: &[Panel]) -> String {
        let title = self.title.as_deref().unwrap_or(title);
        draw(&Frame { title, command: &self.command(), one_scale: self.one_scale }, panels)
    }

    /// The command that draws the picture.
    fn command(&self) -> String {
        let mut words = "tqkv-lab picture".to_owned();
        let mut add = |option: &str, value: &str| words.extend([" --", option, " \"", value, "\""]);
        let page = self.page.as_ref().map(|page| page.display().to_string());
        for (option, value) in [("page", &page), ("under", &self.under), ("title", &self.title)] {
            value.iter().for_each(|value| add(option, value));
        }
        for (option, values) in [("column", &self.column), ("row", &self.row), ("grey", &self.grey)] {
            values.iter().for_each(|value| add(option, value));
        }
        if self.one_scale {
            words.push_str(" --one-scale");
        }
        words
    }

    fn read(&self, page: &Path) -> Result<Vec<Panel>, CliError> {
        let text = fs::read_to_string(page).map_err(|error| CliError::io(page, &error))?;
        let (page, under) = (page.display(), self.under.as_deref().unwrap_or_default());
        let has_heading = |section: &&str| section.starts_with(under);
        let section = text.split("\n## ").skip(1).find(has_heading).ok_or_else(|| {
            CliError::bad_input(format_args!("{page}: no heading \"## {under}\": expected its first words"))
        })?;
        let names = if self.row.is_empty() { &self.column } else { &self.row };
        let names: Vec<_> = names.iter().map(|name| name.split_once('=').unwrap_or((name, name))).collect();
        let mut tables = tables(section);
        if !self.row.is_empty() {
            tables = tables.iter().map(turned).collect();
        }
        let has_names = |table: &&PageTable| names.iter().all(|(name, _)| column(table, name).is_some());
        let table = tables.iter().find(has_names).filter(|_| !names.is_empty()).ok_or_else(|| {
            let heads: Vec<_> = tables.iter().map(|table| table[0][1..].join("; ")).collect();
            CliError::bad_input(format_args!(
                "{page}: no table under \"{under}\" has {:?}: expected names of one of {heads:?}",
                names.iter().map(|(name, _)| name).collect::<Vec<_>>()
            ))
        })?;
        Ok(names.iter().map(|(name, heading)| self.panel(table, name, heading)).collect())
    }

    /// The bars of a column. Cells without a figure have none.
    fn panel(&self, table: &PageTable, name: &str, heading: &str) -> Panel {
        let at = column(table, name).unwrap_or_default();
        let bars = table[1..].iter().filter_map(|row| {
            let (label, text) = (row[0].clone(), row.get(at)?.clone());
            let grey = self.grey.iter().any(|other| label.starts_with(other));
            Some(Bar { value: figure(&text)?, label, text, grey })
        });
        Panel { heading: heading.to_owned(), bars: bars.collect() }
    }
}

/// The tables of a text: rows of Markdown, and lines of a program's output with two spaces between cells.
fn tables(text: &str) -> Vec<PageTable> {
    let cells = |line: &str| -> Vec<String> {
        let cell = |cell: &str| cell.trim().replace(['`', '*'], "");
        match line.trim().strip_prefix('|') {
            Some(row) => row.trim_end_matches('|').split('|').map(cell).collect(),
            None => line.split("  ").map(cell).filter(|cell| !cell.is_empty()).collect(),
        }
    };
    let is_rule = |line: &&str| !(line.contains("---") && line.chars().all(|c| "|-: ".contains(c)));
    let lines: Vec<_> = text.lines().filter(is_rule).map(cells).collect();
    let runs = lines.split(|cells| cells.len() < 2);
    runs.filter(|rows| rows.len() > 1).map(<[_]>::to_vec).collect()
}

/// The table with rows and columns exchanged.
fn turned(table: &PageTable) -> PageTable {
    let column = |at| table.iter().map(|row| row.get(at).cloned().unwrap_or_default()).collect();
    (0..table[0].len()).map(column).collect()
}

fn column(table: &PageTable, name: &str) -> Option<usize> {
    (1..table[0].len()).find(|&at| table[0][at] == name)
}

/// The number at the start of a cell.
fn figure(cell: &str) -> Option<f64> {
    let plain = cell.replace(',', "");
    let end = plain.find(|c: char| !(c.is_ascii_digit() || ".+-".contains(c))).unwrap_or(plain.len());
    plain[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_tables_are_read() {
        let markdown =
            "words\n\n| K,V | KL |\n| --- | ---: |\n| `s4`, here | **.0040** |\n| f16 | |\n\nwords";
        let expected = [["K,V", "KL"], ["s4, here", ".0040"], ["f16", ""]];
        assert_eq!(tables(markdown), [expected]);
        let printed =
            "```text\nmodel shipped: a  b\n\n K,V     KL to f16  top-1\n s4,s4   0.000259   99 %\n```\n";
        assert_eq!(tables(printed), [[["K,V", "KL to f16", "top-1"], ["s4,s4", "0.000259", "99 %"]]]);
        assert_eq!(turned(&tables(markdown)[0]), [["K,V", "s4, here", "f16"], ["KL", ".0040", ""]]);
    }

    #[test]
    fn figures_are_the_numbers_at_the_start() {
        for (cell, value) in [("4,460,952", Some(4_460_952.0)), (".0046 s", Some(0.0046)), ("as f16", None)] {
            assert_eq!(figure(cell), value, "{cell}");
        }
    }
}
