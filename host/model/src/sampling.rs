//! Chooses the next token from logits: greedy, or by temperature with a seed.

use crate::error::ModelError;

/// Chooses tokens. The same seed and logits give the same choices.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f32,
    rng: fastrand::Rng,
}

impl Sampler {
    /// Greedy at temperature 0. Otherwise draws from softmax(logits / temperature) with `seed`.
    ///
    /// # Errors
    /// [`ModelError::BadTemperature`] for a temperature that is negative or not finite.
    pub fn new(temperature: f32, seed: u64) -> Result<Self, ModelError> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(ModelError::BadTemperature(temperature));
        }
        Ok(Self { temperature, rng: fastrand::Rng::with_seed(seed) })
    }

    /// Index of the chosen logit. `None` if there are no logits or the largest is not finite.
    pub fn pick(&mut self, logits: &[f32]) -> Option<usize> {
        let best = argmax(logits)?;
        if self.temperature == 0.0 {
            return Some(best);
        }
        let weight = |l: f32| f64::from((l - logits[best]) / self.temperature).exp();
        let total: f64 = logits.iter().map(|l| weight(*l)).sum();
        let mut left = self.rng.f64() * total;
        for (i, l) in logits.iter().enumerate() {
            left -= weight(*l);
            if left < 0.0 {
                return Some(i);
            }
        }
        // Rounding may leave a small rest after the last weight.
        Some(best)
    }
}

/// Index of the largest value, the first among equals. `None` for no values, a NaN or an infinite maximum.
pub(crate) fn argmax(values: &[f32]) -> Option<usize> {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if v.is_nan() {
            return None;
        }
        if *v > values[best] {
            best = i;
        }
    }
    values.get(best).filter(|v| v.is_finite()).map(|_| best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_equals_and_refuses_nan() {
        let mut s = Sampler::new(0.0, 1).unwrap();
        assert_eq!(s.pick(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(s.pick(&[f32::NEG_INFINITY, -2.0]), Some(1));
        assert_eq!(s.pick(&[]), None);
        assert_eq!(s.pick(&[1.0, f32::NAN]), None);
        assert_eq!(s.pick(&[1.0, f32::INFINITY]), None);
    }

    #[test]
    fn temperature_draws_by_the_softmax_and_repeats_by_seed() {
        let logits = [0.0f32, 1.0, 2.0];
        let temperature = 0.5f32;
        let draws = |seed| {
            let mut s = Sampler::new(temperature, seed).unwrap();
            (0..20_000).map(|_| s.pick(&logits).unwrap()).collect::<Vec<_>>()
        };
        let (a, b) = (draws(7), draws(7));
        assert_eq!(a, b);
        assert_ne!(a, draws(8));
        let total: f32 = logits.iter().map(|l| (l / temperature).exp()).sum();
        for (i, l) in logits.iter().enumerate() {
            let share = a.iter().filter(|&&x| x == i).count() as f32 / a.len() as f32;
            let want = (l / temperature).exp() / total;
            assert!((share - want).abs() < 0.01, "token {i}: {share} against {want}");
        }
        assert!(Sampler::new(-1.0, 0).is_err() && Sampler::new(f32::NAN, 0).is_err());
    }
}
