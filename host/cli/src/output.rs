//! The output of a command: a table for people or one JSON object for programs, and progress on a terminal.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::error::CliError;
use crate::plain::plain;

/// The command's stdout and stderr.
#[derive(Debug)]
pub struct Output {
    json: bool,
    /// The printed text, if it is kept instead of written.
    kept: Option<String>,
    /// True if stdout carries the file that the command makes.
    on_stderr: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, kept: None, on_stderr: false }
    }

    /// Makes an output that keeps the JSON object, so that another command can read it.
    pub fn keeping() -> Self {
        Self { json: true, kept: Some(String::new()), on_stderr: false }
    }

    /// Returns the kept text.
    pub fn kept(self) -> String {
        self.kept.unwrap_or_default()
    }

    /// Sends text to stderr from now on, because stdout carries the file that the command makes.
    pub(crate) fn report_on_stderr(&mut self) {
        self.on_stderr = true;
    }

    /// Returns true if the output is one JSON object.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a piece of text and flushes it.
    pub(crate) fn write_text(&mut self, text: &str) -> io::Result<()> {
        if let Some(kept) = &mut self.kept {
            kept.push_str(text);
            return Ok(());
        }
        if self.on_stderr {
            return io::stderr().lock().write_all(text.as_bytes());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    /// Prints `value` as one JSON object, or the text that `human` makes of it.
    pub fn print<T: Serialize>(
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
    pub fn progress(&self, len: u64, what: &'static str) -> ProgressBar {
        // `stderr()` hides the bar unless stderr is a terminal.
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}");
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
    }
}

/// A spinner for work of unknown length. Invisible unless stderr is a terminal; dropping it clears the line.
pub struct Waiting(ProgressBar);

impl Waiting {
    pub fn new(what: impl Into<Cow<'static, str>>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {spinner} {elapsed}");
        let bar =
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())).with_message(what);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self(bar)
    }

    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

/// A table; the first column is aligned left, the others right. If it is wider than the terminal, the other
/// columns continue below with the first column repeated.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let widths: Vec<_> = head
        .iter()
        .enumerate()
        .map(|(i, head)| {
            rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell)).fold(width(head), usize::max)
        })
        .collect();
    let lines: Vec<Vec<_>> = std::iter::once(head.to_vec())
        .chain(rows.iter().map(|row| row.iter().map(String::as_str).collect()))
        .collect();
    let parts = fold(&widths, terminal_width());
    let parts = parts.into_iter().map(|columns| {
        let line = |cells: &Vec<&str>| {
            let columns = std::iter::once(0).chain(columns.clone());
            let cells: Vec<_> = columns.map(|i| (cells.get(i).copied().unwrap_or(""), widths[i])).collect();
            table_line(&cells)
        };
        lines.iter().map(line).collect::<Vec<_>>().join("\n")
    });
    parts.collect::<Vec<_>>().join("\n\n")
}

/// One line of a table, from cells and the widths of their columns.
pub(crate) fn table_line(cells: &[(&str, usize)]) -> String {
    let mut line = String::new();
    for (i, &(cell, wide)) in cells.iter().enumerate() {
        let space = " ".repeat(wide.saturating_sub(width(cell)));
        match i {
            0 => line.extend([cell, space.as_str()]),
            _ => line.extend(["  ", space.as_str(), cell]),
        }
    }
    line.trim_end().to_owned()
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

/// Splits the columns after the first into runs that fit next to it, with at least one column per run.
fn fold(widths: &[usize], within: usize) -> Vec<Range<usize>> {
    let first = widths.first().copied().unwrap_or(0);
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut used = usize::MAX;
    for (i, width) in widths.iter().enumerate().skip(1) {
        used = used.saturating_add(2 + width);
        match runs.last_mut() {
            Some(run) if used <= within => run.end = i + 1,
            Some(_) | None => {
                runs.push(i..i + 1);
                used = first + 2 + width;
            }
        }
    }
    if runs.is_empty() { std::iter::once(1..1).collect() } else { runs }
}

/// Width of the terminal in columns; otherwise `COLUMNS`, otherwise no limit.
fn terminal_width() -> usize {
    let terminal = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    let asked = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|&n| n > 0);
    terminal.or_else(asked).unwrap_or(usize::MAX)
}

/// The prefix of every [`note`].
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the program name that notes begin with.
pub(crate) fn name_program(name: &'static str) {
    // A process runs one program, so the first name stays.
    let _ = PROGRAM.set(name);
}

/// Writes a line to stderr next to the result. A failed write is ignored.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}: {}", PROGRAM.get().unwrap_or(&"tqkv"), plain(&text.to_string()));
}

/// Bytes for a cell of a table: `17,179,869,184 (16.0 GiB)`.
pub fn sized(bytes: u64) -> String {
    format!("{}{}", grouped(bytes), binary(bytes))
}

/// Bytes for a sentence: `17,179,869,184 bytes (16.0 GiB)`.
pub(crate) fn bytes(bytes: u64) -> String {
    format!("{} bytes{}", grouped(bytes), binary(bytes))
}

/// Bytes in MiB or GiB, if there is at least one.
fn binary(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB")];
    let Some((power, unit)) = units.into_iter().find(|(power, _)| bytes >> power > 0) else {
        return String::new();
    };
    let size = bytes as f64 / (1u64 << power) as f64;
    let decimals = usize::from(size < 99.95) + usize::from(size < 9.995);
    format!(" ({size:.decimals$} {unit})")
}

/// A number with its noun: 1 window, 2 windows.
pub fn counted(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// An integer with thousands separated: `327,680`.
pub fn grouped(n: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_binary_units_from_a_mebibyte_on() {
        for (count, expected) in [
            (0, "0 bytes"),
            ((1 << 20) - 1, "1,048,575 bytes"),
            (1 << 20, "1,048,576 bytes (1.00 MiB)"),
            (10_480_000, "10,480,000 bytes (9.99 MiB)"),
            (10_485_000, "10,485,000 bytes (10.0 MiB)"),
            (34_000_000_000, "34,000,000,000 bytes (31.7 GiB)"),
            (137_438_953_472, "137,438,953,472 bytes (128 GiB)"),
            (u64::MAX, "18,446,744,073,709,551,615 bytes (17179869184 GiB)"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        assert_eq!(sized(17_179_869_184), "17,179,869,184 (16.0 GiB)");
    }
}
