//! `rotate_queries` and `scores`: dot products on codes, bit-identical to the CPU's.
//!
//! For attention use [`crate::attend`], which reads the codes of keys and values in one launch.

use crate::args::{RotateQueries, Scores};
use crate::decode;
use crate::encode::{load_row, rotate, rows_of, zero_if_finite};
use crate::format::Blocks;
use crate::page;
use crate::threads::{Threads, divide, first, kv_head_of, load_f32, store_f32};
use crate::warp::Lane;
use tqkv_core::unstable::machine::Lanes;

/// Rotates query `warp` of `count` and multiplies it by `factor`. [`scores`] needs the factor 1/dim, and
/// [`crate::attend`] needs log2(e) / (dim sqrt(dim)). With `rotated` = 0, for f16 rows, it does not rotate.
/// If a coordinate is not finite before or after the rotation, the result is NaN in all coordinates.
#[inline(always)]
pub fn rotate_queries<T: Threads, const G: usize>(warp: u32, args: RotateQueries<T::Memory>) {
    if warp >= args.count {
        return;
    }
    let (token, head) = divide(warp, args.heads);
    let rows = rows_of::<T>(args.queries, token, args.token_stride, args.kind);
    let mut y = load_row::<T, G>(rows, head, args.kind);
    if args.rotated != 0 {
        rotate(args.signs, &mut y);
    }
    let factor = Lane(T::splat(args.factor + zero_if_finite(&y)));
    let out = T::at(args.out, u64::from(warp) * u64::from(128 * G as u32));
    for (g, &v) in y.iter().enumerate() {
        let offset = T::map(T::lane(), |lane| 4 * (32 * g as u32 + lane));
        store_f32::<T>(out, offset, (v * factor).0);
    }
}

/// Computes one score: query head `warp % num_heads` against the key at position `warp / num_heads` of
/// `sequence`. It does not divide by sqrt(dim).
#[inline(always)]
pub fn scores<T: Threads, F: Blocks<G>, const G: usize>(warp: u32, args: Scores<T::Memory>) {
    let Scores { num_heads, page_table, max_pages, sequence, tokens, num_kv_heads, .. } = args;
    if warp >= tokens * num_heads {
        return;
    }
    let (position, head) = divide(warp, num_heads);
    let page = T::read(page_table, 4 * (sequence * max_pages + position / page::SLOTS));
    let (dim, kv_head) = (32 * G as u32, kv_head_of(head, num_heads, num_kv_heads));
    let stride = num_kv_heads * page::head_bytes(dim, F::BITS);
    let home = T::at(args.pool, page::head_offset(page, stride, kv_head, dim, F::BITS));
    let slot = position % page::SLOTS;
    let levels = F::read::<T>(home, slot * page::row_bytes(dim, F::BITS));
    let mut sum = Lane::<T>(T::splat(0.0));
    for (g, &level) in levels.iter().enumerate() {
        let offset = T::map(T::lane(), |lane| 4 * (head * dim + 32 * g as u32 + lane));
        sum = sum + Lane(load_f32::<T>(args.rotated, offset)) * level;
    }
    let score = sum.sum() * decode::scale::<T, F, G>(home, page::scale_offset(dim, F::BITS, slot));
    let word = T::splat([score.to_bits()]);
    T::store::<1>(T::at(args.out, 4 * u64::from(warp)), T::splat(0), word, first::<T>());
}
