//! Notes of `generate` on caches that compress nothing yet, with the ratio at a longer context, and on tiers that no
//! token has reached.

use tqkv::cache::{CacheSize, CacheSpec};
use tqkv::error::CacheError;
use tqkv_model::Config;

use crate::device::Place;
use crate::output::grouped;
use crate::plan::in_f16;
use crate::policy::Policy;

/// Notes on the policies whose longest sequence still lies in the window, or has no page in a cold tier. The number in
/// each entry is the length of that sequence. Empty if there is none.
pub(super) fn note<'a>(
    (config, place): (&Config, &Place),
    rows: impl Iterator<Item = (&'a Policy, usize)>,
) -> String {
    if !matches!(place, Place::Cpu) {
        return String::new();
    }
    let (waiting, others): (Vec<_>, Vec<_>) =
        rows.partition(|(policy, tokens)| policy.is_compressed() && *tokens < policy.least_compressed());
    let warm = others.into_iter().filter_map(|(policy, tokens)| {
        let least = policy.least_cold().filter(|least| tokens < *least)?;
        let [least, tokens] = [least, tokens].map(|tokens| grouped(tokens as u64));
        Some(format!(
            "\nno tier is reached yet: {} has one from {least} tokens on, and has {tokens}",
            policy.name
        ))
    });
    window_note(config, &waiting) + &warm.collect::<String>()
}

/// The note on policies that compress nothing yet.
fn window_note(config: &Config, waiting: &[(&Policy, usize)]) -> String {
    let Some(most) = waiting.iter().map(|(_, tokens)| tokens).max() else { return String::new() };
    let ratio = |(policy, _): &(&Policy, usize)| {
        let spec = policy.planned(config.cache_spec()).ok()?;
        let ratio = f16_ratio(&spec, config.context).ok()?;
        Some(format!("{ratio:.2} times those of {}", policy.name))
    };
    let ratios: Vec<_> = waiting.iter().filter_map(ratio).collect();
    let later = match ratios.as_slice() {
        [] => String::new(),
        ratios => format!(
            ";\nat the model's full context of {} tokens the bytes of f16 are {}",
            grouped(config.context as u64),
            ratios.join(", ")
        ),
    };
    format!("\nnothing is compressed yet: all {most} tokens lie in the window of sinks= and hot={later}")
}

/// Bytes of an f16 cache over the bytes of a `spec` cache, with `tokens` tokens.
fn f16_ratio(spec: &CacheSpec, tokens: usize) -> Result<f64, CacheError> {
    let bytes = |spec| Ok::<_, CacheError>(CacheSize::of(spec)?.at(tokens).total() as f64);
    Ok(bytes(&in_f16(spec))? / bytes(spec)?)
}
