//! The rotation: seeded random signs, then a Hadamard transform.
//!
//! y = H * diag(signs) * x, unnormalised here (|y|^2 = dim * |x|^2); the factor 1/dim is applied where a
//! result is scaled. The signs are necessary: without them a vector with a common offset loses more than half
//! of its energy. The reason is that the offset is itself a row of H.
//!
//! The stage order is part of the numerics contract. The Paley factor comes first (rows in order, each sum
//! from the left), then Sylvester butterflies with strides 1, 2, 4, ...

pub(crate) mod paley;

use crate::head_dim::{GROUP, HeadDim, MAX_GROUPS, MAX_HEAD_DIM};
use crate::machine::{Isa, Lanes, Memory};

/// Random signs, one bit per coordinate: a set bit means -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Signs {
    words: [u32; MAX_GROUPS],
}

impl Signs {
    /// Draws `dim` signs (at most 1024) from `seed` by SplitMix64. Each coordinate takes one draw; a set top
    /// bit means -1.
    pub(crate) const fn from_seed(seed: u64, dim: usize) -> Self {
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

    /// Returns true if coordinate `i` is negated.
    pub const fn is_negative(&self, i: usize) -> bool {
        self.group(i / GROUP) >> (i % GROUP) & 1 != 0
    }
}

/// Applies the signs to registers; each register is one group.
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

/// Loads up to 32 coordinates per group; lanes past the end are 0.
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

/// Writes registers to memory; lanes past the end of `out` are dropped.
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

/// Rotates registers that hold x in place, for any head dim. `y` has one register per group.
#[inline(always)]
pub(crate) fn forward<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    flip(signs, y);
    if shape.order() != 1 {
        paley_apart(isa, shape, false, y);
    }
    sylvester(y, shape.sylvester());
}

/// [`forward`] as a separate function, for shapes that the compiler does not know.
pub(crate) fn forward_apart<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    isa.apart(
        #[inline(always)]
        |isa| forward(isa, shape, signs, y),
    );
}

/// [`inverse`] as a separate function.
pub(crate) fn inverse_apart<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    isa.apart(
        #[inline(always)]
        |isa| inverse(isa, shape, signs, y),
    );
}

/// x = diag(signs) H^T y in place: the inverse of [`forward`] except for the factor 1/dim.
#[inline(always)]
pub(crate) fn inverse<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    sylvester(y, shape.sylvester());
    if shape.order() != 1 {
        paley_apart(isa, shape, true, y);
    }
    flip(signs, y);
}

/// Rotates each quarter of the coordinates by itself: y = 2 * diag(H, H, H, H) * diag(signs) * x, with H of
/// order dim / 4. The factor gives |y|^2 = dim * |x|^2, as for whole vectors. The head dim is a power of two
/// from 64 on.
pub(crate) fn quarters_forward_apart<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    isa.apart(
        #[inline(always)]
        |_| {
            flip(signs, y);
            quarters(shape, y);
        },
    );
}

/// The inverse of [`quarters_forward_apart`] except for the factor 1/dim: its transpose.
pub(crate) fn quarters_inverse_apart<I: Memory>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    isa.apart(
        #[inline(always)]
        |_| {
            quarters(shape, y);
            flip(signs, y);
        },
    );
}

#[inline(always)]
fn quarters<V: Lanes>(shape: HeadDim, y: &mut [V]) {
    sylvester(y, shape.dim() / 4);
    for v in y {
        *v = *v + *v;
    }
}

/// [`paley_registers`] as a separate function.
fn paley_apart<I: Memory>(isa: I, shape: HeadDim, transposed: bool, y: &mut [I::V]) {
    isa.apart(
        #[inline(always)]
        |isa| paley_registers(isa, shape, transposed, y),
    );
}

/// Multiplies by (Paley matrix) Kronecker (identity of `m = dim / order`): out[r m + j] is the sum over c,
/// from the left, of +-x[c m + j].
///
/// Lane l of group g belongs to row r = (32 g + l) / m. Part c of x is therefore repeated over the lanes. It
/// is then flipped by the entries (r, c), which are bits of one row of the transposed matrix.
#[inline(always)]
fn paley_registers<I: Memory>(isa: I, shape: HeadDim, transposed: bool, y: &mut [I::V]) {
    let mut memory = [0.0; MAX_HEAD_DIM];
    let x = &mut memory[..shape.dim().min(MAX_HEAD_DIM)];
    store(isa, y, x);
    let columns = paley::rows(shape.order(), !transposed);
    match shape.sylvester() {
        4 => paley_short::<I, 4>(isa, columns, x, y),
        8 => paley_short::<I, 8>(isa, columns, x, y),
        16 => paley_short::<I, 16>(isa, columns, x, y),
        m => paley_long(isa, columns, m / GROUP, x, y),
    }
    if shape.is_ragged()
        && let Some(last) = y.last_mut()
    {
        // Lanes past the last row hold sums of parts of x; the copy drops them.
        let mut lanes = [0.0; GROUP];
        isa.store(*last, &mut lanes);
        lanes[GROUP / 2..].fill(0.0);
        *last = isa.load(&lanes);
    }
}

/// [`paley_registers`] for parts of `M` < 32 coordinates: several rows per register.
#[inline(always)]
fn paley_short<I: Memory, const M: usize>(isa: I, columns: &[u64], x: &[f32], y: &mut [I::V]) {
    let parts = x.as_chunks::<M>().0;
    for (g, out) in y.iter_mut().enumerate() {
        let mut sum = isa.splat(0.0);
        for (part, &column) in parts.iter().zip(columns) {
            let entries = column >> (GROUP / M * g);
            sum = sum + isa.repeat(part).flip(widen_bits::<M>(entries));
        }
        *out = sum;
    }
}

/// Bit l is bit l / M of `entries`.
#[inline(always)]
const fn widen_bits<const M: usize>(entries: u64) -> u32 {
    let mut x = entries as u32;
    if M == 16 {
        x = (x & 1) | (x & 2) << 15;
    } else if M == 8 {
        x = (x & 3) | (x & 12) << 14;
        x = (x | x << 7) & 0x0101_0101;
    } else {
        x = (x & 15) | (x & 240) << 12;
        x = (x | x << 6) & 0x0303_0303;
        x = (x | x << 3) & 0x1111_1111;
    }
    x * ((1 << M) - 1)
}

/// [`paley_registers`] for parts of `width` whole groups.
#[inline(always)]
fn paley_long<I: Memory>(isa: I, columns: &[u64], width: usize, x: &[f32], y: &mut [I::V]) {
    let groups = x.as_chunks::<GROUP>().0;
    for (r, out) in y.chunks_exact_mut(width.max(1)).enumerate() {
        for (k, out) in out.iter_mut().enumerate() {
            let mut sum = isa.splat(0.0);
            for (part, &column) in groups.chunks_exact(width.max(1)).zip(columns) {
                if let Some(part) = part.get(k) {
                    sum = sum + isa.load(part).flip(0u32.wrapping_sub((column >> r & 1) as u32));
                }
            }
            *out = sum;
        }
    }
}
