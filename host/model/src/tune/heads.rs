//! Which KV heads look up earlier tokens.

use super::watch::{Watch, exact};
use crate::{Model, ModelError};
use fastrand::Rng;
use serde::Serialize;
use std::collections::HashSet;
use tqkv::KvShape;
use tqkv::cache::{CacheSpec, KvCache, LayerKind};

/// Tokens that come twice, at most and at least.
const MOST: usize = 128;
const LEAST: usize = 32;

/// Seeds of the random tokens.
const SEEDS: [u64; 2] = [1, 2];

/// Score from which a KV head is said to look back.
pub const LOOKS_BACK: f64 = 0.1;

/// How much a KV head looks up what followed an earlier occurrence of the newest token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeadScore {
    /// Layer.
    pub layer: usize,
    /// KV head of the layer.
    pub kv_head: usize,
    /// Mean attention, 0 to 1, that its best query head gives to the token after the earlier occurrence.
    pub score: f64,
    /// The same for each of the random texts.
    pub of_seeds: [f64; SEEDS.len()],
}

/// Scores every KV head of a model on random tokens that come twice. `pass` is called after each of the texts with their
/// number so far and in all.
///
/// A text has up to 128 random tokens and then the same again. In a model with windows in some of its layers, as many
/// other random tokens as the longest window come between, if the context has room for them: what stands further back
/// than a window is found by the other layers alone. Attention is exact.
///
/// # Errors
/// [`ModelError::Tune`] if the context or the vocabulary has too few tokens, and errors of the model and the cache.
pub fn look_back(model: &Model, pass: &mut dyn FnMut(usize, usize)) -> Result<Vec<HeadScore>, ModelError> {
    let KvShape { num_layers, num_kv_heads, .. } = model.config().kv_shape();
    let head = |i: usize| HeadScore {
        layer: i / num_kv_heads,
        kv_head: i % num_kv_heads,
        score: 0.0,
        of_seeds: [0.0; SEEDS.len()],
    };
    let mut heads: Vec<_> = (0..num_layers * num_kv_heads).map(head).collect();
    for (i, seed) in SEEDS.into_iter().enumerate() {
        let scores = Twice::new(model, seed)?.scores(model)?;
        for (head, score) in heads.iter_mut().zip(scores) {
            head.of_seeds[i] = score;
            head.score += score / SEEDS.len() as f64;
        }
        pass(i + 1, SEEDS.len());
    }
    Ok(heads)
}

/// The layers of the heads, those first whose heads look back most together.
#[must_use]
pub fn ranked_layers(heads: &[HeadScore]) -> Vec<usize> {
    let sum = |layer: &[HeadScore]| (layer[0].layer, layer.iter().map(|head| head.score).sum::<f64>());
    let mut layers: Vec<_> = heads.chunk_by(|a, b| a.layer == b.layer).map(sum).collect();
    layers.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    layers.into_iter().map(|(layer, _)| layer).collect()
}

/// The layers with a head that looks back ([`LOOKS_BACK`]), in the order of the model.
#[must_use]
pub fn layers_that_look_back(heads: &[HeadScore]) -> Vec<usize> {
    let mut layers: Vec<_> =
        heads.iter().filter(|head| head.score >= LOOKS_BACK).map(|head| head.layer).collect();
    layers.dedup();
    layers
}

/// Random tokens that come twice.
struct Twice {
    tokens: Vec<u32>,
    /// Position of the first token that comes again.
    again: usize,
    /// Distance between the two.
    distance: usize,
}

impl Twice {
    fn new(model: &Model, seed: u64) -> Result<Self, ModelError> {
        let beginning = model.first_tokens(b"", usize::MAX)?;
        let mut random = Rng::with_seed(seed);
        let room = model.config().context.saturating_sub(beginning.len());
        let count = MOST.min(room / 2);
        if count < LEAST {
            return Err(ModelError::Tune(format!(
                "the model's context of {} tokens is too short to find heads that look back: expected {} or more",
                model.config().context,
                beginning.len() + 2 * LEAST
            )));
        }
        let drawn = draw(model, &mut random, count + MOST);
        let (copied, others) = drawn.split_at(count.min(drawn.len()));
        if copied.len() < LEAST {
            return Err(ModelError::Tune(format!(
                "the vocabulary has {} tokens with text, too few to find heads that look back: expected {LEAST} or more",
                copied.len()
            )));
        }
        let between = if others.is_empty() { 0 } else { between(model).min(room - 2 * copied.len()) };
        let between = others.iter().copied().cycle().take(between);
        let mut tokens: Vec<_> = beginning.iter().chain(copied).copied().chain(between).collect();
        let (again, distance) = (tokens.len(), tokens.len() - beginning.len());
        // What follows the last token is not known.
        tokens.extend(&copied[..copied.len() - 1]);
        Ok(Self { tokens, again, distance })
    }

    /// The score of each KV head of a model.
    fn scores(&self, model: &Model) -> Result<Vec<f64>, ModelError> {
        self.watched(model.config().cache_spec(), |watch| {
            model.hidden(&self.tokens, 0, watch, &mut |_, _, _| {}).map(drop)
        })
    }

    /// The score of each KV head of a cache that `run` gives queries and keys of the tokens.
    fn watched(
        &self,
        spec: CacheSpec,
        run: impl FnOnce(&mut Watch<'_>) -> Result<(), ModelError>,
    ) -> Result<Vec<f64>, ModelError> {
        let spec = exact(spec);
        let (sinks, group) = (spec.sink_logits.clone(), spec.shape.group());
        let cache = Box::new(KvCache::new(spec)?);
        let mut watch = Watch::new(cache, (self.again, self.distance - 1), &sinks);
        run(&mut watch)?;
        let scored = (self.tokens.len() - self.again) as f64;
        let best = |heads: &[f64]| heads.iter().copied().fold(0.0, f64::max) / scored;
        Ok(watch.sums.chunks_exact(group).map(best).collect())
    }
}

/// Tokens between the two occurrences: the longest window, if other layers have none.
fn between(model: &Model) -> usize {
    let window = |kind: &LayerKind| if let LayerKind::Sliding(window) = *kind { Some(window) } else { None };
    let kinds = &model.config().kinds;
    let windows = kinds.iter().filter_map(window);
    if kinds.contains(&LayerKind::Full) { windows.max().unwrap_or(0) } else { 0 }
}

/// Up to `count` different random tokens that have text, which tokens such as BOS have not.
fn draw(model: &Model, random: &mut Rng, count: usize) -> Vec<u32> {
    let vocabulary = model.config().vocab_size as u32;
    let mut drawn = Vec::with_capacity(count);
    let mut seen = HashSet::new();
    // A small vocabulary has been seen after a few times its size.
    for _ in 0..(8 * count).max(16 * vocabulary.min(4096) as usize) {
        let token = random.u32(..vocabulary);
        let has_text = |token| model.tokenizer().decode(&[token]).is_ok_and(|text| !text.is_empty());
        if seen.insert(token) && has_text(token) {
            drawn.push(token);
        }
        if drawn.len() == count {
            break;
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::attention::AttentionCache;

    /// A random vector per token, which is nearly orthogonal to the others.
    fn code(token: Option<u32>, dim: usize) -> Vec<f32> {
        let mut random = Rng::with_seed(token.map_or(0, |token| 1 + u64::from(token)));
        (0..dim).map(|_| if random.bool() { 1.0 } else { -1.0 }).collect()
    }

    /// Keys that say which token came before, and queries that ask for the own one, make a head that looks back. Others
    /// ask for what no key says, or say their own token, so that they find the earlier occurrence itself.
    #[test]
    fn a_planted_head_is_found() {
        let (layers, heads, kv_heads, dim) = (3, 4, 2, 64);
        let model = Model::shipped().unwrap();
        let twice = Twice::new(&model, 9).unwrap();
        assert_eq!((twice.tokens.len(), twice.again, twice.distance), (255, 128, 128));
        let tokens = &twice.tokens;
        let before = |i: usize| i.checked_sub(1).map(|i| tokens[i]);
        let scores = twice.watched(CacheSpec::new(layers, heads, kv_heads, dim), |watch| {
            for layer in 0..layers {
                let (mut q, mut k) = (Vec::new(), Vec::new());
                for (i, &token) in tokens.iter().enumerate() {
                    for head in 0..heads {
                        // The best query head of a KV head counts.
                        let asks = layer == 0 || head == 3;
                        q.extend(code(Some(if asks { token } else { 10_000 + token }), dim));
                    }
                    for kv_head in 0..kv_heads {
                        let says = if (layer, kv_head) == (1, 1) { before(i) } else { Some(token) };
                        k.extend(code(says, dim));
                    }
                }
                let v = vec![0.0; k.len()];
                watch.attend_chunk(layer, &q, &k, &v, &mut vec![0.0; heads * dim * tokens.len()])?;
            }
            Ok(())
        });
        let scores = scores.unwrap();
        assert!(scores[3] > 0.7, "{scores:?}");
        assert!(scores.iter().enumerate().all(|(i, score)| i == 3 || *score < 0.05), "{scores:?}");
        let heads = scores.iter().enumerate();
        let head = |(i, &score): (usize, &f64)| HeadScore {
            layer: i / kv_heads,
            kv_head: i % kv_heads,
            score,
            of_seeds: [score; 2],
        };
        let heads: Vec<_> = heads.map(head).collect();
        assert_eq!((ranked_layers(&heads)[0], layers_that_look_back(&heads)), (1, vec![1]));
    }

    #[test]
    fn scores_of_a_model_are_shares_and_always_the_same() {
        let model = Model::shipped().unwrap();
        let mut passes = Vec::new();
        let heads = look_back(&model, &mut |done, all| passes.push((done, all))).unwrap();
        assert_eq!(passes, [(1, 2), (2, 2)]);
        assert_eq!(heads.len(), 4);
        for (layer, head) in heads.iter().enumerate() {
            assert_eq!((head.layer, head.kv_head), (layer, 0));
            assert!(head.of_seeds.iter().all(|score| (0.0..=1.0).contains(score)), "{head:?}");
            assert!((head.score - (head.of_seeds[0] + head.of_seeds[1]) / 2.0).abs() < 1e-12);
        }
        assert_eq!(look_back(&model, &mut |_, _| {}).unwrap(), heads);
        let mut order = ranked_layers(&heads);
        assert!(order.windows(2).all(|two| heads[two[0]].score >= heads[two[1]].score), "{order:?}");
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
