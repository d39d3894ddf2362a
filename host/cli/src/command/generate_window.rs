//! Notes of `generate` on caches that compress nothing yet, with the ratio at a longer context, and on tiers that no
//! token has reached.

use tqkv::cache::{CacheSpec, LayerKind, LayerPolicy, PAGE_TOKENS};
use tqkv::error::CacheError;
use tqkv_model::Config;

use crate::device::Place;
use crate::output::grouped;
use crate::policy::Policy;
use crate::preset::{F16, KvCodecs};

/// An age in tokens, and the codecs of older tokens.
type Tier = (u64, KvCodecs);

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
        let spec = policy.apply(config.cache_spec());
        let ratio = f16_ratio(&spec, &tiers(policy, &spec)?, config.context).ok()?;
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

/// The tiers of a policy from the newest tokens to the oldest. `None` if some tokens are in a file, or if
/// layers differ in their codecs.
fn tiers(policy: &Policy, spec: &CacheSpec) -> Option<Vec<Tier>> {
    if spec.cold.is_empty() { Some(Vec::new()) } else { policy.life().ok().map(|life| life.tiers) }
}

/// Bytes of an f16 cache over the bytes of a `spec` cache, with `tokens` tokens in full pages.
fn f16_ratio(spec: &CacheSpec, tiers: &[Tier], tokens: usize) -> Result<f64, CacheError> {
    let (mut f16, mut coded) = (0.0, 0.0);
    for layer in 0..spec.shape.num_layers {
        let held = match spec.kind(layer) {
            LayerKind::Full => tokens,
            LayerKind::Sliding(window) => tokens.min(window.saturating_add(spec.sinks_at(layer))),
            LayerKind::None => 0,
        };
        f16 += held as f64 * token_bytes(spec, layer, Some(F16))?;
        coded += layer_bytes(spec, tiers, layer, held)?;
    }
    Ok(f16 / coded)
}

/// Bytes of one KV head of a layer that holds `held` tokens, by their ages.
fn layer_bytes(spec: &CacheSpec, tiers: &[Tier], layer: usize, held: usize) -> Result<f64, CacheError> {
    let sinks = spec.sinks_at(layer);
    let mut from = held.min(sinks.saturating_add(spec.hot_at(layer, held)?));
    let mut bytes = from as f64 * token_bytes(spec, layer, Some(F16))?;
    let mut codecs = None;
    for &(after, colder) in tiers {
        let until = (after as usize).saturating_add(sinks).clamp(from, held);
        bytes += (until - from) as f64 * token_bytes(spec, layer, codecs)?;
        (from, codecs) = (until, Some(colder));
    }
    Ok(bytes + (held - from) as f64 * token_bytes(spec, layer, codecs)?)
}

/// Bytes of a token of one KV head in a full page, in the given codecs or else those of the layer.
fn token_bytes(spec: &CacheSpec, layer: usize, codecs: Option<KvCodecs>) -> Result<f64, CacheError> {
    let [key, value] = match codecs {
        None => spec.page_bytes(layer)?,
        Some(KvCodecs { k, v }) => {
            spec.clone().codecs(k, v).layers(LayerPolicy::Uniform).page_bytes(layer)?
        }
    };
    Ok((key + value) as f64 / PAGE_TOKENS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: a vector of 128 coordinates takes 256 bytes as f16, 66 as s4, 34 as s2.
    #[test]
    fn the_ratio_at_a_length_counts_windows_tiers_and_kinds() {
        let ratio = |spec: &CacheSpec, tiers: &[Tier], tokens| f16_ratio(spec, tiers, tokens).unwrap();
        let [s4, s2]: [KvCodecs; 2] = ["s4", "s2"].map(|name| name.parse().unwrap());
        let spec = CacheSpec::new(2, 4, 2, 128).sinks(4).hot(60).codecs(s4.k, s4.v);
        let expected = 256.0 * 1024.0 / (256.0 * 64.0 + 66.0 * 960.0);
        assert!((ratio(&spec, &[], 1024) - expected).abs() < 1e-12);
        assert_eq!(ratio(&spec, &[], 64), 1.0);
        let tiered = 256.0 * 1024.0 / (256.0 * 64.0 + 66.0 * 440.0 + 34.0 * 520.0);
        assert!((ratio(&spec, &[(500, s2)], 1024) - tiered).abs() < 1e-12);
        let tail = spec.clone().layers(LayerPolicy::Tail { layers: 1, codecs: (s2.k, s2.v) });
        let expected = 256.0 * 2048.0 / (256.0 * 128.0 + (66.0 + 34.0) * 960.0);
        assert!((ratio(&tail, &[], 1024) - expected).abs() < 1e-12);
        // One layer sees 96 tokens and has no sinks.
        let kinds = spec.kinds(vec![LayerKind::Full, LayerKind::Sliding(96)]);
        let sliding = 256.0 * 1120.0 / (256.0 * 124.0 + 66.0 * (960.0 + 36.0));
        assert!((ratio(&kinds, &[], 1024) - sliding).abs() < 1e-12);
    }
}
