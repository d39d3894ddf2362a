//! Policies under a budget: which layers have wide keys, and what the others have.

use crate::ModelError;
use tqkv::cache::{CacheSize, CacheSpec, LayerKind, LayerPolicy, PRESETS};
use tqkv::error::CacheError;
use tqkv_core::CodecId;

/// Newest tokens that stay f16 in every candidate. What more of them would take is worth more in keys.
const HOT: usize = 16;

/// Codecs of a candidate.
struct Base {
    /// Keys of a layer that gets nothing more, and the values of all layers.
    key: CodecId,
    value: CodecId,
    /// Keys of the layers that look back.
    wide: CodecId,
    /// Keys of other layers, if the budget allows more than that.
    next: CodecId,
}

/// From the fewest bytes to the most. A step from 2 to 3 bits gains more per byte than one from 3 to 4, so it is worth
/// trying to give more layers the smaller one.
const BASES: [Base; 5] = [
    Base { key: CodecId::M2, value: CodecId::T2, wide: CodecId::M3, next: CodecId::M3 },
    Base { key: CodecId::M2, value: CodecId::T2, wide: CodecId::T4, next: CodecId::M3 },
    Base { key: CodecId::M3, value: CodecId::T2, wide: CodecId::T4, next: CodecId::T4 },
    Base { key: CodecId::T4, value: CodecId::T2, wide: CodecId::I8, next: CodecId::I8 },
    Base { key: CodecId::T4, value: CodecId::T4, wide: CodecId::I8, next: CodecId::I8 },
];

/// The most bytes that a cache of some length may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Tokens of the cache, 1 or more.
    pub tokens: usize,
    /// Bytes of the whole cache, as [`CacheSize`] counts them.
    pub bytes: u64,
}

/// A policy within a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The policy, as `--kv` and every other interface read it.
    pub text: String,
    /// Bytes of a cache as long as the limit says.
    pub bytes: u64,
    /// Layers whose keys are wider than the narrowest of the policy, in order.
    pub wide: Vec<usize>,
    /// True if tokens get narrower codes with age.
    pub narrows_with_age: bool,
}

/// The policy of the fewest bytes, whatever the budget is.
///
/// # Errors
/// A spec that no candidate fits, and a limit of 0 tokens.
pub fn least(spec: &CacheSpec, tokens: usize) -> Result<Candidate, ModelError> {
    if tokens == 0 {
        return Err(ModelError::Tune("a cache of 0 tokens: expected 1 or more".to_owned()));
    }
    let all = BASES.iter().map(|base| base.candidate(spec, tokens, &[], &[]));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().min_by_key(|candidate| candidate.bytes).expect("there are bases"))
}

/// The candidates of a cache of `spec` within a limit, from the fewest bytes to the most:
///
/// * For each group of codecs of a short list the layers of `first` get wide keys and then the other layers keys of the
///   next width, both in the order of `ranked` and as long as they fit.
/// * If some layers have a window and others have none, the same with those without one as the first.
/// * The preset of the most bytes that fits, to compare with.
///
/// Those that leave a tenth of the bytes of the largest one unused are left out.
///
/// `ranked` has every layer, and `first` those that look back ([`super::layers_that_look_back`]).
///
/// # Errors
/// [`ModelError::Tune`] for a limit below [`least`], and a spec that no candidate fits.
pub fn candidates(
    spec: &CacheSpec,
    (ranked, first): (&[usize], &[usize]),
    limit: Limit,
) -> Result<Vec<Candidate>, ModelError> {
    let Limit { tokens, bytes } = limit;
    let least = least(spec, tokens)?;
    if least.bytes > bytes {
        return Err(ModelError::Tune(format!(
            "a budget of {bytes} bytes for {tokens} tokens is too small: '{}' takes the least, {} bytes, which are {} \
             bytes per token",
            least.text,
            least.bytes,
            least.bytes.div_ceil(tokens as u64)
        )));
    }
    let full = full_layers(spec);
    let mut all: Vec<Candidate> = Vec::new();
    let mut add = |candidate: Candidate| {
        if candidate.bytes <= bytes && all.iter().all(|known| known.text != candidate.text) {
            all.push(candidate);
        }
    };
    for base in &BASES {
        add(base.filled(spec, (ranked, first), limit)?);
        if !full.is_empty() {
            add(base.filled(spec, (ranked, &full), limit)?);
        }
    }
    // What leaves a tenth of the budget to another candidate is narrower everywhere.
    let most = all.iter().map(|candidate| candidate.bytes).max().unwrap_or(0);
    all.retain(|candidate| candidate.bytes >= most - most / 10);
    // A window may be too short for the exact tokens of some presets.
    let preset = |name: &str| candidate(spec, tokens, name.to_owned(), Vec::new()).ok();
    let presets = PRESETS.iter().filter_map(|one| preset(one.name)).filter(|preset| preset.bytes <= bytes);
    all.extend(presets.max_by_key(|preset| preset.bytes));
    all.sort_by_key(|candidate| candidate.bytes);
    Ok(all)
}

/// The layers without a window, if others have one.
fn full_layers(spec: &CacheSpec) -> Vec<usize> {
    let of = |kind: fn(LayerKind) -> bool| (0..spec.shape.num_layers).filter(move |&i| kind(spec.kind(i)));
    if of(|kind| matches!(kind, LayerKind::Sliding(_))).next().is_none() {
        return Vec::new();
    }
    of(|kind| kind == LayerKind::Full).collect()
}

fn candidate(
    spec: &CacheSpec,
    tokens: usize,
    text: String,
    wide: Vec<usize>,
) -> Result<Candidate, CacheError> {
    let spec = spec.clone().with(&text)?;
    let bytes = CacheSize::of(&spec)?.at(tokens).total();
    Ok(Candidate { text, bytes, wide, narrows_with_age: !spec.cold.is_empty() })
}

impl Base {
    /// The candidate with wide keys in some layers, and keys of the next width in others.
    fn candidate(
        &self,
        spec: &CacheSpec,
        tokens: usize,
        wide: &[usize],
        next: &[usize],
    ) -> Result<Candidate, CacheError> {
        let key = |layer| match layer {
            layer if wide.contains(&layer) => self.wide,
            layer if next.contains(&layer) => self.next,
            _ => self.key,
        };
        let keys: Vec<_> = (0..spec.shape.num_layers).map(key).collect();
        let narrowest = [self.key, self.next, self.wide].into_iter().find(|key| keys.contains(key));
        let widened = (0..keys.len()).filter(|&layer| Some(keys[layer]) != narrowest).collect();
        candidate(spec, tokens, text(&keys, self.value), widened)
    }

    /// The candidate whose layers get wider keys as long as they fit: those of `first` before the others. No layer has
    /// them if even that does not fit.
    fn filled(
        &self,
        spec: &CacheSpec,
        (ranked, first): (&[usize], &[usize]),
        limit: Limit,
    ) -> Result<Candidate, CacheError> {
        let (mut wide, mut next): (Vec<usize>, Vec<usize>) = Default::default();
        let mut best = self.candidate(spec, limit.tokens, &wide, &next)?;
        for &layer in ranked.iter().filter(|layer| first.contains(layer)) {
            let more = [&wide[..], &[layer]].concat();
            let wider = self.candidate(spec, limit.tokens, &more, &next)?;
            if wider.bytes <= limit.bytes {
                (best, wide) = (wider, more);
            }
        }
        for &layer in ranked {
            let more = [&next[..], &[layer]].concat();
            let wider = self.candidate(spec, limit.tokens, &wide, &more)?;
            if wider.bytes <= limit.bytes {
                (best, next) = (wider, more);
            }
        }
        Ok(best)
    }
}

/// The policy of layers with these keys. The pair of most layers is said once for those that no rule names.
fn text(keys: &[CodecId], value: CodecId) -> String {
    let count = |key: CodecId| keys.iter().filter(|one| **one == key).count();
    let most = keys.iter().copied().max_by_key(|&key| (count(key), std::cmp::Reverse(key.name())));
    let most = most.unwrap_or(CodecId::F16);
    let pair = format!("{},{}", most.name(), value.name());
    if keys.iter().all(|&key| key == most) {
        return format!("{pair} hot={HOT}");
    }
    let each = LayerPolicy::Custom(keys.iter().map(|&key| (key, value)).collect());
    format!("{pair} layer-kv={each} hot={HOT}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::cache::{KvCache, Policy};
    use tqkv::unstable::cache::Door;

    /// Random shapes, orders and budgets: what comes out is within the budget by the one formula, and a policy of every
    /// door that has codecs by layer.
    #[test]
    fn no_candidate_is_above_the_budget_and_every_door_reads_it() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut with_layers = 0;
        for _ in 0..60 {
            let layers = random.usize(1..24);
            let (kv_heads, dim) = (1 << random.usize(0..3), [32, 64, 128][random.usize(..3)]);
            let mut spec = CacheSpec::new(layers, 2 * kv_heads, kv_heads, dim);
            if random.bool() {
                let kind = |random: &mut fastrand::Rng| {
                    if random.bool() { LayerKind::Full } else { LayerKind::Sliding(random.usize(HOT..700)) }
                };
                spec = spec.kinds((0..layers).map(|_| kind(&mut random)).collect());
            }
            let mut ranked: Vec<_> = (0..layers).collect();
            random.shuffle(&mut ranked);
            let first = random.usize(0..=layers);
            let tokens = random.usize(1..40_000);
            let least = least(&spec, tokens).unwrap();
            let bytes = least.bytes + random.u64(0..=least.bytes * 2);
            let all = candidates(&spec, (&ranked, &ranked[..first]), Limit { tokens, bytes }).unwrap();
            assert!(all.is_sorted_by_key(|candidate| candidate.bytes), "{all:?}");
            assert!(all.iter().any(|candidate| !candidate.narrows_with_age), "{all:?}");
            for candidate in &all {
                let policy: Policy = candidate.text.parse().unwrap();
                let made = policy.apply(spec.clone());
                let counted = CacheSize::of(&made).unwrap().at(tokens).total();
                assert!(
                    counted == candidate.bytes && counted <= bytes,
                    "{counted} of {bytes}: {candidate:?}"
                );
                // The model has the windows, not the policy.
                let alone = CacheSpec { kinds: Vec::new(), ..made.clone() };
                for door in [Door::Slots, Door::TorchGpu] {
                    let refused = door.refused(&alone);
                    let is_preset = PRESETS.iter().any(|preset| preset.name == candidate.text);
                    assert!(refused.is_empty() || is_preset, "{door:?}: {refused:?}");
                }
                with_layers += usize::from(candidate.text.contains("each:"));
                KvCache::new(made).unwrap();
            }
            // The layers of the largest scores come first, where all layers take the same bytes.
            if spec.kinds.is_empty() {
                for candidate in &all {
                    let is_wide: Vec<_> =
                        ranked[..first].iter().map(|layer| candidate.wide.contains(layer)).collect();
                    assert!(is_wide.is_sorted_by(|a, b| a >= b), "{ranked:?}, {first}: {candidate:?}");
                }
            }
        }
        assert!(with_layers > 60, "{with_layers}");
    }

    /// With more and more bytes: nothing, the layer that looks back, and then the others in their order.
    #[test]
    fn a_budget_is_spent_on_the_layers_that_look_back_first() {
        let spec = CacheSpec::new(3, 4, 2, 64);
        let texts = |bytes| {
            let all = candidates(&spec, (&[1, 2, 0], &[1]), Limit { tokens: 8192, bytes }).unwrap();
            all.into_iter().map(|candidate| candidate.text).collect::<Vec<_>>()
        };
        let least = least(&spec, 8192).unwrap();
        assert_eq!((&*least.text, texts(least.bytes)), ("m2,t2 hot=16", vec!["m2,t2 hot=16".to_owned()]));
        let mut before = least.bytes;
        for text in [
            "m2,t2 layer-kv=each:m2,t2/m3,t2/m2,t2 hot=16",
            "m2,t2 layer-kv=each:m2,t2/t4,t2/m2,t2 hot=16",
            "m2,t2 layer-kv=each:m2,t2/t4,t2/m3,t2 hot=16",
            "m3,t2 layer-kv=each:m3,t2/t4,t2/m3,t2 hot=16",
            "t4,t2 layer-kv=each:m3,t2/2*t4,t2 hot=16",
            "t4,t2 hot=16",
        ] {
            // All of them differ in their pairs of every layer, so a word in front may change.
            let bytes = candidate(&spec, 8192, text.to_owned(), Vec::new()).unwrap().bytes;
            assert!(bytes > before, "{text}");
            assert!(texts(bytes).contains(&text.to_owned()), "{text}: {:?}", texts(bytes));
            assert!(!texts(bytes - 1).contains(&text.to_owned()), "{text}: {:?}", texts(bytes - 1));
            before = bytes;
        }
        assert_eq!(texts(u64::MAX), ["i8,t4 hot=16", "eight-bit"]);
    }

    #[test]
    fn layers_without_a_window_are_a_candidate() {
        let kinds = vec![LayerKind::Sliding(64), LayerKind::Full, LayerKind::Sliding(64), LayerKind::Full];
        let spec = CacheSpec::new(4, 4, 2, 64).kinds(kinds);
        let rule = "m2,t2 layer-kv=each:m2,t2/t4,t2/m2,t2/t4,t2 hot=16";
        let bytes = candidate(&spec, 4096, rule.to_owned(), Vec::new()).unwrap().bytes;
        let texts = |bytes| {
            let all = candidates(&spec, (&[0, 2, 1, 3], &[0]), Limit { tokens: 4096, bytes }).unwrap();
            all.into_iter().map(|candidate| candidate.text).collect::<Vec<_>>()
        };
        assert!(texts(bytes).contains(&rule.to_owned()), "{:?}", texts(bytes));
        assert!(!texts(bytes - 1).contains(&rule.to_owned()));
    }

    #[test]
    fn a_budget_below_the_least_is_refused() {
        let spec = CacheSpec::new(3, 4, 2, 64);
        let least = least(&spec, 1000).unwrap();
        let limit = Limit { tokens: 1000, bytes: least.bytes - 1 };
        let error = candidates(&spec, (&[0, 1, 2], &[0]), limit).unwrap_err().to_string();
        let per_token = least.bytes.div_ceil(1000);
        let expected = format!(
            "'m2,t2 hot=16' takes the least, {} bytes, which are {per_token} bytes per token",
            least.bytes
        );
        assert!(error.contains(&expected), "{error}");
        assert!(super::least(&spec, 0).unwrap_err().to_string().contains("expected 1 or more"));
    }
}
