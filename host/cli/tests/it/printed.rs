//! Figures as documents print them, and the same figures measured again.
//!
//! A few rows by default, all with `TQKV_EXHAUSTIVE=1`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::json;

pub(crate) fn is_exhaustive() -> bool {
    std::env::var_os("TQKV_EXHAUSTIVE").is_some_and(|value| value == "1")
}

pub(crate) fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn run(args: &str) -> Value {
    let words = shlex::split(args).unwrap();
    json(Path::new(env!("CARGO_MANIFEST_DIR")), &words.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"))
}

/// The rows of a document below the line that begins with `head`, up to an empty line.
pub(crate) fn rows(text: &str, head: &str) -> Vec<String> {
    let mut lines = text.lines().skip_while(|line| !line.trim().starts_with(head));
    assert!(lines.next().is_some(), "no line begins with {head}");
    let is_row = |line: &&str| !line.trim().is_empty() && !line.starts_with("```");
    lines.take_while(is_row).filter(|line| !line.starts_with("| ---")).map(str::to_owned).collect()
}

/// Cells of a row of a Markdown table.
pub(crate) fn cells(row: &str) -> Vec<String> {
    row.trim().trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('*').to_owned()).collect()
}

/// Returns true if a figure equals the printed one, up to one in the last digit.
pub(crate) fn assert_printed(what: &str, printed: &str, value: f64) {
    let text = printed.trim_end_matches('%').trim().replace(',', "");
    let wanted: f64 = text.parse().unwrap_or_else(|_| panic!("{what}: {printed} is no number"));
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let last = 0.1f64.powi(digits as i32);
    assert!((value - wanted).abs() < 1.5 * last, "{what}: printed is {printed}, measured {value}");
}

/// Checks a figure in the row of `docs/claims.md` that has this command.
pub(crate) fn assert_claimed(command: &str, printed: &str, value: f64) {
    let claims = document("docs/claims.md");
    let row = claims.lines().find(|line| line.contains(&format!("`{command}`")));
    let row = row.unwrap_or_else(|| panic!("docs/claims.md has no row of {command}"));
    let is_end = |c: char| !(c.is_ascii_digit() || ".,".contains(c));
    let mut figures = row.split(is_end).map(|word| word.trim_end_matches(['.', ',']));
    assert!(figures.any(|figure| figure == printed), "docs/claims.md: {printed} is not beside {command}");
    assert_printed(command, printed, value);
}

/// The rows that this run measures.
pub(crate) fn chosen(rows: Vec<String>, few: &[&str]) -> Vec<String> {
    let is_chosen = |row: &String| {
        is_exhaustive() || few.iter().any(|few| row.trim_start().trim_start_matches("| ").starts_with(few))
    };
    let rows: Vec<_> = rows.into_iter().filter(is_chosen).collect();
    assert!(!rows.is_empty(), "{few:?} is in no row");
    rows
}
