//! `p2`, `p3`, `p4`: TurboQuant_prod, Algorithm 2 of arXiv 2504.19874, and variants with wider residuals.
//!
//! The unit vector u is kept as a scalar code u^ of b - 1 bits. The residual is r = u - u^. Its norm is kept,
//! and the signs of S r, where the rows s_j of S are N(0, 1). E[s sign(<s, r>)] = sqrt(2/pi) r / |r| gives
//! the estimate:
//!
//! ```text
//! <q, x> = |x| (<q, u^> + |r| sqrt(pi/2) / d * sum of sign(<s_j, r>) <s_j, q>)      on average over S
//! ```
//!
//! Wider residuals keep <s_j, r> / |r|, which is N(0, 1), as a Lloyd-Max code Q. The factor is then 1 / E[g
//! Q(g)] in place of sqrt(pi/2).
//!
//! The estimate is linear in q, so decoding gives a vector with the same dot products. It is unbiased at the
//! price of a larger error: pi/2 - 1/d times the squared error of the scalar code, for one residual bit.

use crate::bits;
use crate::format::{Format, Layer, Norm};
use crate::levels::Levels;
use crate::random::normals;
use crate::rotation::{Rotation, RotationKind, combine, dot, layer_seed};
use tqkv_core::{DecodeError, EncodeError};

/// The parameters of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductForm {
    /// Bits of the scalar code, residual not counted.
    pub(crate) bits: usize,
    pub(crate) residual: usize,
    /// The format of both norms.
    pub(crate) norm: Norm,
    pub(crate) rotation: RotationKind,
}

impl ProductForm {
    pub(crate) const fn block_bytes(self, dim: usize) -> usize {
        2 * self.norm.bytes() + dim * (self.bits + self.residual) / 8
    }
}

/// Difference between the seeds of a layer's rotation and of its sketch.
const SKETCH_SEED: u64 = 500;

#[derive(Debug)]
pub(crate) struct Product {
    form: ProductForm,
    levels: Levels,
    residual: Levels,
    rotation: Rotation,
    /// S row by row, and its transpose.
    sketch: Vec<f32>,
    transposed: Vec<f32>,
    /// The factor of the sum over the rows of S.
    factor: f64,
    dim: usize,
}

/// A query, rotated and sketched.
#[derive(Clone, Debug)]
pub struct Sketched {
    rotated: Vec<f64>,
    sketched: Vec<f64>,
}

/// The parts of a block.
struct BlockParts<'a> {
    norm: f64,
    residual_norm: f64,
    codes: &'a [u8],
    residual: &'a [u8],
}

impl Product {
    pub(crate) fn new(form: ProductForm, layer: Layer) -> Option<Self> {
        let Layer { dim, seed, layer, rotation } = layer;
        let drawn = normals(layer_seed(seed, layer).wrapping_add(SKETCH_SEED), dim * dim);
        let sketch: Vec<f32> = drawn.into_iter().map(|x| x as f32).collect();
        let residual = Levels::gaussian(form.residual);
        Some(Self {
            form,
            levels: Levels::exact(dim, form.bits)?,
            rotation: Rotation::new(rotation.unwrap_or(form.rotation), dim, seed, layer)?,
            transposed: (0..dim * dim).map(|i| sketch[i % dim * dim + i / dim]).collect(),
            sketch,
            factor: 1.0 / (dim as f64 * residual.correlation()),
            residual,
            dim,
        })
    }

    fn sigmas(&self) -> f64 {
        libm::sqrt(self.dim as f64)
    }

    fn parts<'a>(&self, mut block: &'a [u8]) -> Result<BlockParts<'a>, DecodeError> {
        let norm = self.form.norm.load(&mut block)?;
        let residual_norm = self.form.norm.load(&mut block)?;
        let (codes, residual) = block.split_at(self.dim * self.form.bits / 8);
        Ok(BlockParts { norm, residual_norm, codes, residual })
    }

    /// The levels of the scalar code, as coordinates of the rotated unit vector.
    fn rotated(&self, codes: &[u8]) -> Vec<f64> {
        let level = |i| self.levels.level(bits::code(codes, self.form.bits, i)) / self.sigmas();
        (0..self.dim).map(level).collect()
    }

    /// The levels of the residual's code, multiplied by |r| and the factor.
    fn weights(&self, parts: &BlockParts<'_>) -> Vec<f64> {
        let scale = parts.residual_norm * self.factor;
        let level = |i| scale * self.residual.level(bits::code(parts.residual, self.form.residual, i));
        (0..self.dim).map(level).collect()
    }

    pub(crate) fn sketch(&self, query: &[f64]) -> Sketched {
        Sketched { rotated: self.rotation.apply(query), sketched: combine(&self.transposed, query) }
    }

    pub(crate) fn score(&self, query: &Sketched, block: &[u8]) -> Result<f64, DecodeError> {
        let parts = self.parts(block)?;
        let scalar = dot(&query.rotated, &self.rotated(parts.codes));
        Ok(parts.norm * (scalar + dot(&query.sketched, &self.weights(&parts))))
    }
}

impl Format for Product {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let bytes = self.form.norm.bytes();
        let mut written = vec![0; block.len()];
        let (norms, codes) = written.split_at_mut(2 * bytes);
        let (first, second) = norms.split_at_mut(bytes);
        let norm = libm::sqrt(dot(x, x));
        self.form.norm.store(norm, first)?;
        if norm > 0.0 {
            let unit: Vec<f64> = x.iter().map(|x| x / norm).collect();
            let y = self.rotation.apply(&unit);
            let scalar: Vec<u8> = y.iter().map(|y| self.levels.code(y * self.sigmas())).collect();
            let (coded, residual) = codes.split_at_mut(self.dim * self.form.bits / 8);
            bits::pack(&scalar, self.form.bits, coded);
            let coarse = self.rotation.invert(&self.rotated(coded));
            let left: Vec<f64> = unit.iter().zip(coarse).map(|(u, c)| u - c).collect();
            let left_norm = libm::sqrt(dot(&left, &left));
            self.form.norm.store(left_norm, second)?;
            let projected = combine(&self.transposed, &left);
            // A residual of zero has no direction, and its weight is zero.
            let inverse = if left_norm > 0.0 { 1.0 / left_norm } else { 0.0 };
            let signs: Vec<u8> = projected.iter().map(|p| self.residual.code(p * inverse)).collect();
            bits::pack(&signs, self.form.residual, residual);
        }
        block.copy_from_slice(&written);
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let parts = self.parts(block)?;
        let coarse = self.rotation.invert(&self.rotated(parts.codes));
        let residual = combine(&self.sketch, &self.weights(&parts));
        Ok(coarse.iter().zip(residual).map(|(c, r)| parts.norm * (c + r)).collect())
    }
}
