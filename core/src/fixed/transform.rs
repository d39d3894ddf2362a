//! The exact integer Hadamard transform, in registers of four or eight at a time.
//!
//! Stages of a Hadamard transform commute in exact arithmetic, so each caller fuses the stages
//! that suit it into its own loads and stores, and this file does the ones between. Orders and
//! strides are known to the compiler wherever a codec calls.

use crate::paley::{self, MAX_ORDER};

/// Strides 2 and 1 on four values.
#[inline(always)]
pub(super) const fn four([a, b, c, d]: [i32; 4]) -> [i32; 4] {
    let (e, f, g, h) = (a + c, b + d, a - c, b - d);
    [e + f, e - f, g + h, g - h]
}

/// Strides 4, 2 and 1 on eight values.
#[inline(always)]
pub(super) const fn eight([a, b, c, d, e, f, g, h]: [i32; 8]) -> [i32; 8] {
    let [a0, b0, c0, d0] = four([a + e, b + f, c + g, d + h]);
    let [a1, b1, c1, d1] = four([a - e, b - f, c - g, d - h]);
    [a0, b0, c0, d0, a1, b1, c1, d1]
}

/// Strides 2 `H` and `H`; `N` is 4 `H`.
#[inline(always)]
fn pass_four<const H: usize, const N: usize>(y: &mut [i32]) {
    for block in y.as_chunks_mut::<N>().0 {
        for i in 0..H {
            [block[i], block[i + H], block[i + 2 * H], block[i + 3 * H]] =
                four([block[i], block[i + H], block[i + 2 * H], block[i + 3 * H]]);
        }
    }
}

/// Stride `H`; `N` is 2 `H`.
#[inline(always)]
fn pass_two<const H: usize, const N: usize>(y: &mut [i32]) {
    for block in y.as_chunks_mut::<N>().0 {
        for i in 0..H {
            (block[i], block[i + H]) = (block[i] + block[i + H], block[i] - block[i + H]);
        }
    }
}

/// The stages with strides `order / 2` down to `rest`, powers of two.
#[inline(always)]
pub(super) fn stages(y: &mut [i32], mut order: usize, rest: usize) {
    while order >= 4 * rest {
        match order {
            4 => pass_four::<1, 4>(y),
            8 => pass_four::<2, 8>(y),
            16 => pass_four::<4, 16>(y),
            32 => pass_four::<8, 32>(y),
            64 => pass_four::<16, 64>(y),
            128 => pass_four::<32, 128>(y),
            256 => pass_four::<64, 256>(y),
            512 => pass_four::<128, 512>(y),
            _ => pass_four::<256, 1024>(y),
        }
        order /= 4;
    }
    if order >= 2 * rest {
        match order {
            2 => pass_two::<1, 2>(y),
            4 => pass_two::<2, 4>(y),
            8 => pass_two::<4, 8>(y),
            16 => pass_two::<8, 16>(y),
            32 => pass_two::<16, 32>(y),
            64 => pass_two::<32, 64>(y),
            128 => pass_two::<64, 128>(y),
            256 => pass_two::<128, 256>(y),
            512 => pass_two::<256, 512>(y),
            _ => pass_two::<512, 1024>(y),
        }
    }
}

/// (Paley matrix of `order` or its transpose) Kronecker identity, in place; order 1 does nothing.
#[inline(always)]
pub(super) fn paley(y: &mut [i32], order: usize, transposed: bool) {
    if order > 1 {
        paley_rows(y, paley::rows(order, transposed));
    }
}

#[inline(never)]
fn paley_rows(y: &mut [i32], rows: &[u64]) {
    let stride = y.len() / rows.len().max(1);
    for column in 0..stride {
        let mut copy = [0; MAX_ORDER];
        for (to, &from) in copy.iter_mut().zip(y.iter().skip(column).step_by(stride)) {
            *to = from;
        }
        for (value, &row) in y.iter_mut().skip(column).step_by(stride).zip(rows) {
            let signed = copy.iter().enumerate().map(|(c, &v)| if row >> c & 1 == 0 { v } else { -v });
            *value = signed.sum();
        }
    }
}
