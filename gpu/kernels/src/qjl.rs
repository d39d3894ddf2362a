//! `qjl_sketch` and `qjl_correct`: the 1-bit residual of TurboQuant's Algorithm 2 (arXiv 2504.19874, section
//! 3.2).
//!
//! With S a matrix of N(0, 1) entries, a residual r is kept as sign(S r) and |r|. The estimate of <q, r> is
//! |r| sqrt(pi/2) / m * sum of sign_j (S q)_j over m rows. It is unbiased, but at equal bits it is worse than
//! one more bit of codebook. It exists for callers that need an unbiased estimate.

use crate::args::{QjlCorrect, QjlSketch};
use crate::decode::store_element;
use crate::encode::{element, load_element, load_row};
use crate::threads::{Threads, divide, first, kv_head_of, load_f32};
use crate::warp::{Lane, Warp};
use tqkv_core::unstable::machine::{Isa, Lanes};
use tqkv_core::unstable::scalar;

/// sqrt(pi / 2).
const SQRT_HALF_PI: f32 = 1.253_314_1;

/// S r for one vector. Row 32 k + i of S is in thread i of value k. Sums run over columns in order.
/// `transposed` is S^T, `[32 G columns, 32 G rows]` in f32, so that reads are contiguous.
#[inline(always)]
fn project<T: Threads, const G: usize>(transposed: T::Memory, row: T::Memory) -> [Lane<T>; G] {
    let mut sums = [Lane(T::splat(0.0)); G];
    for column in 0..32 * G as u32 {
        let value = Lane(T::splat(f32::from_bits(T::read(row, 4 * column))));
        let entries = T::at(transposed, u64::from(column) * u64::from(128 * G as u32));
        for (k, sum) in sums.iter_mut().enumerate() {
            let offset = T::map(T::lane(), |lane| 4 * (32 * k as u32 + lane));
            *sum = *sum + Lane(load_f32::<T>(entries, offset)) * value;
        }
    }
    sums
}

/// Sketches residual `warp` of `count`.
#[inline(always)]
pub fn qjl_sketch<T: Threads, const G: usize>(warp: u32, args: QjlSketch<T::Memory>) {
    if warp >= args.count {
        return;
    }
    let y = load_row::<T, G>(args.residuals, warp, element::F32);
    let isa = Warp::<T>::new();
    let norm = isa.sqrt(scalar::norm_squared(isa, &y));
    let row = T::at(args.residuals, u64::from(warp) * u64::from(128 * G as u32));
    let sums = project::<T, G>(args.transposed, row);
    let signs = T::at(args.signs, u64::from(warp) * 4 * G as u64);
    for (k, sum) in sums.iter().enumerate() {
        let word = T::ballot(T::map(sum.0, |v| v >= 0.0));
        T::store::<1>(signs, T::splat(4 * k as u32), T::splat([word]), first::<T>());
    }
    let at = T::at(args.norms, 4 * u64::from(warp));
    T::store::<1>(at, T::splat(0), T::splat([norm.to_bits()]), first::<T>());
}

/// Adds the estimate of <q, r> to score `warp` of `tokens * num_heads`.
#[inline(always)]
pub fn qjl_correct<T: Threads, const G: usize>(warp: u32, args: QjlCorrect<T::Memory>) {
    let QjlCorrect { num_heads, tokens, num_kv_heads, .. } = args;
    if warp >= tokens * num_heads {
        return;
    }
    let (token, head) = divide(warp, num_heads);
    let row = token * num_kv_heads + kv_head_of(head, num_heads, num_kv_heads);
    let signs = T::at(args.signs, u64::from(row) * 4 * G as u64);
    let mut sum = Lane::<T>(T::splat(0.0));
    for (g, query) in load_row::<T, G>(args.sketched, head, element::F32).into_iter().enumerate() {
        sum = sum + query.flip(!T::read(signs, 4 * g as u32));
    }
    let norm = f32::from_bits(T::read(T::at(args.norms, 4 * u64::from(row)), 0));
    let estimate = sum.sum() * (norm * (SQRT_HALF_PI / (32 * G) as f32));
    let place = T::at(args.scores, u64::from(element::bytes(args.kind)) * u64::from(warp));
    let at = |_size| T::splat(0);
    let total = T::map(load_element::<T>(place, args.kind, at), |score| score + estimate);
    // All threads have read the score.
    T::sync();
    store_element::<T>(place, args.kind, at, total, first::<T>());
}
