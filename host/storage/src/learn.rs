//! Learns a basis from keys and values that pass.

use rayon::prelude::*;
use tqkv::error::CacheError;
use tqkv::unstable::algebra::{Accumulate, Mat, MatMut, product};
use tqkv_simd::Level;

use crate::angles::Angles;
use crate::basis::Basis;
use crate::chunk::EXACT_TOKENS;
use crate::columns::Columns;
use crate::element::Element;
use crate::error::StorageError;
use crate::frame::{Frame, rounded, scale_of};
use crate::marks::Marks;
use crate::rows::RowPlace;
use crate::shape::{Join, Shape};
use tqkv::unstable::algebra::symmetric;

/// Sums over the rows of one layer, or of the layers that share a basis.
#[derive(Debug, Clone)]
pub(crate) struct FrameMoments {
    /// Sums of the rows.
    pub(crate) sums: Vec<f64>,
    /// Sums of the products of a row's values, for each part.
    pub(crate) products: Vec<Vec<f64>>,
}

/// Gathers the sums that a [`Basis`] is made of.
///
/// Memory: 8 bytes per entry of the basis. Cost: one matrix product per layer as tokens pass, and
/// eigenvectors once ([`Learner::freeze`]). A few thousand tokens are enough. Three thousand in place of one
/// lower the error by a fifth to a third.
#[derive(Debug, Clone)]
pub struct Learner {
    level: Level,
    pub(crate) shape: Shape,
    pub(crate) join: Join,
    pub(crate) tokens: u64,
    pub(crate) marks: Marks,
    pub(crate) moments: Vec<FrameMoments>,
}

impl Learner {
    /// A learner that has seen no tokens. [`Shape::join`] is the usual `join`.
    ///
    /// # Errors
    /// Layers that cannot share a basis. Also a `TQKV_LEVEL` that forces a level that this machine does
    /// not have.
    pub fn new(shape: Shape, join: Join) -> Result<Self, StorageError> {
        shape.check_join(join)?;
        let products = shape.parts(join).iter().map(|dim| vec![0.0; dim * dim]).collect();
        let moments = FrameMoments { sums: vec![0.0; join.layers() * shape.layer_values()], products };
        Ok(Self {
            level: Level::detect().map_err(CacheError::Level)?,
            join,
            tokens: 0,
            marks: Marks::default(),
            moments: vec![moments; shape.num_layers / join.layers()],
            shape,
        })
    }

    /// The number of tokens seen so far.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Learns from keys `[layers, tokens, num_kv_heads, head_dim]`, after RoPE, and values likewise. The
    /// tokens are at consecutive positions from `first_position` on. The first tokens of a text are skipped,
    /// because chunks keep them exactly.
    ///
    /// # Errors
    /// Lengths that do not fit the shape, or numbers that are not finite. Nothing is learned then.
    pub fn learn<T: Element>(&mut self, k: &[T], v: &[T], first_position: u64) -> Result<(), StorageError> {
        let (keys, values) = (self.shape.key_values(), self.shape.value_values());
        let all = self.shape.num_layers * keys;
        if !k.len().is_multiple_of(all) {
            return Err(StorageError::Length {
                what: "keys",
                got: k.len(),
                expected: k.len().next_multiple_of(all),
            });
        }
        let tokens = k.len() / all;
        let expected = self.shape.num_layers * tokens * values;
        if v.len() != expected {
            return Err(StorageError::Length { what: "values", got: v.len(), expected });
        }
        if k.iter().chain(v).any(|x| !x.to_f32().is_finite()) {
            return Err(StorageError::Learning("keys or values are not finite".into()));
        }
        let skipped = EXACT_TOKENS.saturating_sub(first_position).min(tokens as u64) as usize;
        if skipped == tokens {
            return Ok(());
        }
        let angles: Vec<Angles> = self
            .shape
            .ropes
            .iter()
            .map(|rope| Angles::new(rope, first_position + skipped as u64, tokens - skipped))
            .collect();
        let (level, shape, layers) = (self.level, &self.shape, self.join.layers());
        self.moments.par_iter_mut().enumerate().try_for_each(|(i, moments)| {
            let place = RowPlace {
                level,
                shape,
                first_layer: i * layers,
                layers,
                exact: skipped,
                tokens: tokens - skipped,
                angles: &angles,
                norms: usize::from(values > 0),
            };
            let of = |x: usize| i * layers * tokens * x..(i + 1) * layers * tokens * x;
            let rows = place.take_apart(&k[of(keys)], &v[of(values)])?;
            moments.add(&rows.values, place.stride());
            Ok::<(), StorageError>(())
        })?;
        self.tokens += (tokens - skipped) as u64;
        Ok(())
    }

    /// Keeps hashes of a text that the learner learns from: 8 bytes for about 64 tokens.
    /// [`Basis::learned_from`] recognises the text by them.
    pub fn mark(&mut self, tokens: &[u32]) {
        self.marks.add(tokens);
    }

    /// Adds everything that another learner of the same shape has seen.
    ///
    /// # Errors
    /// [`StorageError::Basis`] where the shapes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), StorageError> {
        if self.shape != other.shape || self.join != other.join {
            let why = other
                .shape
                .differs(&self.shape)
                .unwrap_or_else(|| "the two share bases in different ways".into());
            return Err(StorageError::Basis(why));
        }
        self.tokens += other.tokens;
        self.marks.merge(&other.marks);
        for (own, others) in self.moments.iter_mut().zip(&other.moments) {
            add(&mut own.sums, &others.sums);
            own.products.iter_mut().zip(&others.products).for_each(|(own, others)| add(own, others));
        }
        Ok(())
    }

    /// Makes what was seen so far count as at most `tokens` tokens, so that later text outweighs it.
    pub(crate) fn fade(&mut self, tokens: u64) {
        if self.tokens <= tokens {
            return;
        }
        let factor = tokens as f64 / self.tokens as f64;
        self.tokens = tokens;
        for moments in &mut self.moments {
            for sum in moments.sums.iter_mut().chain(moments.products.iter_mut().flatten()) {
                *sum *= factor;
            }
        }
    }

    /// The fewest tokens that a basis is made of: the most columns of a matrix.
    pub(crate) fn least_tokens(&self) -> u64 {
        self.shape.parts(self.join).into_iter().max().unwrap_or(0) as u64
    }

    /// The basis of the tokens seen so far, named after `model`. Cost: eigenvectors of each layer, one second
    /// for 1024 values on one core.
    ///
    /// # Errors
    /// [`StorageError::Learning`]: fewer tokens than the basis has columns, or no eigenvectors.
    pub fn freeze(&self, model: &str) -> Result<Basis, StorageError> {
        let parts = self.shape.parts(self.join);
        let least = self.least_tokens();
        if self.tokens < least {
            return Err(StorageError::Learning(format!(
                "{} tokens for a basis of {least} values per token; needed are {least}, better ten times as many",
                self.tokens
            )));
        }
        let frames = self
            .moments
            .par_iter()
            .map(|moments| moments.frame(self.tokens as f64, self.join.layers(), &self.shape, &parts))
            .collect::<Result<_, _>>()?;
        Ok(Basis::new(self.shape.clone(), self.join, model, (self.tokens, self.marks.clone()), frames))
    }
}

fn add(own: &mut [f64], others: &[f64]) {
    own.iter_mut().zip(others).for_each(|(own, other)| *own += other);
}

impl FrameMoments {
    fn add(&mut self, rows: &[f32], stride: usize) {
        for row in rows.chunks_exact(stride) {
            self.sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let (count, mut first) = (rows.len() / stride, 0);
        for products in &mut self.products {
            let dim = products.len().isqrt();
            let part = Mat::new(&rows[first..], count, dim, stride);
            let mut chunk = vec![0.0; dim * dim];
            product(
                &mut MatMut::new(&mut chunk, dim, dim, dim),
                part.transposed(),
                part,
                1.0,
                Accumulate::Replace,
            );
            products.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += f64::from(x));
            first += dim;
        }
    }

    /// Keys are centred, values are not. Tokens with small values are the attended ones, and a mean would add
    /// noise to them. Both are scaled to the same centred energy, in each layer.
    fn frame(
        &self,
        tokens: f64,
        layers: usize,
        shape: &Shape,
        parts: &[usize],
    ) -> Result<Frame, StorageError> {
        let (keys, values) = (shape.key_values(), shape.value_values());
        let all_keys = layers * keys;
        let mean: Vec<f64> =
            self.sums[..all_keys].iter().map(|sum| f64::from(rounded(sum / tokens))).collect();
        let scale = |first: usize, count: usize| {
            let energy = |i: usize| self.diagonal(i) / tokens - (self.sums[i] / tokens).powi(2);
            scale_of((first..first + count).map(energy).sum())
        };
        let scales: Vec<[f32; 2]> = (0..layers)
            .map(|layer| [scale(layer * keys, keys), scale(all_keys + layer * values, values)])
            .collect();
        let channel = |i: usize| match i.checked_sub(all_keys) {
            None => (mean[i], f64::from(scales[i / keys][0])),
            Some(i) => (0.0, f64::from(scales[i / values][1])),
        };
        let mut columns = Vec::with_capacity(parts.len());
        let mut first = 0;
        for (products, &dim) in self.products.iter().zip(parts) {
            let entry = |i: usize, j: usize| {
                let ((a, s), (b, t)) = (channel(first + i), channel(first + j));
                let (x, y) = (self.sums[first + i] / tokens, self.sums[first + j] / tokens);
                s * t * (products[i * dim + j] / tokens - a * y - b * x + a * b)
            };
            let matrix: Vec<f64> = (0..dim * dim).map(|at| entry(at / dim, at % dim)).collect();
            columns.push(Columns::round(&eigenvectors(&matrix, dim)?, dim));
            first += dim;
        }
        Ok(Frame { mean: mean.iter().map(|x| *x as f32).collect(), scales, columns })
    }

    /// Sum of the squares of a channel.
    fn diagonal(&self, channel: usize) -> f64 {
        let mut first = 0;
        for products in &self.products {
            let dim = products.len().isqrt();
            if channel < first + dim {
                return products[(channel - first) * (dim + 1)];
            }
            first += dim;
        }
        0.0
    }
}

/// The eigenvectors one after the other, largest eigenvalue first. Reads the lower triangle of the matrix.
fn eigenvectors(matrix: &[f64], dim: usize) -> Result<Vec<f64>, StorageError> {
    let failed = |why| StorageError::Learning(format!("no eigenvectors: {why}"));
    if matrix.iter().any(|x| !x.is_finite()) {
        return Err(failed("products of the values are too large"));
    }
    symmetric(matrix, dim)
        .map(|(_, vectors)| vectors)
        .ok_or_else(|| failed("the iteration does not converge"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product of `rank` random rows with themselves.
    fn of_rank(rank: usize, dim: usize) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut matrix = vec![0.0; dim * dim];
        for _ in 0..rank {
            let row: Vec<f64> = (0..dim).map(|_| random.f64() - 0.5).collect();
            for (at, x) in matrix.iter_mut().enumerate() {
                *x += row[at / dim] * row[at % dim];
            }
        }
        matrix
    }

    #[test]
    fn eigenvectors_are_accurate_in_order_and_orthogonal() {
        let dim = 60;
        let repeated =
            (0..dim * dim).map(|at| if at % (dim + 1) == 0 { f64::from(at as u32 % 3) } else { 0.0 });
        for matrix in [of_rank(200, dim), of_rank(7, dim), repeated.collect(), vec![0.0; dim * dim]] {
            let vectors = eigenvectors(&matrix, dim).unwrap();
            let vectors: Vec<&[f64]> = vectors.chunks(dim).collect();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let size = matrix.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let mut last = f64::INFINITY;
            for (i, vector) in vectors.iter().enumerate() {
                let image: Vec<f64> = matrix.chunks(dim).map(|row| dot(row, vector)).collect();
                let value = dot(&image, vector);
                assert!(value <= last + 1e-12 * size, "{value} after {last}");
                last = value;
                for (x, y) in image.iter().zip(*vector) {
                    assert!((x - value * y).abs() <= 1e-12 * size, "{x} is not {value} times {y}");
                }
                for (j, other) in vectors.iter().enumerate() {
                    assert!((dot(vector, other) - f64::from(i == j)).abs() < 1e-12, "{i} and {j}");
                }
            }
        }
    }

    #[test]
    fn products_past_f64_are_refused() {
        let error = eigenvectors(&[f64::INFINITY, f64::NAN, f64::NAN, 1.0], 2).unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }
}
