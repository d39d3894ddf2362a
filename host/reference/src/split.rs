//! `c25`, `c35`: the half of the channels with the most energy has one more bit. Each half is rotated on its
//! own.
//!
//! Channels are coordinates of the vector before any rotation. After a rotation all channels are alike, and
//! two widths would gain nothing. The channels with the most energy are learned from vectors and stored once,
//! not in the blocks. Before learning they are the first half. A block is the norms of both halves (f16) and
//! their codes, the wide half first.

use crate::bits;
use crate::format::{Format, Layer, Norm};
use crate::levels::Levels;
use crate::rotation::{Rotation, RotationKind, dot};
use std::sync::Arc;
use tqkv_core::{DecodeError, EncodeError};

/// The parameters of a row: bits of the channels with the most energy, and of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitForm {
    pub(crate) wide: usize,
    pub(crate) narrow: usize,
}

impl SplitForm {
    pub(crate) const fn block_bytes(self, dim: usize) -> usize {
        2 * NORM.bytes() + dim / 2 * (self.wide + self.narrow) / 8
    }
}

const NORM: Norm = Norm::F16;
/// Difference between the seeds of the two rotations of a layer.
const NARROW_SEED: u64 = 250;

/// Channels by their energy: the half with the most, ascending, then the other half, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels(Vec<usize>);

impl Channels {
    /// Channels in their own order.
    pub fn in_order(dim: usize) -> Self {
        Self((0..dim).collect())
    }

    /// Orders channels by their energy in `vectors`, `[n, dim]`. Equal channels stay in ascending order.
    pub fn learn(vectors: &[f32], dim: usize) -> Self {
        let mut energy = vec![0.0; dim];
        for x in vectors.chunks_exact(dim) {
            energy.iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
        }
        let mut order: Vec<usize> = (0..dim).collect();
        order.sort_by(|&a, &b| energy[b].total_cmp(&energy[a]));
        let (wide, narrow) = order.split_at_mut(dim / 2);
        wide.sort_unstable();
        narrow.sort_unstable();
        Self(order)
    }

    /// Channels. The half with the most energy comes first.
    pub fn order(&self) -> &[usize] {
        &self.0
    }
}

#[derive(Clone, Debug)]
struct Half {
    bits: usize,
    levels: Levels,
    rotation: Rotation,
}

#[derive(Clone, Debug)]
pub(crate) struct Split {
    channels: Channels,
    halves: Arc<[Half; 2]>,
}

impl Split {
    /// The same with other channels.
    pub(crate) fn with_channels(&self, channels: Channels) -> Self {
        Self { channels, halves: self.halves.clone() }
    }

    pub(crate) fn new(form: SplitForm, layer: Layer) -> Option<Self> {
        let half = |bits: usize, seed: u64| {
            let dim = layer.dim / 2;
            let rotation = Rotation::new(RotationKind::Dense, dim, seed, layer.layer)?;
            Some(Half { bits, levels: Levels::exact(dim, bits)?, rotation })
        };
        let halves = [half(form.wide, layer.seed)?, half(form.narrow, layer.seed.wrapping_add(NARROW_SEED))?];
        Some(Self { channels: Channels::in_order(layer.dim), halves: Arc::new(halves) })
    }
}

impl Half {
    fn sigmas(&self, dim: usize) -> f64 {
        libm::sqrt(dim as f64)
    }

    fn encode(&self, x: &[f64], norm: &mut [u8], codes: &mut [u8]) -> Result<(), EncodeError> {
        let length = libm::sqrt(dot(x, x));
        NORM.store(length, norm)?;
        let unit: Vec<f64> = x.iter().map(|x| if length > 0.0 { x / length } else { 0.0 }).collect();
        let y = self.rotation.apply(&unit);
        let scalar: Vec<u8> = y.iter().map(|y| self.levels.code(y * self.sigmas(x.len()))).collect();
        bits::pack(&scalar, self.bits, codes);
        Ok(())
    }

    fn decode(&self, norm: f64, codes: &[u8], dim: usize) -> Vec<f64> {
        let scale = norm / self.sigmas(dim);
        let level = |i| scale * self.levels.level(bits::code(codes, self.bits, i));
        self.rotation.invert(&(0..dim).map(level).collect::<Vec<_>>())
    }
}

impl Format for Split {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let half = x.len() / 2;
        let ordered: Vec<f64> = self.channels.0.iter().map(|&channel| x[channel]).collect();
        let mut written = vec![0; block.len()];
        let (norms, codes) = written.split_at_mut(2 * NORM.bytes());
        let (first, second) = codes.split_at_mut(half * self.halves[0].bits / 8);
        let norms = norms.chunks_exact_mut(NORM.bytes()).zip([first, second]);
        for ((x, of), (norm, codes)) in ordered.chunks_exact(half).zip(&*self.halves).zip(norms) {
            of.encode(x, norm, codes)?;
        }
        block.copy_from_slice(&written);
        Ok(())
    }

    fn decode(&self, mut block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let half = self.channels.0.len() / 2;
        let norms = [NORM.load(&mut block)?, NORM.load(&mut block)?];
        let (first, second) = block.split_at(half * self.halves[0].bits / 8);
        let parts = self.halves.iter().zip(norms).zip([first, second]);
        let ordered = parts.flat_map(|((of, norm), codes)| of.decode(norm, codes, half));
        let mut x = vec![0.0; 2 * half];
        self.channels.0.iter().zip(ordered).for_each(|(&channel, value)| x[channel] = value);
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channels_with_the_most_energy_come_first() {
        let channels = Channels::learn(&[1.0, -5.0, 0.5, 4.0, 1.0, 5.0, 0.5, -4.0], 4);
        assert_eq!(channels.order(), [1, 3, 0, 2]);
        assert_eq!(Channels::learn(&[1.0; 4], 4), Channels::in_order(4));
    }
}
