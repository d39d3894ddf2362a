//! Attention that a model's queries give to one earlier token each.

use crate::rows::rows_of;
use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::error::CacheError;
use tqkv_core::CodecId;

/// The same cache in f16, whose windows may be as short as they like.
pub(super) fn exact(spec: CacheSpec) -> CacheSpec {
    spec.codecs(CodecId::F16, CodecId::F16).hot(0)
}

/// A cache that notes how much attention each query head gives to the token `back` before the newest, from position
/// `from` on.
pub(super) struct Watch<'a> {
    pub(super) cache: Box<dyn AttentionCache>,
    /// First position that counts.
    pub(super) from: usize,
    /// Distance of the token from the query: 0 is the newest token itself.
    pub(super) back: usize,
    /// Learned sinks, `[num_layers, num_heads]`, or empty.
    pub(super) sinks: &'a [f32],
    /// Tokens that each layer has received.
    pub(super) fed: Vec<usize>,
    /// Sums of the weights, `[num_layers, num_heads]`.
    pub(super) sums: Vec<f64>,
}

impl<'a> Watch<'a> {
    /// Watches an empty cache, which must give exact scores.
    pub(super) fn new(
        cache: Box<dyn AttentionCache>,
        (from, back): (usize, usize),
        sinks: &'a [f32],
    ) -> Self {
        let KvShape { num_layers, num_heads, .. } = cache.shape();
        let (fed, sums) = (vec![0; num_layers], vec![0.0; num_layers * num_heads]);
        Self { cache, from, back, sinks, fed, sums }
    }

    /// Adds the weights of the newest token's queries, `[num_heads, head_dim]`.
    fn add(&mut self, layer: usize, queries: &[f32]) -> Result<(), CacheError> {
        let KvShape { num_heads, head_dim, .. } = self.cache.shape();
        for (head, q) in queries.chunks_exact(head_dim).enumerate() {
            let Some(logits) = self.cache.scores(layer, head, q) else {
                return Err(CacheError::BadSpec(
                    "this kind of cache does not give attention scores".to_owned(),
                ));
            };
            let at = layer * num_heads + head;
            self.sums[at] += weight(&logits?, self.back, self.sinks.get(at).copied());
        }
        Ok(())
    }
}

/// The weight that attention with these logits, oldest first, gives to the token `back` before the last. 0 if a window
/// does not reach it. A learned sink takes its share.
fn weight(logits: &[f32], back: usize, sink: Option<f32>) -> f64 {
    let Some(at) = logits.len().checked_sub(back + 1) else { return 0.0 };
    let all = || logits.iter().copied().chain(sink).map(f64::from);
    let max = all().fold(f64::NEG_INFINITY, f64::max);
    (f64::from(logits[at]) - max).exp() / all().map(|logit| (logit - max).exp()).sum::<f64>()
}

impl AttentionCache for Watch<'_> {
    fn shape(&self) -> KvShape {
        self.cache.shape()
    }

    /// Tokens that count go one by one, because scores are those of the newest token.
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let n = q.len() / self.shape().query_values().max(1);
        let mut first = 0;
        while first < n {
            let before = self.from.saturating_sub(self.fed[layer]);
            let tokens = first..if before > 0 { n.min(first + before) } else { first + 1 };
            let [q_rows, k_rows, v_rows, outs] =
                [q.len(), k.len(), v.len(), out.len()].map(|len| rows_of(&tokens, len, n));
            self.cache.attend_chunk(layer, &q[q_rows.clone()], &k[k_rows], &v[v_rows], &mut out[outs])?;
            self.fed[layer] += tokens.len();
            if before == 0 {
                self.add(layer, &q[q_rows])?;
            }
            first = tokens.end;
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.cache.truncate(len)
    }

    fn reset(&mut self) {
        self.cache.reset();
    }

    fn allocated_bytes(&self) -> usize {
        self.cache.allocated_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::cache::{KvCache, LayerKind};

    #[test]
    fn a_weight_is_that_of_the_softmax() {
        let logits = [1.0f32, 0.0, 2.0, -1.0];
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        for (back, logit) in [-1.0f64, 2.0, 0.0, 1.0].into_iter().enumerate() {
            assert!((weight(&logits, back, None) - logit.exp() / sum).abs() < 1e-12);
            let with_sink = logit.exp() / (sum + 3f64.exp());
            assert!((weight(&logits, back, Some(3.0)) - with_sink).abs() < 1e-12);
        }
        assert_eq!(weight(&logits, 4, None), 0.0, "beyond the window");
    }

    /// Random queries and keys, in chunks of any length, against a softmax in f64 over the whole sequence.
    #[test]
    fn sums_are_those_of_an_f64_oracle() {
        let (layers, heads, kv_heads, d, n) = (3, 4, 2, 16, 48);
        let mut random = fastrand::Rng::with_seed(5);
        for window in [7, 20, 400] {
            let (from, back) = (random.usize(1..30), random.usize(0..30));
            let mut draw = |len: usize| (0..len).map(|_| 4.0 * random.f32() - 2.0).collect::<Vec<f32>>();
            let (q, k) = (draw(n * heads * d), draw(n * kv_heads * d));
            let sinks = draw(layers * heads);
            let kinds = vec![LayerKind::Full, LayerKind::Sliding(window), LayerKind::Full];
            let spec = CacheSpec::new(layers, heads, kv_heads, d).kinds(kinds).sink_logits(sinks.clone());
            let spec = exact(spec);
            let mut watch = Watch::new(Box::new(KvCache::new(spec).unwrap()), (from, back), &sinks);
            for layer in 0..2 {
                let mut first = 0;
                while first < n {
                    let end = n.min(first + random.usize(1..20));
                    let (qs, ks) =
                        (first * heads * d..end * heads * d, first * kv_heads * d..end * kv_heads * d);
                    let mut out = vec![0.0; qs.len()];
                    watch.attend_chunk(layer, &q[qs], &k[ks.clone()], &k[ks], &mut out).unwrap();
                    first = end;
                }
            }
            for (layer, seen) in [(0, n), (1, window)] {
                for head in 0..heads {
                    let logit = |i: usize, j: usize| -> f64 {
                        let (a, b) =
                            (&q[(i * heads + head) * d..][..d], &k[(j * kv_heads + head / 2) * d..][..d]);
                        let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        (dot / (d as f64).sqrt()).exp()
                    };
                    let sink = f64::from(sinks[layer * heads + head]).exp();
                    let weight = |i: usize| {
                        let start = (i + 1).saturating_sub(seen);
                        let Some(at) = i.checked_sub(back).filter(|at| *at >= start) else { return 0.0 };
                        logit(i, at) / (sink + (start..=i).map(|j| logit(i, j)).sum::<f64>())
                    };
                    let want: f64 = (from..n).map(weight).sum();
                    let got = watch.sums[layer * heads + head];
                    assert!(
                        (got - want).abs() < 2e-3 * (1.0 + want),
                        "{window}, {layer}, {head}: {got} {want}"
                    );
                }
            }
            assert!(watch.sums[2 * heads..].iter().all(|sum| *sum == 0.0), "a layer without tokens");
        }
    }
}
