//! The online softmax: attention over a stream of tiles without ever holding all logits.

/// Running maximum and sum of one query.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlineSoftmax {
    max: f32,
    sum: f32,
}

impl OnlineSoftmax {
    pub(super) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Turns a tile of logits into weights relative to the running maximum, and returns the factor
    /// that everything accumulated so far must be multiplied by. Logits of `-inf` become 0.
    pub(super) fn tile(&mut self, logits: &mut [f32]) -> f32 {
        let tile_max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if tile_max == f32::NEG_INFINITY {
            logits.fill(0.0);
            return 1.0;
        }
        let max = self.max.max(tile_max);
        let rescale = (self.max - max).exp();
        let mut sum = 0.0;
        for logit in logits.iter_mut() {
            *logit = (*logit - max).exp();
            sum += *logit;
        }
        self.sum = self.sum * rescale + sum;
        self.max = max;
        rescale
    }

    /// What the accumulated values must be multiplied by in the end; 0 where nothing was seen.
    pub(super) fn normaliser(&self) -> f32 {
        if self.sum > 0.0 { 1.0 / self.sum } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_any_size_give_the_plain_softmax() {
        let logits: Vec<f32> = (0..37).map(|i| ((i * 29 % 37) as f32 - 18.0) * 0.7).collect();
        let values: Vec<f32> = (0..37).map(|i| i as f32).collect();
        let exact: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let want: f64 =
            logits.iter().zip(&values).map(|(&l, &v)| f64::from(l).exp() / exact * f64::from(v)).sum();
        for size in [1, 5, 37] {
            let (mut state, mut sum) = (OnlineSoftmax::EMPTY, 0.0);
            for (tile, values) in logits.chunks(size).zip(values.chunks(size)) {
                let mut weights = tile.to_vec();
                sum *= state.tile(&mut weights);
                sum += weights.iter().zip(values).map(|(w, v)| w * v).sum::<f32>();
            }
            assert!((f64::from(sum * state.normaliser()) - want).abs() < 1e-4, "tile size {size}");
        }
    }

    #[test]
    fn a_fully_masked_tile_changes_nothing() {
        let mut state = OnlineSoftmax::EMPTY;
        let mut masked = [f32::NEG_INFINITY; 3];
        assert_eq!(state.tile(&mut masked), 1.0);
        assert_eq!((masked, state.normaliser()), ([0.0; 3], 0.0));
    }
}
