//! Compares the attention scores of a cache with those of exact keys, head by head.
//!
//! Every [`PROBE`] tokens both caches score the newest token's queries against all tokens before it. Scores
//! are the logits before the softmax. They cover all tokens that the position sees, uncompressed ones
//! included.

use super::cosine::cosine;
use crate::rows::rows_of;
use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;

/// Tokens between two compared positions.
pub const PROBE: usize = 64;

/// Ranks that count as near the top.
const NEAR: usize = 5;

/// Agreement of a query head's scores with the exact ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScoreFigures {
    /// Layer.
    pub layer: usize,
    /// Query head.
    pub head: usize,
    /// Mean cosine between the vectors of scores.
    pub cosine: f64,
    /// Share of queries with the same best token.
    pub top1: f64,
    /// Share of queries whose best token is among the best five of the cache.
    pub top5: f64,
    /// Number of compared queries.
    pub queries: usize,
}

/// Sums over the windows of a setting, one per query head: `[layers][heads]`.
#[derive(Default)]
pub(super) struct ScoreTally(Vec<Vec<ScoreSums>>);

#[derive(Clone, Copy, Default)]
struct ScoreSums {
    queries: usize,
    cosine: f64,
    top1: usize,
    top5: usize,
}

impl ScoreTally {
    /// The comparison of one more window, which adds to these sums.
    pub(super) fn window(&mut self) -> Scores<'_> {
        Scores { sums: &mut self.0, fed: Vec::new() }
    }

    pub(super) fn finish(&self) -> Vec<ScoreFigures> {
        let heads = |(layer, heads): (usize, &Vec<ScoreSums>)| {
            let figures = move |(head, sums): (usize, &ScoreSums)| {
                let share = |count: usize| count as f64 / sums.queries as f64;
                let (cosine, queries) = (sums.cosine / sums.queries as f64, sums.queries);
                ScoreFigures { layer, head, cosine, top1: share(sums.top1), top5: share(sums.top5), queries }
            };
            heads.iter().enumerate().filter(|(_, sums)| sums.queries > 0).map(figures).collect::<Vec<_>>()
        };
        self.0.iter().enumerate().flat_map(heads).collect()
    }
}

/// The comparison within one window.
pub(super) struct Scores<'a> {
    sums: &'a mut Vec<Vec<ScoreSums>>,
    /// Tokens that each layer has received.
    fed: Vec<usize>,
}

impl Scores<'_> {
    /// Attends with both caches, in pieces that end at compared positions.
    pub(super) fn attend(
        &mut self,
        exact: &mut dyn AttentionCache,
        cache: &mut dyn AttentionCache,
        layer: usize,
        (q, k, v): (&[f32], &[f32], &[f32]),
        (exact_out, out): (&mut [f32], &mut [f32]),
    ) -> Result<(), CacheError> {
        if self.fed.len() <= layer {
            self.fed.resize(layer + 1, 0);
        }
        let shape = cache.shape();
        let n = q.len() / (shape.num_heads * shape.head_dim).max(1);
        let mut from = 0;
        while from < n {
            let to = n.min(from + PROBE - self.fed[layer] % PROBE);
            let range = |len: usize| rows_of(&(from..to), len, n);
            let (rows, outs) = (range(q.len()), range(out.len()));
            let (k, v) = (&k[range(k.len())], &v[range(v.len())]);
            exact.attend_chunk(layer, &q[rows.clone()], k, v, &mut exact_out[outs.clone()])?;
            cache.attend_chunk(layer, &q[rows.clone()], k, v, &mut out[outs])?;
            self.fed[layer] += to - from;
            if self.fed[layer].is_multiple_of(PROBE) {
                let newest = &q[rows.end - q.len() / n..rows.end];
                self.compare(exact, cache, layer, newest)?;
            }
            from = to;
        }
        Ok(())
    }

    fn compare(
        &mut self,
        exact: &dyn AttentionCache,
        cache: &dyn AttentionCache,
        layer: usize,
        queries: &[f32],
    ) -> Result<(), CacheError> {
        let shape = cache.shape();
        if self.sums.len() <= layer {
            self.sums.resize(layer + 1, Vec::new());
        }
        let sums = &mut self.sums[layer];
        sums.resize(shape.num_heads, ScoreSums::default());
        for (head, (q, sums)) in queries.chunks_exact(shape.head_dim).zip(sums).enumerate() {
            let of = |cache: &dyn AttentionCache| {
                cache.scores(layer, head, q).unwrap_or_else(|| {
                    Err(CacheError::BadSpec("this kind of cache does not give attention scores".to_owned()))
                })
            };
            sums.add(&of(exact)?, &of(cache)?);
        }
        Ok(())
    }
}

impl ScoreSums {
    fn add(&mut self, exact: &[f32], found: &[f32]) {
        let best = (0..exact.len()).max_by(|&a, &b| exact[a].total_cmp(&exact[b]));
        let Some(of_best) = best.and_then(|best| found.get(best)) else { return };
        let above = found.iter().filter(|score| *score > of_best).count();
        self.queries += 1;
        self.cosine += cosine(exact, found);
        self.top1 += usize::from(above == 0);
        self.top5 += usize::from(above < NEAR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_best_exact_token() {
        let exact = [0.0, 3.0, 1.0, 2.0, -1.0, 0.5, 0.25];
        let mut tally = ScoreTally(vec![vec![ScoreSums::default(); 2]]);
        tally.0[0][1].add(&exact, &exact);
        // First two tokens rank before the best one, then five.
        tally.0[0][1].add(&exact, &[4.0, 3.0, 1.0, 5.0, 0.0, 0.0, 0.0]);
        tally.0[0][1].add(&exact, &[4.0, 3.0, 4.0, 5.0, 4.0, 4.0, 0.0]);
        let [figures] = tally.finish()[..] else { panic!("a head without queries is left out") };
        assert_eq!((figures.layer, figures.head, figures.queries), (0, 1, 3));
        assert_eq!((figures.top1, figures.top5), (1.0 / 3.0, 2.0 / 3.0));
        assert!(figures.cosine < 1.0 && figures.cosine > 0.5, "{figures:?}");
    }
}
