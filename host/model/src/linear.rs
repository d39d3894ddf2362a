//! A projection `y = W x + b` over many tokens, for any stored format of the weights.
//!
//! Weights that are not f32 stay in their format. One tile of rows at a time is expanded into memory that
//! fits in the nearest cache, and multiplied there.

use rayon::prelude::*;

use crate::checkpoint::StoredTensor;
use crate::coded::{CodedMatrix, put};
use tqkv::unstable::algebra::{Accumulate, Mat, MatMut, product};

/// A projection. `weight` is `[outputs, inputs]`, as Hugging Face stores it.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
}

#[derive(Debug)]
enum Weight {
    Stored(StoredTensor),
    /// Weights that are multiplied as codes, without expanding them.
    Coded(CodedMatrix),
}

/// Matrices of fewer values than this are expanded once. They stay in the second-level cache as f32, and
/// expanding costs more than reading them there.
const SMALL: usize = 1 << 18;
/// Values of a tile for few tokens. Each thread has its own tile in its second-level cache.
const SMALL_TILE: usize = 1 << 15;
/// Values of a tile for many tokens, which all threads share. A larger tile waits less for the end of each
/// product.
const LARGE_TILE: usize = 1 << 18;
/// The most tokens that count as few.
const FEW: usize = 16;
/// Threads share the tiles of weights with at least this many values. Waking the threads takes some 10 us.
const PARALLEL_FROM: usize = 1 << 19;

impl Linear {
    /// # Panics
    /// The weight does not have two dimensions, or the bias does not have one value per output.
    pub(crate) fn new(weight: StoredTensor, bias: Option<Vec<f32>>) -> Self {
        let [outputs, inputs] = *weight.shape() else { panic!("a matrix has two dimensions") };
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == outputs), "a bias for each output");
        let is_small = weight.coding().is_none() && outputs * inputs < SMALL;
        let weight =
            if is_small { StoredTensor::from_f32(&weight.to_f32(), vec![outputs, inputs]) } else { weight };
        let coded = weight.coding().and_then(|coding| {
            CodedMatrix::new(&coding.codec, coding.level, weight.bytes(), [outputs, inputs])
        });
        Self { weight: coded.map_or(Weight::Stored(weight), Weight::Coded), bias, inputs, outputs }
    }

    /// Multiplies `x`, `[n, inputs]`. The result is `[n, outputs]`.
    pub(crate) fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len() / self.inputs * self.outputs];
        self.run(x, &mut y, Accumulate::Replace);
        y
    }

    /// Adds the result to `y`, for the residual connection.
    pub(crate) fn forward_add(&self, x: &[f32], y: &mut [f32]) {
        self.run(x, y, Accumulate::Add);
    }

    /// Number of outputs, which are the rows of the weight.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Numbers of outputs and inputs.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inputs)
    }

    /// Appends row `index` of the weight to `out`.
    pub(crate) fn push_row(&self, index: usize, out: &mut Vec<f32>) {
        let from = out.len();
        out.resize(from + self.inputs, 0.0);
        match &self.weight {
            Weight::Stored(weight) => weight.expand_rows(index, &mut out[from..]),
            Weight::Coded(weight) => weight.expand_row(index, &mut out[from..]),
        }
    }

    /// Multiplies some output channels, bias included, by factors.
    pub(crate) fn scale_outputs(&mut self, channels: impl Iterator<Item = (usize, f32)>) {
        let mut values = Vec::with_capacity(self.outputs * self.inputs);
        (0..self.outputs).for_each(|row| self.push_row(row, &mut values));
        for (channel, factor) in channels {
            values[channel * self.inputs..][..self.inputs].iter_mut().for_each(|w| *w *= factor);
            if let Some(bias) = &mut self.bias {
                bias[channel] *= factor;
            }
        }
        self.weight = Weight::Stored(StoredTensor::from_f32(&values, vec![self.outputs, self.inputs]));
    }

    fn run(&self, x: &[f32], y: &mut [f32], store: Accumulate) {
        match &self.weight {
            Weight::Coded(weight) => weight.multiply_to(x, y, store),
            Weight::Stored(weight) => match weight.as_f32() {
                Some(weight) => self.multiply(weight, x, y, self.outputs, store),
                None if x.len() <= FEW * self.inputs => self.by_small_tiles(weight, x, y, store),
                None => self.by_large_tiles(weight, x, y, store),
            },
        }
        if let Some(bias) = &self.bias {
            for row in y.chunks_exact_mut(self.outputs) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
    }

    /// Each thread takes complete tiles. A tile takes little time with few tokens, so threads hardly wait for
    /// each other.
    fn by_small_tiles(&self, weight: &StoredTensor, x: &[f32], y: &mut [f32], store: Accumulate) {
        let rows = self.tile_rows(SMALL_TILE);
        let n = x.len() / self.inputs;
        let memory = || vec![0.0; rows.min(self.outputs) * self.inputs];
        let one = |tile: &mut Vec<f32>, first: usize| {
            let rows = rows.min(self.outputs - first);
            let tile = &mut tile[..rows * self.inputs];
            weight.expand_rows(first, tile);
            let mut part = vec![0.0; n * rows];
            self.multiply(tile, x, &mut part, rows, Accumulate::Replace);
            part
        };
        let firsts = (0..self.outputs).step_by(rows);
        let tiles: Vec<_> = if self.outputs * self.inputs < PARALLEL_FROM {
            let mut tile = memory();
            firsts.clone().map(|first| one(&mut tile, first)).collect()
        } else {
            (0..self.outputs).into_par_iter().step_by(rows).map_init(memory, one).collect()
        };
        for (first, part) in firsts.zip(tiles) {
            let rows = rows.min(self.outputs - first);
            for (y, part) in y.chunks_exact_mut(self.outputs).zip(part.chunks_exact(rows)) {
                put(&mut y[first..][..rows], part, store);
            }
        }
    }

    /// All threads expand and multiply one tile at a time.
    fn by_large_tiles(&self, weight: &StoredTensor, x: &[f32], y: &mut [f32], store: Accumulate) {
        let (rows, small) = (self.tile_rows(LARGE_TILE), self.tile_rows(SMALL_TILE));
        let mut tile = vec![0.0; rows.min(self.outputs) * self.inputs];
        for first in (0..self.outputs).step_by(rows) {
            let tile = &mut tile[..rows.min(self.outputs - first) * self.inputs];
            tile.par_chunks_mut(small * self.inputs)
                .enumerate()
                .for_each(|(i, tile)| weight.expand_rows(first + i * small, tile));
            self.multiply(tile, x, &mut y[first..], self.outputs, store);
        }
    }

    /// Rows of a tile of about `values` values.
    fn tile_rows(&self, values: usize) -> usize {
        (values / self.inputs).max(1)
    }

    /// Multiplies complete rows of the weight. The outputs go to the start of `y` and to every `stride`
    /// values after it.
    fn multiply(&self, weight: &[f32], x: &[f32], y: &mut [f32], stride: usize, store: Accumulate) {
        let (n, rows) = (x.len() / self.inputs, weight.len() / self.inputs);
        product(
            &mut MatMut::new(y, n, rows, stride),
            Mat::new(x, n, self.inputs, self.inputs),
            Mat::new(weight, rows, self.inputs, self.inputs).transposed(),
            1.0,
            store,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{NumberKind, TensorFormat};
    use half::{bf16, f16};

    fn painted(len: usize, seed: u64) -> Vec<f32> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..len).map(|_| bf16::from_f32(rng.f32() - 0.5).to_f32()).collect()
    }

    fn stored(name: &str, bytes: Vec<u8>, shape: Vec<usize>) -> StoredTensor {
        StoredTensor::new(TensorFormat::Plain(NumberKind::named(name).unwrap()), shape, bytes.into()).unwrap()
    }

    /// More rows than a tile of either kind holds, with fewer and with more than `FEW` tokens.
    #[test]
    fn tiles_give_what_the_whole_gives() {
        let (outputs, inputs) = (2 * LARGE_TILE / 288 + 5, 288);
        let (values, bias) = (painted(outputs * inputs, 1), painted(outputs, 2));
        let shape = || vec![outputs, inputs];
        let f32s = Linear::new(StoredTensor::from_f32(&values, shape()), Some(bias.clone()));
        let halves = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let brains = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        // The scale is 1, so codes equal values.
        let block = |i: usize| [f16::ONE.to_le_bytes().as_slice(), &[i as u8; 32]].concat();
        let bytes: Vec<u8> = (0..outputs * inputs / 32).flat_map(block).collect();
        let eights = stored("Q8_0", bytes, shape());
        let expanded = Linear::new(StoredTensor::from_f32(&eights.to_f32(), shape()), None);
        let pairs = [
            (Linear::new(stored("F16", halves, shape()), Some(bias.clone())), &f32s),
            (Linear::new(stored("BF16", brains, shape()), Some(bias)), &f32s),
            (Linear::new(eights, None), &expanded),
        ];
        for n in [1, 3, FEW, FEW + 1] {
            let (x, before) = (painted(n * inputs, 3), painted(n * outputs, 4));
            for (tiled, whole) in &pairs {
                let mut sums = before.clone();
                tiled.forward_add(&x, &mut sums);
                let largest = whole.forward(&x).iter().fold(1.0f32, |most, y| most.max(y.abs()));
                let wanted = whole.forward(&x);
                for ((got, sum), (want, before)) in
                    tiled.forward(&x).iter().zip(&sums).zip(wanted.iter().zip(&before))
                {
                    assert!(
                        (got - want).abs() < 1e-5 * largest && (sum - want - before).abs() < 1e-5 * largest
                    );
                }
            }
        }
        let mut row = vec![7.0];
        pairs[0].0.push_row(outputs - 1, &mut row);
        assert_eq!(row[1..], values[(outputs - 1) * inputs..]);
    }
}
