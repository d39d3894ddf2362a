//! Where results go: a table for people or one JSON object for programs, and progress on a terminal.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::error::CliError;

/// The command's stdout and stderr.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether stdout is to hold one JSON object.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a piece of text at once.
    pub(crate) fn write_text(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    /// Prints `value` as the one JSON object, or else the text that `human` makes of it.
    pub(crate) fn print<T: Serialize>(
        &mut self,
        value: &T,
        human: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let mut text =
            if self.json { serde_json::to_string(value).map_err(io::Error::from)? } else { human(value) };
        text.push('\n');
        Ok(self.write_text(&text)?)
    }

    /// A progress bar over `len` steps; invisible unless stderr is a terminal.
    pub(crate) fn progress(&self, len: u64, what: &'static str) -> ProgressBar {
        // `stderr()` hides itself where stderr is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}");
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
    }
}

/// A table with the first column to the left and the others to the right.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// An integer with thousands separated: `327,680`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
