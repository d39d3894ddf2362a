//! Finds the position of a run of tokens, for stores that do not keep it.

use tqkv_simd::Level;

use crate::angles::Angles;
use crate::basis::Basis;
use crate::chunk::Span;
use crate::element::Element;
use crate::rows::RowPlace;
use tqkv::rope::Rope;

/// The candidate position at which un-RoPEd keys are most like the keys that the basis was learned from. The
/// mean of keys turns with the position, and in most pairs of coordinates the mean is large.
///
/// `k` are keys `[layers, tokens, num_kv_heads, head_dim]` of the layers of `span`. A wrong position costs
/// bits, not correctness: a chunk is decoded with the position that it was encoded with. Cost: a pass over
/// the keys, and a product of all pairs for each candidate.
pub(crate) fn locate<T: Element>(
    level: Level,
    basis: &Basis,
    span: &Span,
    k: &[T],
    candidates: &[u64],
) -> u64 {
    let shape = basis.shape();
    let keys = shape.key_values();
    let angles: Vec<_> = shape.ropes.iter().map(|rope| Angles::new(rope, 0, span.tokens)).collect();
    let mut scores = vec![0.0f64; candidates.len()];
    for index in 0..span.layers {
        let layer = span.first_layer + index;
        let tokens = span.tokens;
        let place = RowPlace {
            level,
            shape,
            first_layer: layer,
            layers: 1,
            exact: 0,
            tokens,
            angles: &angles,
            norms: 0,
        };
        let mean = place.key_mean(&k[index * tokens * keys..][..tokens * keys]);
        let (frame, own) = (basis.frame(layer), layer % basis.join().layers());
        let weight = f64::from(frame.scales[own][0]).powi(2);
        let rope = shape.rope(layer);
        let pairs = products(rope, shape.head_dim, &mean, &frame.mean[own * keys..][..keys]);
        for (score, position) in scores.iter_mut().zip(candidates) {
            let along = |((re, im), f): (&(f64, f64), &f64)| {
                let (s, c) = libm::sincos(*position as f64 * f);
                re * c + im * s
            };
            *score += weight * pairs.iter().zip(&rope.inv_freq).map(along).sum::<f64>();
        }
    }
    let best = candidates.iter().zip(&scores).max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
    best.map_or(span.first_position, |(position, _)| *position)
}

/// For each pair of coordinates, the complex product of the mean and the conjugate of the basis's mean,
/// summed over heads.
fn products(rope: &Rope, head_dim: usize, mean: &[f64], known: &[f32]) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0); rope.inv_freq.len()];
    for (own, known) in mean.chunks_exact(head_dim).zip(known.chunks_exact(head_dim)) {
        for (i, (re, im)) in sums.iter_mut().enumerate() {
            let (a, b) = rope.pair(i);
            let (x, y) = (f64::from(known[a]), f64::from(known[b]));
            *re += own[a] * x + own[b] * y;
            *im += own[b] * x - own[a] * y;
        }
    }
    sums
}
