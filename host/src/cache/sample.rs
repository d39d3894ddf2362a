//! A sample of the encoding error, for [`super::HeadStats`].

/// Sums of squares over the last token of each page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Energy of the vectors.
    pub(super) energy: f64,
    /// Energy of the vectors less their mean.
    pub(super) centred: f64,
    /// Energy of the encoding error.
    pub(super) error: f64,
}

impl Sample {
    /// Adds a vector, the mean that was subtracted, and the decoded rest.
    pub(super) fn take(&mut self, vector: &[f32], mean: Option<&[f32]>, decoded: &[f32]) {
        for (i, (&x, &y)) in vector.iter().zip(decoded).enumerate() {
            let centred = f64::from(x) - mean.map_or(0.0, |mean| f64::from(mean[i]));
            self.energy += f64::from(x) * f64::from(x);
            self.centred += centred * centred;
            self.error += (centred - f64::from(y)) * (centred - f64::from(y));
        }
    }
}
