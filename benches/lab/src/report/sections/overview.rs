//! Savings and costs of presets, and the text of each.

use tqkv_cli::command::demo::{HEAD, withheld};
use tqkv_cli::error::CliError;
use tqkv_cli::output::{counted, grouped};

use super::super::page::escape;
use super::super::source::Row;
use super::{Section, Table, Wanted, digits, percent};

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let rows = wanted.demo.rows("results");
    Ok(vec![
        saves(wanted.demo.all(), &rows, &wanted.demo.command),
        texts(wanted.demo.all().text("prompt"), &rows, &wanted.demo.command),
    ])
}

fn saves(demo: Row<'_>, rows: &[Row<'_>], command: &str) -> Section {
    let cells = rows.iter().map(|row| {
        vec![
            name(*row),
            format!("{:.4}", row.number("perplexity")),
            digits(row.number("kl_to_f16")),
            percent(row.number("top1_agreement")),
            grouped(row.number("cache_bytes_per_token") as u64),
            format!("{:.2}", row.number("ratio")),
            time(row.number("long_step_ms")),
            time(row.number("long_step_spread")),
            time(row.number("long_speedup")),
        ]
    });
    Section {
        title: "What it saves, and what it costs",
        lead: vec![
            "Each row is a preset: a codec for keys and one for values. Perplexity is how surprised the model is by held-out text \
             (less is better), KL how far its predictions are from those with an f16 cache, top-1 how often the likeliest token is \
             the same. The first tokens and the newest 64 stay f16, so at this length much of each cache still is."
                .to_owned(),
            "ms at 32k is attention of one token over one layer of 32,768 tokens (32 heads, 8 KV heads, D = 128): the least of forty rounds in \
             which the settings take turns. Spread is the median over the least. Where it is above 1.5 something else ran on the machine, \
             and the time is left out."
                .to_owned(),
        ],
        html: cards(demo, rows),
        tables: vec![Table::new("Presets", &HEAD, cells.collect()).open()],
        commands: vec![command.to_owned()],
        ..Section::default()
    }
}

/// Large figures of the smallest setting that costs almost nothing.
fn cards(demo: Row<'_>, rows: &[Row<'_>]) -> String {
    let Some(f16) = rows.first() else { return String::new() };
    let cheap = rows.iter().skip(1).filter(|row| row.number("kl_to_f16") < 1e-3);
    let Some(row) = cheap.max_by(|a, b| a.number("ratio").total_cmp(&b.number("ratio"))) else {
        return String::new();
    };
    let change = row.number("perplexity") / f16.number("perplexity") - 1.0;
    let cards = [
        (format!("{:.1} x", row.number("ratio")), format!("fewer bytes than f16, with {}", name(*row))),
        (format!("{:+.2} %", 100.0 * change), format!("perplexity, {} of held-out text", windows(demo))),
        (percent(row.number("top1_agreement")), "of positions with the same likeliest token".to_owned()),
        speed(*row),
    ];
    let cards =
        cards.map(|(figure, words)| format!("<li><b>{}</b>{}</li>\n", escape(&figure), escape(&words)));
    format!("<ul class=\"cards\">\n{}</ul>\n", cards.concat())
}

/// A time, or an empty text if there is none.
fn time(value: f64) -> String {
    if value.is_nan() { withheld() } else { format!("{value:.2}") }
}

/// The amount of text behind the predictions.
fn windows(demo: Row<'_>) -> String {
    format!("{} of {} tokens", counted(demo.count("windows"), "window"), demo.count("context"))
}

/// The card of the attention time.
fn speed(row: Row<'_>) -> (String, String) {
    let times = row.number("long_speedup");
    if times.is_nan() {
        return (
            withheld(),
            "attention at 32k tokens: other work on this machine made its times too uneven".to_owned(),
        );
    }
    let spread = row.number("long_step_spread");
    (
        format!("{times:.1} x"),
        format!("faster attention at 32k tokens, with {}; spread {spread:.2}", name(row)),
    )
}

fn name(row: Row<'_>) -> String {
    row.text("kv")
        .parse()
        .map(|kv: tqkv_cli::preset::Kv| tqkv_cli::policy::Name::from(kv).label())
        .unwrap_or_default()
}

fn texts(prompt: &str, rows: &[Row<'_>], command: &str) -> Section {
    let exact = rows.first().map_or("", |row| row.text("text"));
    let articles = rows.iter().map(|row| {
        let text = row.text("text");
        let same = text == exact;
        let note = if same { "the text of f16" } else { "the first other word is marked" };
        format!(
            "<article><h3>{}</h3><p class=\"soft\">{note}</p><pre>{}</pre></article>\n",
            escape(&name(*row)),
            marked(exact, text)
        )
    });
    Section {
        title: "The same prompt, other caches",
        lead: vec![
            "Greedy text, so two caches part where the likeliest token changes; from there on each text follows its own words. A \
             different text is not a worse one: perplexity says that."
                .to_owned(),
        ],
        html: format!(
            "<details><summary>The prompt</summary><pre class=\"scroll\">{}</pre></details>\n<div class=\"texts\">\n{}</div>\n",
            escape(prompt),
            articles.collect::<String>()
        ),
        commands: vec![command.to_owned()],
        ..Section::default()
    }
}

/// The text as HTML, with a mark on the first word that differs from `exact`.
fn marked(exact: &str, text: &str) -> String {
    let same = exact.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
    if same == text.len() {
        return escape(text);
    }
    let is_space = |at: &usize| text.as_bytes()[*at].is_ascii_whitespace();
    // A different white space belongs to the word after it.
    let first = (same..text.len()).find(|at| !is_space(at)).unwrap_or(same);
    let start = if first > same { first } else { (0..same).rev().find(is_space).map_or(0, |at| at + 1) };
    let end = (first..text.len()).find(is_space).unwrap_or(text.len());
    // In text beyond ASCII, a cut may fall inside a character.
    match (text.get(..start), text.get(start..end), text.get(end..)) {
        (Some(before), Some(word), Some(after)) => {
            format!("{}<mark>{}</mark>{}", escape(before), escape(word), escape(after))
        }
        _ => escape(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::source::Row;
    use serde_json::json;

    #[test]
    fn cards_say_what_was_measured() {
        let row = |kv: &str, ratio: f64, speedup: Option<f64>| {
            json!({ "kv": kv, "ratio": ratio, "kl_to_f16": if ratio > 1.0 { 1e-4 } else { 0.0 }, "perplexity": 2.0,
                "top1_agreement": 1.0, "long_speedup": speedup, "long_step_spread": 1.2 })
        };
        // The fastest setting differs from the setting of the other cards.
        let demo = json!({ "windows": 1, "context": 256,
            "results": [row("f16,f16", 1.0, Some(1.0)), row("s4,s4", 3.0, Some(2.0)), row("i8,i8", 2.0, Some(9.9))] });
        let page = |demo: &serde_json::Value| cards(Row::new(demo), &Row::new(demo).rows("results"));
        let quiet = page(&demo);
        assert!(quiet.contains("1 window of 256 tokens of held-out text"), "{quiet}");
        assert!(quiet.contains("2.0 x") && !quiet.contains("9.9 x"), "{quiet}");
        let mut busy = demo;
        busy["results"][1]["long_speedup"] = json!(null);
        let busy = page(&busy);
        assert!(busy.contains("<b>-</b>") && busy.contains("too uneven") && !busy.contains("NaN"), "{busy}");
    }

    #[test]
    fn the_first_other_word_is_marked() {
        for (exact, text, expected) in [
            ("a borrow checker", "a borrow check", "a borrow check"),
            ("a borrow checker", "a borrowed one", "a <mark>borrowed</mark> one"),
            ("a trait", "a <b>", "a <mark>&lt;b&gt;</mark>"),
            ("x", "y z", "<mark>y</mark> z"),
            ("same", "same", "same"),
            ("one two", "one\ntwo", "one\n<mark>two</mark>"),
        ] {
            assert_eq!(marked(exact, text), expected, "{text}");
        }
    }
}
