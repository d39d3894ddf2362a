//! Memory against context for well-known models, and the longest context for a budget.

use tqkv::cache::PRESETS;
use tqkv_cli::error::CliError;
use tqkv_cli::output::grouped;
use tqkv_cli::plan::{CacheShape, Plan, PlanError};
use tqkv_cli::policy::Policy;
use tqkv_cli::preset::KvCodecs;
use tqkv_model::ModelKv;

use super::super::Figure;
use super::super::chart::{Axis, Chart, Look, Series};
use super::known::KNOWN;
use super::wanted::every_token;
use super::{Section, Table, Wanted};

/// Models of the plot: two with full attention, one with sliding windows, one with latents.
const DRAWN: [&str; 4] = ["Llama 3.1 8B", "Llama 3.1 70B", "Gemma 3 27B (sliding)", "DeepSeek V3 (latent)"];
/// Memory of a large consumer GPU.
const MEMORY: u64 = 24 << 30;
const GIB: f64 = (1u64 << 30) as f64;

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    Ok(vec![contexts().map_err(CliError::failure)??, seventy_b(wanted)?])
}

/// The GiB of a cache from 4,096 tokens to a million.
fn growth(plan: &Plan) -> Result<Vec<(f64, f64)>, PlanError> {
    let point = |power| {
        let tokens = 1u64 << power;
        Ok((tokens as f64, plan.bytes(tokens)? as f64 / GIB))
    };
    (12..=20).map(point).collect()
}

fn growth_chart(series: &[Series]) -> Result<Figure, CliError> {
    Chart {
        label:
            "Memory of the cache against the tokens in it, as f16 and with the preset compact, four models"
                .to_owned(),
        x: Axis { name: "tokens of context", log: true, label: |tokens| format!("{:.0}k", tokens / 1024.0) },
        y: Axis { name: "GiB of cache", log: true, label: |gib| format!("{gib}") },
        series,
    }
    .figure()
}

/// A model at its full context as f16, `balanced` and `compact`, and how many tokens the first and the last
/// hold.
fn contexts_row(name: &str, context: Option<u64>, plans: &[Plan; 3]) -> Result<Vec<String>, PlanError> {
    let context = context.unwrap_or_default();
    let mut row = vec![name.to_owned(), grouped(plans[0].bytes_per_token()?), grouped(context)];
    for plan in plans {
        row.push(format!("{:.2}", plan.bytes(context)? as f64 / GIB));
    }
    row.extend([&plans[0], &plans[2]].map(|plan| grouped(plan.max_tokens(MEMORY))));
    Ok(row)
}

fn contexts() -> Result<Result<Section, CliError>, PlanError> {
    let (mut series, mut rows) = (Vec::new(), Vec::new());
    for (name, config) in KNOWN {
        let shape = match ModelKv::from_json(config.as_bytes()) {
            Ok(kv) => CacheShape::from(&kv),
            Err(error) => return Ok(Err(CliError::failure(format_args!("{name}: {error}")))),
        };
        // The plot and the budget extend beyond the context of the model.
        let unbounded = CacheShape { context: None, ..shape.clone() };
        let plan = |name: &str| unbounded.plan(&name.parse::<Policy>().map_err(PlanError::Policy)?);
        let plans = [plan("f16")?, plan("balanced")?, plan("compact")?];
        if let Some(colour) = DRAWN.iter().position(|drawn| *drawn == name) {
            for (plan, look, cache) in [(&plans[0], Look::Line, "f16"), (&plans[2], Look::Dashed, "compact")]
            {
                let name = format!("{name}, {cache}");
                series.push(Series::new(&name, look, growth(plan)?, colour));
            }
        }
        rows.push(contexts_row(name, shape.context, &plans)?);
    }
    let memory = vec![(4096.0, 24.0), (1_048_576.0, 24.0)];
    series.push(Series::new("24 GiB", Look::Line, memory, 7));
    let figure = match growth_chart(&series) {
        Ok(figure) => figure,
        Err(error) => return Ok(Err(error)),
    };
    let head = [
        "model",
        "f16 bytes/token",
        "its context",
        "f16 GiB",
        "balanced GiB",
        "compact GiB",
        "24 GiB hold, f16",
        "24 GiB hold, compact",
    ];
    let compact = PRESETS.iter().find(|preset| preset.name == "compact");
    Ok(Ok(Section {
        title: "Memory against context",
        lead: vec![format!(
            "What the cache of one sequence takes, weights not counted. Solid lines are f16, dashed ones the preset compact ({}). \
             Models with sliding windows or latent vectors start lower; a hybrid's recurrent layers keep no keys and values.",
            compact.map(|preset| KvCodecs::from(preset.codecs).to_string()).unwrap_or_default()
        )],
        figures: vec![figure],
        tables: vec![Table::new("Models at their full context, and what 24 GiB hold", &head, rows)],
        commands: vec!["tqkv plan --config MODEL/config.json --memory 24GiB --tokens 131072 --kv f16 --kv balanced --kv compact".to_owned()],
        ..Section::default()
    }))
}

/// The published table of a 70B-class model from a community, compared with the codecs of this project.
fn seventy_b(wanted: &Wanted<'_>) -> Result<Section, CliError> {
    let codecs =
        ["f16", "q8_0", "s3", "s4", "t3", "t4"].map(|name| format!(" --kv {}", every_token(name))).concat();
    let others = "--other q8_0-without-scales=128 --other tq3=52 --other tq4=68";
    let budget = |memory| {
        let shape = "tqkv plan --layers 80 --kv-heads 8 --head-dim 128";
        wanted.source.run(&format!("{shape} --memory {memory}{codecs} {others}"))
    };
    let (large, small) = (budget("34000MiB")?, budget("22000MiB")?);
    let rows = large.rows("rows").into_iter().zip(small.rows("rows")).map(|(large, small)| {
        let name = if large.text("other").is_empty() { large.text("codec_k") } else { large.text("other") };
        vec![
            name.to_owned(),
            grouped(large.count("bytes_per_token")),
            format!("{:.2}", large.number("f16_ratio")),
            format!("{:.2}", large.number("f32_ratio")),
            grouped(large.count("max_tokens")),
            grouped(small.count("max_tokens")),
        ]
    });
    let head = ["codec", "bytes/token", "times f16", "times f32", "34 GB hold", "22 GB hold"];
    Ok(Section {
        title: "How long a context fits",
        lead: vec![
            "A 70B-class model (80 layers, 8 KV heads of 128) on three cards with 34 or 22 GB left for the cache. tq3, tq4 and q8_0 \
             without scales are the rows of a published table, whose GB is 1000 MiB; with its scales q8_0 takes 174,080 bytes a \
             token and holds less than that table says."
                .to_owned(),
        ],
        tables: vec![Table::new("Longest contexts, no token f16", &head, rows.collect()).open()],
        commands: vec![large.command.clone()],
        ..Section::default()
    })
}
