//! The place of the error: by layer and KV head, and by query head.

use tqkv_cli::error::CliError;

use super::super::heat::Heat;
use super::super::source::Row;
use super::{Section, Table, Wanted, digits, percent};

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let answer = &wanted.heads;
    let results = answer.rows("results");
    let Some(row) = results.last() else { return Ok(Vec::new()) };
    let (kv_heads, scores) = (row.rows("heads"), row.rows("scores"));
    let errors = {
        let mut columns = names("K", &kv_heads, "kv_head");
        columns.extend(names("V", &kv_heads, "kv_head"));
        let cells = by_layer(&kv_heads, |heads| {
            let keys = heads.iter().map(|head| head.number("key_error"));
            keys.chain(heads.iter().map(|head| head.number("value_error"))).collect()
        });
        let (rows, cells): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
        let label = "Squared error of keys and values over their squared norm, s3, by layer and KV head; deeper is more".to_owned();
        Heat { label, rows: &rows, columns: &columns, cells: &cells, write: |x| format!("{x:.4}") }
            .figure()?
    };
    let lost = {
        let columns = names("query head", &scores, "head");
        let cells = by_layer(&scores, |heads| heads.iter().map(|head| 1.0 - head.number("cosine")).collect());
        let (rows, cells): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
        let label = "1 less the cosine between exact attention scores and those from s3 codes, by layer and query head; deeper is more".to_owned();
        Heat { label, rows: &rows, columns: &columns, cells: &cells, write: |x| format!("{x:.5}") }
            .figure()?
    };
    let cells = scores.iter().map(|head| {
        vec![
            format!("layer {}, head {}", head.count("layer"), head.count("head")),
            format!("{:.6}", head.number("cosine")),
            percent(head.number("top1")),
            percent(head.number("top5")),
        ]
    });
    let keys = kv_heads.iter().map(|head| {
        vec![
            format!("layer {}, KV head {}", head.count("layer"), head.count("kv_head")),
            digits(head.number("key_error")),
            digits(head.number("value_error")),
            format!("{:.3}", head.number("centred_energy")),
        ]
    });
    let head = ["query head", "cosine of scores", "same best token", "it is in the best five"];
    let kv_head = ["KV head", "key error", "value error", "energy left by centring"];
    Ok(vec![Section {
        title: "Layers and heads",
        lead: vec![
            "A rotated code makes nearly the same relative error of every vector. Keys are better where their mean, which is kept apart, \
             holds a part of their energy. How much a score suffers is up to the head: a cosine of 1 is a map of scores \
             that is as it was."
                .to_owned(),
        ],
        figures: vec![errors, lost],
        tables: vec![
            Table::new("Attention scores as a table", &head, cells.collect()),
            Table::new("Keys and values as a table", &kv_head, keys.collect()),
        ],
        commands: vec![answer.command.clone()],
        ..Section::default()
    }])
}

/// Names of the heads in the first layer of `heads`.
fn names(what: &str, heads: &[Row<'_>], field: &str) -> Vec<String> {
    let first = heads.first().map_or(0, |head| head.count("layer"));
    let heads = heads.iter().filter(|head| head.count("layer") == first);
    heads.map(|head| format!("{what} {}", head.count(field))).collect()
}

/// One row per layer.
fn by_layer(heads: &[Row<'_>], cells: impl Fn(&[Row<'_>]) -> Vec<f64>) -> Vec<(String, Vec<f64>)> {
    let layers = heads.chunk_by(|a, b| a.count("layer") == b.count("layer"));
    layers.map(|heads| (format!("layer {}", heads[0].count("layer")), cells(heads))).collect()
}
