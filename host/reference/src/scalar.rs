//! `tq3`, `tq4`, `vtq4` and variants: a norm and a scalar code of the rotated unit vector.

use crate::bits;
use crate::format::{Format, Layer, Norm};
use crate::levels::Levels;
use crate::rotation::{Rotation, RotationKind, dot};
use tqkv_core::{DecodeError, EncodeError};

/// The parameters of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarForm {
    pub(crate) bits: usize,
    /// Bits that a code takes in the block.
    pub(crate) width: usize,
    pub(crate) norm: Norm,
    /// True: Gaussian levels, and decoded vectors rescaled to their norm. False: the levels of the exact law.
    pub(crate) keeps_norm: bool,
    pub(crate) rotation: RotationKind,
}

impl ScalarForm {
    pub(crate) const fn block_bytes(self, dim: usize) -> usize {
        self.norm.bytes() + dim * self.width / 8
    }
}

#[derive(Debug)]
pub(crate) struct Scalar {
    form: ScalarForm,
    levels: Levels,
    rotation: Rotation,
    /// Converts a coordinate of a unit vector to sigmas.
    sigmas: f64,
}

impl Scalar {
    pub(crate) fn new(form: ScalarForm, layer: Layer) -> Option<Self> {
        let Layer { dim, seed, layer, rotation } = layer;
        let levels =
            if form.keeps_norm { Some(Levels::gaussian(form.bits)) } else { Levels::exact(dim, form.bits) };
        Some(Self {
            form,
            levels: levels?,
            rotation: Rotation::new(rotation.unwrap_or(form.rotation), dim, seed, layer)?,
            sigmas: libm::sqrt(dim as f64),
        })
    }
}

impl Format for Scalar {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let norm = libm::sqrt(dot(x, x));
        let mut stored = vec![0; self.form.norm.bytes()];
        self.form.norm.store(norm, &mut stored)?;
        let unit: Vec<f64> = x.iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect();
        let y = self.rotation.apply(&unit);
        let codes: Vec<u8> = y.iter().map(|y| self.levels.code(y * self.sigmas)).collect();
        let (head, rest) = block.split_at_mut(stored.len());
        head.copy_from_slice(&stored);
        bits::pack(&codes, self.form.width, rest);
        Ok(())
    }

    fn decode(&self, mut block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let norm = self.form.norm.load(&mut block)?;
        let mask = (1 << self.form.bits) - 1;
        let codes = (0..8 * block.len() / self.form.width).map(|i| bits::code(block, self.form.width, i));
        let y: Vec<f64> = codes.map(|code| self.levels.level(code & mask) / self.sigmas).collect();
        let scale = if self.form.keeps_norm { norm / libm::sqrt(dot(&y, &y)) } else { norm };
        let mut x = self.rotation.invert(&y);
        x.iter_mut().for_each(|x| *x *= scale);
        Ok(x)
    }
}
