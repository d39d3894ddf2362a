//! The tables of `tqkv eval --recall`.

use std::time::Instant;

use tqkv_model::eval::{EvalSpec, Progress, Recall, evaluate_recall};

use super::eval_markdown;
use super::eval_subject::{Report, Subject, settings};
use super::eval_texts::{Cell, Row, answers};
use crate::cache_args::CacheArgs;
use crate::error::CliError;
use crate::memory::Memory;
use crate::output::{Output, table, table_line};
use crate::plan::CacheShape;

/// Measures the caches of `cache` on each of `kinds`, and prints a row as soon as it is known. With the shape of
/// the model's cache it prints tables in Markdown at the end instead.
pub(super) fn run(
    subject: &Subject,
    (spec, kinds): (&EvalSpec, &[Recall]),
    (cache, shape): (&CacheArgs, Option<&CacheShape>),
    out: &mut Output,
) -> Result<(), CliError> {
    let Subject { model, text, place, windows, .. } = subject;
    let policies = cache.policies_beside_f16(place);
    let sizes = shape.map(|shape| eval_markdown::sizes(shape, &policies)).transpose()?;
    let settings = settings(model, place, (&policies, spec.context))?;
    let width = policies.iter().map(|policy| policy.name.label().chars().count()).max().unwrap_or(0);
    let bar = out.progress(0, "evaluating");
    let clock = Instant::now();
    let title = format!("model {}, {windows} x {} tokens of each kind", model.name(), spec.context);
    let mut printed = Ok(());
    let (mut rows, mut known) = (Vec::with_capacity(policies.len()), Vec::with_capacity(kinds.len()));
    let measured =
        evaluate_recall(model, (text, kinds), spec, &settings[0], &settings[1..], &mut |progress| {
            match progress {
                Progress::Passes(done, total) => {
                    bar.set_length(total as u64);
                    bar.set_position(done as u64);
                }
                Progress::Result(result) => {
                    known.push(result.clone());
                    if known.len() == kinds.len() {
                        let row = Row::new(policies[rows.len()].name.clone(), kinds, &known);
                        known.clear();
                        if printed.is_ok() && !out.is_json() && sizes.is_none() {
                            let above = if rows.is_empty() {
                                format!("{title}\n{}\n", line(width, &head(kinds)))
                            } else {
                                String::new()
                            };
                            printed = bar.suspend(|| {
                                out.write_text(&format!("{above}{}\n", line(width, &cells(&row))))
                            });
                        }
                        rows.push(row);
                    }
                }
            }
        });
    bar.finish_and_clear();
    measured.map_err(|error| CliError::model(None, &error))?;
    printed?;
    let seconds = clock.elapsed().as_secs_f64();
    if out.is_json() {
        return out.print(&Report::new(subject, seconds, rows), |_| String::new());
    }
    if let Some(sizes) = sizes {
        return Ok(out.write_text(&eval_markdown::tables(subject, &rows, &sizes))?);
    }
    if let Some(depths) = depths(&rows) {
        out.write_text(&format!("\nKL by where it was told: first page, middle, end\n{depths}\n"))?;
    }
    let (head, lines) = answers(&rows, &|row| row.name.label());
    if !lines.is_empty() {
        let head: Vec<_> = head.iter().map(String::as_str).collect();
        out.write_text(&format!("\nanswers that are right\n{}\n", table(&head, lines.into_iter())))?;
    }
    out.write_text(&format!("\n{seconds:.1} seconds{}\n", Memory::of(&subject.model).line()))?;
    Ok(())
}

/// The divergence by depth, for kinds that tell at every depth. `None` without such kinds.
fn depths(rows: &[Row]) -> Option<String> {
    let known = |row: &Row| {
        let of = |cell: &Cell| Some((cell.text, cell.depths(" ")?));
        row.texts.iter().filter_map(of).collect::<Vec<_>>()
    };
    let kinds: Vec<_> = known(rows.first()?).into_iter().map(|(kind, _)| kind).collect();
    if kinds.is_empty() {
        return None;
    }
    let head: Vec<_> = std::iter::once("K,V").chain(kinds).collect();
    let lines = rows.iter().map(|row| {
        let cells = known(row).into_iter().map(|(_, kl)| kl);
        std::iter::once(row.name.label()).chain(cells).collect()
    });
    Some(table(&head, lines))
}

fn head(kinds: &[Recall]) -> Vec<String> {
    let kinds = kinds.iter().map(|kind| kind.name().to_owned());
    ["K,V".to_owned()].into_iter().chain(kinds).chain(["bytes/token".to_owned()]).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let cell = |cell: &Cell| format!("{:.4} {:3.0} %", cell.kl_to_f16, 100.0 * cell.right);
    let texts = row.texts.iter().map(cell);
    let bytes = row.name.bytes(format!("{:.0}", row.cache_bytes_per_token));
    [row.name.label()].into_iter().chain(texts).chain([bytes]).collect()
}

/// A line of the table. The widths are fixed, because rows are printed before later rows are known.
fn line(first: usize, cells: &[String]) -> String {
    let widths = [first].into_iter().chain(vec![12; cells.len() - 2]).chain([11]);
    let cells: Vec<_> = cells.iter().map(String::as_str).zip(widths).collect();
    table_line(&cells)
}
