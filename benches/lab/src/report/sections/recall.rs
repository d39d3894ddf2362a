//! What presets lose on text that asks for what stands far back.

use tqkv_cli::error::CliError;
use tqkv_cli::output::grouped;

use super::{Section, Table, Wanted, digits, percent};

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let line = "tqkv eval --recall --context 1024 --kv near-lossless --kv balanced --kv compact --kv tiered --kv tiny";
    let answer = wanted.source.run_model(line)?;
    let rows = answer.rows("results");
    let kinds: Vec<_> =
        rows.iter().take(1).flat_map(|f16| f16.rows("texts")).map(|text| text.text("text")).collect();
    let head = [&["K and V", "bytes/token"], &kinds[..]].concat();
    let table = |title: &'static str, cell: fn(super::super::source::Row<'_>) -> String| {
        let cells = rows.iter().map(|row| {
            let name = [row.text("policy"), row.text("kv")].into_iter().find(|name| !name.is_empty());
            let bytes = grouped(row.number("cache_bytes_per_token").round() as u64);
            let texts = row.rows("texts").into_iter().map(cell);
            [name.unwrap_or_default().to_owned(), bytes].into_iter().chain(texts).collect()
        });
        Table::new(title, &head, cells.collect())
    };
    Ok(vec![Section {
        title: "What stands far back",
        lead: vec![
            "Running text seldom asks for an old token. Here a passage, a list, code and facts come first, or rows of \
             tables, facts and calls are scattered in running text, and then comes what asks for them; only these tokens are scored. Kinds that the \
             model fails at f16 say nothing about a cache."
                .to_owned(),
        ],
        tables: vec![
            table("KL to f16, nats", |text| digits(text.number("kl_to_f16"))),
            table("Share of tokens that are right", |text| percent(text.number("right"))),
        ],
        commands: vec![answer.command],
        ..Section::default()
    }])
}
