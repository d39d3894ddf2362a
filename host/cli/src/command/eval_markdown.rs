//! The tables of `tqkv eval --recall --markdown`, for a document about a model.

use super::eval_subject::Subject;
use super::eval_texts::{Cell, Row, answers};
use crate::error::CliError;
use crate::output::{counted, grouped};
use crate::plan::{CacheShape, Foreign};
use crate::policy::Policy;

/// Lengths of contexts whose bytes are counted.
const LENGTHS: [u64; 3] = [1_024, 4_096, 32_768];

/// Bytes per token of a policy at [`LENGTHS`]. `None` for what no plan counts.
pub(super) type Sizes = Option<[u64; LENGTHS.len()]>;

/// Bytes per token of each policy.
///
/// # Errors
/// Head dims that a codec does not have.
pub(super) fn sizes(shape: &CacheShape, policies: &[Policy]) -> Result<Vec<Sizes>, CliError> {
    policies.iter().map(|policy| sizes_of(shape, policy)).collect()
}

fn sizes_of(shape: &CacheShape, policy: &Policy) -> Result<Sizes, CliError> {
    let plan = if policy.is_reference() { None } else { shape.plan(policy).ok() };
    let mut sizes = [0; LENGTHS.len()];
    for (size, tokens) in sizes.iter_mut().zip(LENGTHS) {
        let bytes = match &plan {
            Some(plan) => plan.bytes(tokens),
            None if policy.is_reference() && !policy.is_windowed_yardstick() => {
                Foreign::reference(policy.name.kv).bytes(shape, tokens)
            }
            None => return Ok(None),
        };
        *size = (bytes.map_err(CliError::bad_input)? as f64 / tokens as f64).round() as u64;
    }
    Ok(Some(sizes))
}

/// The divergence of each row by kind of text, then its spread over the texts, how many answers are right, and
/// bytes.
pub(super) fn tables(subject: &Subject, rows: &[Row], sizes: &[Sizes]) -> String {
    let Subject { model, context, windows, .. } = subject;
    let name = model.name();
    let kinds: Vec<_> = rows.iter().take(1).flat_map(|row| &row.texts).map(|cell| cell.text).collect();
    let by_kind = |begin: &[&str], first: usize, cells: &dyn Fn(&Row) -> Vec<String>| {
        let head: Vec<&str> = begin.iter().copied().chain(kinds.iter().copied()).collect();
        table(&head, rows[first..].iter().map(|row| [vec![code(row)], cells(row)].concat()))
    };
    let each = |row: &Row, cell: &dyn Fn(&Cell) -> String| row.texts.iter().map(cell).collect::<Vec<_>>();
    let mut text = format!(
        "KL to f16 of {name}, the mean of {} of {} tokens of each kind:\n\n{}",
        counted(windows, "text"),
        grouped(*context as u64),
        by_kind(&["policy", "bytes per token"], 1, &|row| {
            let bytes = row.name.bytes(grouped(row.cache_bytes_per_token.round() as u64));
            [vec![bytes], each(row, &|cell| format!("{:.4}", cell.kl_to_f16))].concat()
        })
    );
    if *windows > 1 {
        let spread = |cell: &Cell| {
            let bound = |least: fn(f64, f64) -> f64| cell.kl_of_texts.iter().copied().reduce(least);
            let [least, most] = [bound(f64::min), bound(f64::max)].map(Option::unwrap_or_default);
            format!("{least:.4} to {most:.4}")
        };
        text += &format!(
            "\nThe least and the largest of the texts:\n\n{}",
            by_kind(&["policy"], 1, &|row| each(row, &spread))
        );
    }
    text += &depths(rows);
    text += &format!(
        "\nHow many scored tokens are the likeliest ones:\n\n{}",
        by_kind(&["policy"], 0, &|row| each(row, &|cell| format!("{:.0} %", 100.0 * cell.right)))
    );
    let (head, lines) = answers(rows, &code);
    if !lines.is_empty() {
        let head: Vec<_> = head.iter().map(String::as_str).collect();
        text += &format!("\nAnswers that are right:\n\n{}", table(&head, lines.into_iter()));
    }
    let lengths = LENGTHS.map(|tokens| format!("{} tokens", grouped(tokens)));
    let head: Vec<&str> = std::iter::once("policy").chain(lengths.iter().map(String::as_str)).collect();
    let rows = rows.iter().zip(sizes).map(|(row, sizes)| {
        let sizes = sizes.map_or([const { String::new() }; LENGTHS.len()], |sizes| sizes.map(grouped));
        std::iter::once(code(row)).chain(sizes).collect()
    });
    text + &format!("\nBytes per token, as `tqkv plan` counts them:\n\n{}", table(&head, rows))
}

/// The divergence by depth, for kinds that tell at every depth. Empty without such kinds.
fn depths(rows: &[Row]) -> String {
    let known = |row: &Row| {
        let of = |cell: &Cell| Some((cell.text, cell.depths(", ")?));
        row.texts.iter().filter_map(of).unzip()
    };
    let (kinds, _): (Vec<_>, Vec<_>) = rows.first().map(known).unwrap_or_default();
    if kinds.is_empty() {
        return String::new();
    }
    let head = [&["policy"], &kinds[..]].concat();
    let lines = rows[1..].iter().map(|row| [vec![code(row)], known(row).1].concat());
    format!(
        "\nKL by where it was told, on the first page, in the middle and at the end:\n\n{}",
        table(&head, lines)
    )
}

/// The name of a row. A preset has its codecs next to it.
fn code(row: &Row) -> String {
    let label = row.name.label();
    match label.split_once(' ') {
        Some((codecs, preset)) if row.name.policy.is_none() => format!("`{preset}` (`{codecs}`)"),
        _ => format!("`{label}`"),
    }
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<_> = head.iter().map(|&cell| cell.to_owned()).collect();
    let rule = vec!["---".to_owned(); head.len()];
    [line(&head), line(&rule)].into_iter().chain(rows.map(|row| line(&row))).collect()
}
