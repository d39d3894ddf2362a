//! How well a layer predicts the next one: tests if differences between layers would take fewer bits than the
//! layers.

use std::collections::BTreeMap;

use serde::Serialize;

/// Number of histogram levels, each a quarter of a standard deviation. Values beyond fall into the outermost.
const LEVELS: usize = 32;
const STEP: f64 = 0.25;

/// Figures on how well a layer predicts the next one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DeltaFigures {
    /// Keys, values, or a projection.
    pub(crate) what: String,
    /// Number of pairs of consecutive layers.
    pub(crate) pairs: usize,
    /// Numbers per layer.
    pub(crate) numbers: usize,
    /// Pearson's correlation; mean over the pairs.
    pub(crate) correlation: f64,
    /// The correlation farthest from 0.
    pub(crate) strongest: f64,
    /// Energy of the differences over the energy of the numbers: below 1, a difference is smaller.
    pub(crate) difference_energy: f64,
    /// Bits per number that the best multiple of the previous layer saves at equal error, for Gaussian
    /// numbers.
    pub(crate) bits_saved: f64,
    /// Entropy in bits per number, in steps of a quarter of the standard deviation.
    pub(crate) entropy: f64,
    /// The same entropy if the number in the previous layer is known.
    pub(crate) entropy_given_last: f64,
}

/// Layers of one kind in order. Each is compared with the previous one.
#[derive(Default)]
pub(crate) struct Layers {
    last: Vec<f32>,
    pairs: Vec<LayerPair>,
    numbers: usize,
}

struct LayerPair {
    correlation: f64,
    difference: f64,
    entropy: f64,
    given: f64,
}

impl Layers {
    /// Adds the next layer. A layer whose size differs from the last one is compared with nothing.
    pub(crate) fn push(&mut self, layer: &[f32]) {
        if self.last.len() == layer.len() && !layer.is_empty() {
            self.numbers = layer.len();
            self.pairs.push(pair(&self.last, layer));
        }
        self.last.clear();
        self.last.extend_from_slice(layer);
    }

    fn figures(&self, what: String) -> Option<DeltaFigures> {
        let pairs = self.pairs.len();
        let mean = |of: fn(&LayerPair) -> f64| self.pairs.iter().map(of).sum::<f64>() / pairs as f64;
        let strongest = self.pairs.iter().map(|pair| pair.correlation);
        Some(DeltaFigures {
            what,
            pairs,
            numbers: self.numbers,
            correlation: mean(|pair| pair.correlation),
            strongest: strongest.max_by(|a, b| a.abs().total_cmp(&b.abs()))?,
            difference_energy: mean(|pair| pair.difference),
            bits_saved: mean(|pair| -0.5 * (1.0 - pair.correlation.powi(2)).max(f64::MIN_POSITIVE).log2()),
            entropy: mean(|pair| pair.entropy),
            entropy_given_last: mean(|pair| pair.given),
        })
    }
}

/// Kinds of numbers by name, in the order of their first appearance.
#[derive(Default)]
pub(crate) struct Kinds {
    order: Vec<String>,
    layers: BTreeMap<String, Layers>,
}

impl Kinds {
    /// Adds a layer of a kind.
    pub(crate) fn push(&mut self, kind: &str, layer: &[f32]) {
        if !self.layers.contains_key(kind) {
            self.order.push(kind.to_owned());
        }
        self.layers.entry(kind.to_owned()).or_default().push(layer);
    }

    /// The figures of every kind that has two consecutive layers of equal size.
    pub(crate) fn figures(&self) -> Vec<DeltaFigures> {
        self.order.iter().filter_map(|kind| self.layers[kind].figures(kind.clone())).collect()
    }
}

/// Subtracts the mean of each of `dim` channels.
pub(crate) fn centre(rows: &mut [f32], dim: usize) {
    let count = (rows.len() / dim).max(1) as f64;
    for channel in 0..dim {
        let column = || (channel..rows.len()).step_by(dim);
        let mean = column().map(|i| f64::from(rows[i])).sum::<f64>() / count;
        column().for_each(|i| rows[i] -= mean as f32);
    }
}

fn pair(last: &[f32], next: &[f32]) -> LayerPair {
    let (mut x, mut y) = (RowMoments::default(), RowMoments::default());
    let (mut product, mut difference) = (0f64, 0f64);
    for (&a, &b) in last.iter().zip(next) {
        let (a, b) = (f64::from(a), f64::from(b));
        x.add(a);
        y.add(b);
        product += a * b;
        difference += (b - a) * (b - a);
    }
    let n = next.len() as f64;
    let covariance = product / n - x.sum / n * (y.sum / n);
    let deviations = (x.deviation(n), y.deviation(n));
    let (entropy, given) = entropies(last, next, (x.sum / n, deviations.0), (y.sum / n, deviations.1));
    LayerPair {
        correlation: covariance / (deviations.0 * deviations.1).max(f64::MIN_POSITIVE),
        difference: difference / y.squares.max(f64::MIN_POSITIVE),
        entropy,
        given,
    }
}

#[derive(Default)]
struct RowMoments {
    sum: f64,
    squares: f64,
}

impl RowMoments {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
    }

    fn deviation(&self, n: f64) -> f64 {
        (self.squares / n - (self.sum / n).powi(2)).max(0.0).sqrt()
    }
}

/// Entropy of `next` in bits, alone and with `last` known.
fn entropies(last: &[f32], next: &[f32], x: (f64, f64), y: (f64, f64)) -> (f64, f64) {
    let level = |value: f32, (mean, deviation): (f64, f64)| {
        let steps = (f64::from(value) - mean) / (STEP * deviation.max(f64::MIN_POSITIVE));
        (steps + LEVELS as f64 / 2.0).clamp(0.0, LEVELS as f64 - 1.0) as usize
    };
    let mut joint = vec![0u32; LEVELS * LEVELS];
    for (&a, &b) in last.iter().zip(next) {
        joint[level(a, x) * LEVELS + level(b, y)] += 1;
    }
    let column = |b: usize| joint.iter().skip(b).step_by(LEVELS).sum::<u32>();
    let of_next = bits((0..LEVELS).map(column));
    let of_last = bits(joint.chunks(LEVELS).map(|row| row.iter().sum()));
    (of_next, bits(joint.iter().copied()) - of_last)
}

fn bits(counts: impl Iterator<Item = u32> + Clone) -> f64 {
    let whole = f64::from(counts.clone().sum::<u32>());
    let term = |count: u32| f64::from(count) / whole * (f64::from(count) / whole).log2();
    let seen = counts.filter(|count| *count > 0);
    // Few samples make a histogram look more certain than it is: the correction of Miller and Madow.
    let bias = (seen.clone().count() as f64 - 1.0) / (2.0 * whole * std::f64::consts::LN_2);
    bias - seen.map(term).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::random_directions;

    /// A layer that is a `share` of the previous one, and otherwise its own.
    fn figures(share: f32) -> DeltaFigures {
        let row = |seed| {
            let vectors = random_directions(800, 128, seed).unwrap();
            let mut rows = vec![0.0; 800 * 128];
            rows.chunks_mut(128).enumerate().for_each(|(i, row)| vectors.read_row(i, row).unwrap());
            rows
        };
        let (first, own) = (row(1), row(2));
        let rest = (1.0 - share * share).sqrt();
        let next: Vec<f32> = first.iter().zip(&own).map(|(a, b)| share * a + rest * b).collect();
        let mut kinds = Kinds::default();
        kinds.push("keys", &first);
        kinds.push("odd", &first);
        kinds.push("keys", &next);
        kinds.push("odd", &next[..7]);
        let [figures] = &kinds.figures()[..] else { panic!("layers of other sizes are not compared") };
        figures.clone()
    }

    #[test]
    fn layers_of_their_own_save_nothing() {
        let found = figures(0.0);
        assert!(found.correlation.abs() < 0.01 && found.bits_saved < 1e-3, "{found:?}");
        assert!((found.difference_energy - 2.0).abs() < 0.05, "differences are twice as large: {found:?}");
        // The entropy of a Gaussian in quarters of its deviation: 2.05 + 2 bits.
        assert!((found.entropy - 4.047).abs() < 0.02, "{found:?}");
        assert!((found.entropy - found.entropy_given_last).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn layers_that_repeat_save_what_theory_says() {
        let found = figures(0.9);
        assert!((found.correlation - 0.9).abs() < 0.01, "{found:?}");
        assert!((found.bits_saved - 1.198).abs() < 0.05, "{found:?}");
        let saved = found.entropy - found.entropy_given_last;
        assert!((saved - 1.198).abs() < 0.12, "histograms agree with theory: {saved}");
        assert!((found.difference_energy - 0.2).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn channels_lose_their_mean() {
        let mut rows = [1.0, 10.0, 3.0, 10.0];
        centre(&mut rows, 2);
        assert_eq!(rows, [-1.0, 0.0, 1.0, 0.0]);
    }
}
