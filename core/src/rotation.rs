//! The rotation: seeded random signs, then a Hadamard transform.
//!
//! y = H * diag(signs) * x, unnormalised here (|y|^2 = dim * |x|^2); 1/dim enters where a result
//! is scaled. The signs are not an ornament: without them a vector with a common offset loses more
//! than half of its energy, because the offset is itself a row of H.
//!
//! The stage order is part of the numerics contract: the Paley factor first (rows in order, each
//! sum from the left), then Sylvester butterflies with strides 1, 2, 4, ...

use crate::head_dim::{GROUP, HeadDim, MAX_GROUPS, MAX_HEAD_DIM};
use crate::lanes::{Isa, Lanes, Memory};
use crate::paley;

/// Random signs, one bit a coordinate: bit set means -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signs {
    words: [u32; MAX_GROUPS],
}

impl Signs {
    /// Draws `dim` signs (at most 1024) from `seed` by SplitMix64: one draw a coordinate, top bit
    /// set means -1.
    pub const fn from_seed(seed: u64, dim: usize) -> Self {
        let (mut words, mut state, mut i) = ([0; MAX_GROUPS], seed, 0);
        while i < dim && i < MAX_HEAD_DIM {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            words[i / GROUP] |= ((z >> 63) as u32) << (i % GROUP);
            i += 1;
        }
        Self { words }
    }

    /// Sign bits of group `g`, bit i for lane i.
    #[inline(always)]
    pub const fn group(&self, g: usize) -> u32 {
        self.words[g % MAX_GROUPS]
    }

    /// Whether coordinate `i` is negated.
    pub const fn is_negative(&self, i: usize) -> bool {
        self.group(i / GROUP) >> (i % GROUP) & 1 != 0
    }
}

/// Applies the signs to registers, one group each.
#[inline(always)]
pub fn flip<V: Lanes>(signs: &Signs, y: &mut [V]) {
    for (g, v) in y.iter_mut().enumerate() {
        *v = v.flip(signs.group(g));
    }
}

/// Sylvester butterflies over registers: strides 1, 2, 4, ... below `order`.
///
/// `order` divides the number of lanes; the transform is its own transpose.
#[inline(always)]
pub fn sylvester<V: Lanes>(y: &mut [V], order: usize) {
    for v in y.iter_mut() {
        if order > 1 {
            *v = v.butterfly::<1>();
        }
        if order > 2 {
            *v = v.butterfly::<2>();
        }
        if order > 4 {
            *v = v.butterfly::<4>();
        }
        if order > 8 {
            *v = v.butterfly::<8>();
        }
        if order > 16 {
            *v = v.butterfly::<16>();
        }
    }
    let mut stride = 1;
    while stride < order / GROUP {
        for block in y.chunks_exact_mut(2 * stride) {
            let (low, high) = block.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride *= 2;
    }
}

/// Multiplies by (Paley matrix of `order`) Kronecker (identity): out[r * m + j] = sum over c of
/// +-x[c * m + j], with m = x.len() / order. `x` and `out` have the same length.
#[inline(always)]
fn paley_times(rows: &[u64], x: &[f32], out: &mut [f32]) {
    let m = x.len() / rows.len().max(1);
    if m == 0 {
        return;
    }
    for (sum, &row) in out.chunks_exact_mut(m).zip(rows) {
        sum.fill(0.0);
        for (c, part) in x.chunks_exact(m).enumerate() {
            if row >> c & 1 == 0 {
                for (s, &v) in sum.iter_mut().zip(part) {
                    *s += v;
                }
            } else {
                for (s, &v) in sum.iter_mut().zip(part) {
                    *s -= v;
                }
            }
        }
    }
}

/// Loads up to 32 coordinates a group; lanes past the end are 0.
#[inline(always)]
pub fn load<I: Isa>(isa: I, x: &[f32], y: &mut [I::V]) {
    let (whole, rest) = x.as_chunks::<GROUP>();
    for (v, group) in y.iter_mut().zip(whole) {
        *v = isa.load(group);
    }
    if !rest.is_empty()
        && let Some(v) = y.get_mut(whole.len())
    {
        let mut last = [0.0; GROUP];
        for (lane, &value) in last.iter_mut().zip(rest) {
            *lane = value;
        }
        *v = isa.load(&last);
    }
}

/// Writes registers to memory, dropping the lanes past the end of `out`.
#[inline(always)]
pub fn store<I: Memory>(isa: I, y: &[I::V], out: &mut [f32]) {
    let (whole, rest) = out.as_chunks_mut::<GROUP>();
    for (group, &v) in whole.iter_mut().zip(y) {
        isa.store(v, group);
    }
    if let Some(&v) = y.get(whole.len()) {
        let mut last = [0.0; GROUP];
        isa.store(v, &mut last);
        for (value, lane) in rest.iter_mut().zip(last) {
            *value = lane;
        }
    }
}

/// y = H diag(signs) x on registers that hold x already; the transform of every power of two.
#[inline(always)]
pub fn forward_registers<V: Lanes>(signs: &Signs, y: &mut [V], dim: usize) {
    flip(signs, y);
    sylvester(y, dim);
}

/// Rotates registers that hold x in place, for any head dim. `y` has one register a group.
#[inline(always)]
pub fn forward<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    flip(signs, y);
    paley_registers(isa, shape, false, y);
    sylvester(y, shape.sylvester());
}

/// x = diag(signs) H^T y in place: the inverse of [`forward`] but for the factor 1/dim.
#[inline(always)]
pub fn inverse<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    sylvester(y, shape.sylvester());
    paley_registers(isa, shape, true, y);
    flip(signs, y);
}

/// The Paley factor on registers, by way of memory: its rows do not fall on lane boundaries.
#[inline(always)]
fn paley_registers<I: Memory>(isa: I, shape: HeadDim, transposed: bool, y: &mut [I::V]) {
    if shape.order() > 1 {
        let mut memory = [0.0; MAX_HEAD_DIM];
        let x = &mut memory[..shape.dim().min(MAX_HEAD_DIM)];
        store(isa, y, x);
        paley_in_place(paley::rows(shape.order(), transposed), x);
        load(isa, x, y);
    }
}

/// Out of line, so that powers of two do not carry the buffer on their stack.
#[inline(never)]
fn paley_in_place(rows: &[u64], x: &mut [f32]) {
    let mut copy = [0.0; MAX_HEAD_DIM];
    if let Some(copy) = copy.get_mut(..x.len()) {
        copy.copy_from_slice(x);
        paley_times(rows, copy, x);
    }
}
