//! `tq3`, `tq4` and variants: an f32 norm and a scalar code of the rotated unit vector.

use crate::bits;
use crate::format::{Format, Layer, Norm};
use crate::levels::Levels;
use crate::rotation::{Rotation, RotationKind, dot};
use tqkv_core::{DecodeError, EncodeError};

/// The parameters of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarForm {
    pub(crate) bits: usize,
    /// True: one byte per code, Gaussian levels, and decoded vectors rescaled to their norm. False: packed
    /// codes and the levels of the exact law.
    pub(crate) is_wide: bool,
    pub(crate) rotation: RotationKind,
}

impl ScalarForm {
    /// Bits that a code takes in the block.
    pub(crate) const fn width(self) -> usize {
        if self.is_wide { 8 } else { self.bits }
    }

    pub(crate) const fn block_bytes(self, dim: usize) -> usize {
        NORM.bytes() + dim * self.width() / 8
    }
}

const NORM: Norm = Norm::F32;

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
            if form.is_wide { Some(Levels::gaussian(form.bits)) } else { Levels::exact(dim, form.bits) };
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
        let mut stored = [0; NORM.bytes()];
        NORM.store(norm, &mut stored)?;
        let unit: Vec<f64> = x.iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect();
        let y = self.rotation.apply(&unit);
        let codes: Vec<u8> = y.iter().map(|y| self.levels.code(y * self.sigmas)).collect();
        let (head, rest) = block.split_at_mut(NORM.bytes());
        head.copy_from_slice(&stored);
        bits::pack(&codes, self.form.width(), rest);
        Ok(())
    }

    fn decode(&self, mut block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let norm = NORM.load(&mut block)?;
        let mask = (1 << self.form.bits) - 1;
        let codes = (0..8 * block.len() / self.form.width()).map(|i| bits::code(block, self.form.width(), i));
        let y: Vec<f64> = codes.map(|code| self.levels.level(code & mask) / self.sigmas).collect();
        let scale = if self.form.is_wide { norm / libm::sqrt(dot(&y, &y)) } else { norm };
        let mut x = self.rotation.invert(&y);
        x.iter_mut().for_each(|x| *x *= scale);
        Ok(x)
    }
}
