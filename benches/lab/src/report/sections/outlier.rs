//! A key with outliers before and after the rotation, and the effect on 4-bit codes.

use tqkv_cli::error::CliError;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_model::{Model, ModelError, OUTLIER_FACTOR, SpecialTokens, shipped};

use super::super::heat::Bars;
use super::wanted::every_token;
use super::{Section, Table, Wanted, digits, pair, percent};

/// Tokens before the token whose key is drawn.
const TOKENS: usize = 64;
/// Plain codes, then rotated ones of about the same size.
const CODECS: [&str; 5] = ["q4_0", "u4", "q4_0r", "s4", "t4"];

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let key = key().map_err(|error| CliError::model(None, &error))?;
    let codec = AnyCodec::new(CodecId::S4, key.len(), Options::DEFAULT);
    let codec = codec.map_err(|error| CliError::shape(CodecId::S4, key.len(), error))?;
    let mut rotated = vec![0.0; key.len()];
    codec.rotate_query(&key, &mut rotated);
    // Remove the scale of the rotation, so that both have the same norm.
    let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let unit =
        |x: &[f32]| x.iter().map(|v| f64::from(*v) / norm(x) * (x.len() as f64).sqrt()).collect::<Vec<_>>();
    let (before, after) = (unit(&key), unit(&rotated));
    let largest = |x: &[f64]| x.iter().map(|x| x.abs()).fold(0.0, f64::max);
    let figure = Bars {
        label: format!(
            "A key of 128 coordinates with outlier channels, in standard deviations: the largest is {:.1} before the rotation and \
             {:.1} after it",
            largest(&before),
            largest(&after)
        ),
        vectors: &[("before the rotation".to_owned(), 1, before), ("after it".to_owned(), 0, after)],
    };
    let kv = CODECS.map(|name| format!(" --kv {}", every_token(name))).concat();
    let eval = format!("tqkv-lab eval {}{kv}", wanted.source.windows());
    let plain = wanted.source.run(&eval)?;
    let outliers = wanted.source.run(&format!("{eval} --outlier-variant"))?;
    let rows =
        plain.rows("results").into_iter().zip(outliers.rows("results")).skip(1).map(|(plain, outliers)| {
            let (kl, worse) = (plain.number("kl_to_f16"), outliers.number("kl_to_f16"));
            vec![
                pair(plain.text("kv")).to_owned(),
                format!("{:.0}", plain.number("cache_bytes_per_token")),
                digits(kl),
                digits(worse),
                format!("{:.1}", worse / kl),
                percent(outliers.number("top1_agreement")),
            ]
        });
    let head = ["codec", "bytes/token", "KL", "KL with outliers", "times", "top-1 with outliers"];
    Ok(vec![Section {
        title: "An outlier before and after",
        lead: vec![format!(
            "Large models have key channels many times stronger than the rest. Here six channels of the shipped model's keys are \
             scaled by {OUTLIER_FACTOR} and those of its queries by the inverse, which leaves the model as it is. A code with a \
             scale for a run of coordinates spends its range on the outlier; the rotation spreads it over all of them first. q4_0 and \
             u4 are plain, q4_0r is q4_0 of rotated vectors."
        )],
        figures: vec![figure.figure()?],
        tables: vec![Table::new("Plain against rotated 4-bit codes", &head, rows.collect()).open()],
        commands: vec![plain.command.clone(), outliers.command.clone()],
        ..Section::default()
    }])
}

/// A key of the outlier variant.
fn key() -> Result<Vec<f32>, ModelError> {
    let model = Model::shipped()?.into_outlier_variant()?;
    let mut tokens = model.tokenizer().encode(shipped::HELDOUT_TEXT, SpecialTokens::Omit)?;
    tokens.truncate(TOKENS);
    let mut cache = model.config().dense_cache()?;
    model.hidden(&tokens, 0, &mut cache, &mut |_, _, _| {})?;
    let dim = model.config().head_dim;
    let keys = cache.keys(1, 0).unwrap_or_default();
    Ok(keys[keys.len().saturating_sub(dim)..].to_vec())
}
