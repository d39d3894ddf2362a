//! Published figures of other projects, next to the figures of this machine.

use tqkv_cli::error::CliError;

use super::super::source::Answer;
use super::{Section, Table, Wanted, digits, pair, percent};

/// Scalar codes of 1 to 4 bits. No cache has the first.
const CODECS: [&str; 4] = ["tq1", "s2", "s3", "s4"];

/// Rows of a table: what it is, what others published, and what is measured here.
type Figures = Vec<Vec<String>>;

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let random = wanted.source.full_or_quick(20_000, 400);
    let errors = wanted.source.run(&format!(
        "tqkv-lab stats --random {random} --scale-mode raw --effort fast --codec {}",
        CODECS.join(",")
    ))?;
    let step = wanted.source.run(
        "tqkv plan --layers 32 --kv-heads 32 --head-dim 128 --tokens 32768 --bandwidth 2TB/s --kv 'f16 hot=0 sinks=0' --kv 's4 hot=0 sinks=0' \
         --other turbo4=68",
    )?;
    let levels = wanted.source.run("tqkv-lab compare s4@portable s4 --context 512")?;
    let figures = [of_vectors(&errors), of_models(wanted), of_machines(&levels, &step)].concat();
    let bounds = ["bits", "no code is below", "here", "the paper's bound"];
    Ok(vec![Section {
        title: "Published figures next to these",
        lead: vec![
            "Other implementations of the same paper reported these. Errors are of random directions at D = 128 with the norm as \
             scale, which is what they measured; the default of this program chooses its scale for unbiased dot products. Rows of other models \
             say what was reported of them, not what this model should have."
                .to_owned(),
        ],
        tables: vec![
            Table::new("There and here", &["what", "published", "here"], figures).open(),
            Table::new("Between the bounds of the paper", &bounds, between_bounds(&errors)).open(),
        ],
        commands: vec![
            errors.command.clone(),
            step.command.clone(),
            levels.command.clone(),
            wanted.codecs.command.clone(),
            wanted.heads.command.clone(),
        ],
        ..Section::default()
    }])
}

fn row(what: &str, there: &str, here: String) -> Vec<String> {
    vec![what.to_owned(), there.to_owned(), here]
}

/// The squared error of a codec.
fn error(errors: &Answer, codec: &str) -> String {
    let row = errors.rows("codecs").into_iter().find(|row| row.text("codec") == codec);
    row.map_or_else(String::new, |row| digits(row.number("relative_mse")))
}

fn of_vectors(errors: &Answer) -> Figures {
    vec![
        row("squared error, 1 bit", "0.36 (paper)", error(errors, "tq1")),
        row("squared error, 2 bits", "0.117 (paper)", error(errors, "s2")),
        row("squared error, 3 bits", "0.034 (paper), 0.0341, 0.035 (measured)", error(errors, "s3")),
        row("squared error, 4 bits", "0.009 (paper), 0.00925 (measured)", error(errors, "s4")),
    ]
}

/// Perplexity, and the attention scores of all heads.
fn of_models(wanted: &Wanted<'_>) -> Figures {
    let results = wanted.codecs.rows("results");
    let f16 = results.first().map_or(f64::NAN, |row| row.number("perplexity"));
    let perplexity = |codec: &str| {
        let row = results.iter().find(|row| pair(row.text("kv")) == codec);
        row.map_or_else(String::new, |row| {
            format!("{:+.2} %", 100.0 * (row.number("perplexity") / f16 - 1.0))
        })
    };
    let scores = wanted.heads.rows("results").last().map(|row| row.rows("scores")).unwrap_or_default();
    let mean = |name: &str| scores.iter().map(|head| head.number(name)).sum::<f64>() / scores.len() as f64;
    let cosine = format!("{:.4}", mean("cosine"));
    vec![
        row("perplexity with 4 bits, other models", "+0.23 %", perplexity("s4")),
        row("perplexity with 3 bits, other models", "+1.06 %", perplexity("s3")),
        row("attention scores with 3 bits, other models: cosine", "0.993 to 0.997", cosine),
        row("the same: best token is the same", "74 to 98 %", percent(mean("top1"))),
        row("the same: it is among the best five", "94 to 100 %", percent(mean("top5"))),
    ]
}

/// Codes on two instruction sets, and the time of reading a cache.
fn of_machines(levels: &Answer, step: &Answer) -> Figures {
    let layers = levels.rows("layers");
    let codes = layers.iter().map(|layer| layer.of("keys").number("code_agreement"));
    let codes = codes.fold(f64::INFINITY, f64::min);
    let ms = |at: usize| {
        let ms = step.rows("rows").get(at).map_or(f64::NAN, |row| row.number("read_ms"));
        format!("{ms:.2} ms")
    };
    vec![
        row("equal 4-bit codes on two back ends, least of the layers", "97.6 %", percent(codes)),
        row("reading 32k tokens at 2 TB/s, f16", "8.6 ms", ms(0)),
        row("the same, 68 bytes per vector", "2.3 ms", ms(2)),
        row("the same, s4 (66 bytes)", "", ms(1)),
    ]
}

/// Errors of scalar codes between Shannon's bound and the paper's.
fn between_bounds(errors: &Answer) -> Figures {
    let bounds = (1..=4).zip(CODECS).map(|(bits, codec): (i32, _)| {
        let fourth = 4f64.powi(-bits);
        let upper = 3f64.sqrt() * std::f64::consts::FRAC_PI_2 * fourth;
        vec![bits.to_string(), digits(fourth), error(errors, codec), digits(upper)]
    });
    bounds.collect()
}
