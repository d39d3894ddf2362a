//! The exact integer Hadamard transform, four values at a time.
//!
//! Stages of a Hadamard transform commute in exact arithmetic. Each caller therefore fuses the stages that
//! suit it into its own loads and stores, and this file runs the stages between. The compiler knows orders
//! and strides wherever a codec calls.

use crate::rotation::paley::{self, MAX_ORDER};

/// Costs no instruction, but keeps the compiler from unrolling the loop around it. Four iterations at once
/// need more registers than Cortex-M has, and spilling makes the loop half as slow again.
#[inline(always)]
pub(super) fn stay_rolled() {
    core::hint::black_box(());
}

/// Strides 2 and 1 on four values.
#[inline(always)]
pub(super) const fn four([a, b, c, d]: [i32; 4]) -> [i32; 4] {
    let (e, f, g, h) = (a + c, b + d, a - c, b - d);
    [e + f, e - f, g + h, g - h]
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

/// The stages with strides `order / 2` down to `rest`; both are powers of two.
///
/// The passes are a straight list, so that with constant arguments only the passes that run are compiled.
#[inline(always)]
pub(super) fn stages(y: &mut [i32], mut order: usize, rest: usize) {
    macro_rules! passes {
        ($pass:ident, $radix:literal: $($n:literal)*) => {
            $(if order == $n && order >= $radix * rest {
                $pass::<{ $n / $radix }, $n>(y);
                order /= $radix;
            })*
        };
    }
    passes!(pass_four, 4: 1024 512 256 128 64 32 16 8 4);
    passes!(pass_two, 2: 1024 512 256 128 64 32 16 8 4 2);
    debug_assert!(order <= rest);
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
