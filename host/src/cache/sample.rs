//! A running sample of what encoding loses, for [`super::HeadStats`].

/// What encoding did to the last token of each page: sums of squares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Of the vectors.
    pub(super) energy: f64,
    /// Of the vectors less their mean.
    pub(super) centred: f64,
    /// Of what is lost.
    pub(super) error: f64,
}

impl Sample {
    /// Takes a vector, the mean that was taken off it, and what is decoded of the rest.
    pub(super) fn take(&mut self, vector: &[f32], mean: Option<&[f32]>, decoded: &[f32]) {
        for (i, (&x, &y)) in vector.iter().zip(decoded).enumerate() {
            let centred = f64::from(x) - mean.map_or(0.0, |mean| f64::from(mean[i]));
            self.energy += f64::from(x) * f64::from(x);
            self.centred += centred * centred;
            self.error += (centred - f64::from(y)) * (centred - f64::from(y));
        }
    }
}
