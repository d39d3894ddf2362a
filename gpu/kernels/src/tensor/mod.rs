//! `attend` on tensor cores: up to eight query heads share every code that is read.
//!
//! All products are exact integers. Levels have 8 bits ([`planes`](crate::planes)) and queries have 16.
//! Weights have 16 bits, relative to the largest of their page. The tiles are those of `mma.m16n8k32`. Thread
//! 4 g + t of a warp holds parts of rows g and g + 8 and of columns 2 t and 2 t + 1.
//!
//! ```text
//! for each page of 64 tokens:
//!     logits   16 tokens x coordinates  times  coordinates x (4 heads x 2 digits)              four times
//!     softmax  thread (g, t): tokens 8 k + g of head t; a maximum for the page
//!     values   (pairs of coordinates) x (16 tokens x 2)  times  (16 tokens x 2) x (4 heads x 2)  four times
//! ```
//!
//! A row of value codes holds two coordinates of a token side by side. So a weight is in the column of its
//! coordinate, and the other column has a zero. Thread (g, t) ends up with the sums of head t, whose softmax
//! it has.
//!
//! Eight heads are two sets of four: heads 2 t and 2 t + 1 are head t of each set. Then the columns of logits
//! are 8 heads x 1 digit, with a product for each digit, and a thread gets the logits of its two heads. The sums of
//! values take the weights of each set, and the levels are looked up once for both.
//!
//! If registers suffice, the tiles of a page are unrolled. Then nothing in a page is counted at run time, and
//! tokens after the end have no weight. The codes of a tile are loaded before the tile before it is
//! multiplied. The codes of the next page are prefetched if the host says so: [`Attend`]'s `ahead`.
//!
//! Queries as factors are in `queries`, the two passes of a page in `keys` and `values`, and the step between
//! them in `softmax`. For one head per KV head, and for f16 rows, see [`crate::attend`]. It also describes
//! pools, parts and partial results.

mod keys;
mod queries;
mod softmax;
mod tile;
mod values;

use crate::args::Attend;
use crate::attend::{LOWEST, PARTIAL_HEADER, Share, entry};
use crate::page;
use crate::rows::{PagePool, table};
use crate::threads::{Threads, load_half};
use keys::dots;
use queries::Queries;
use softmax::HeadSoftmax;
pub use tile::HEADS;
use tile::{PageSide, TOKENS, column, is_written_out, row};
use values::{first, sums};

/// The scales of tokens 8 k + g of a page.
#[inline(always)]
fn scale<T: Threads>(home: T::Memory, row_bytes: u32, k: u64) -> T::Of<f32> {
    let scales = T::at(home, u64::from(page::SLOTS * row_bytes) + 16 * k);
    load_half::<T>(scales, T::map(row::<T>(), |g| 2 * g))
}

/// Prefetches the codes and scales of a page.
#[inline(always)]
fn prefetch<T: Threads, const G: usize>(home: T::Memory, bytes: u32) {
    unroll32!(I => {
        // 32 threads prefetch 128 bytes each. The widest codes take one byte per coordinate.
        let done = 4096 * I as u32;
        if done < page::head_bytes(32 * G as u32, 8) && done < bytes {
            let last = bytes - done - 1;
            T::prefetch(T::at(home, u64::from(done)), T::map(T::lane(), |lane| u32::min(128 * lane, last)));
        }
    });
}

/// Tiles of values, of 32 coordinates, that are summed at once. An entry passes it as `SLICE`.
pub const fn slice(groups: usize, trellis: bool) -> usize {
    if is_written_out(trellis) || groups < 4 { 2 } else { 4 }
}

/// The places of the keys and the values of a page.
type Homes<M> = [M; 2];

/// Attends over a share with up to `SETS` times [`HEADS`] query heads of a KV head. `TRELLIS` is true if a
/// side may have a trellis code, which takes registers. `SLICE` is [`slice`] of both.
#[inline(always)]
pub fn attend<T: Threads, const G: usize, const TRELLIS: bool, const SLICE: usize, const SETS: usize>(
    share: Share,
    args: Attend<T::Memory>,
) {
    const { assert!(SLICE == slice(G, TRELLIS)) };
    let most = HEADS * SETS as u32;
    let Attend { num_kv_heads, group, .. } = args;
    let Share { part, chunk, kv_head } = share;
    let Some((query, pages, mut skip)) = entry::<T>(args.list, part) else { return };
    let (keys, values) = (PagePool::<T>::keys(&args), PagePool::<T>::values(&args));
    let dim = 32 * G as u32;
    // For scalar codes the format is the width. This saves a register.
    let bits = |pool: &PagePool<T>| if TRELLIS { page::bits(pool.format) } else { pool.format };
    let (sequence, length) = (T::read(args.sequence_of, 4 * query), T::read(args.lengths, 4 * query));
    let table = table::<T>(&args);
    let homes = |page: u32| -> Homes<T::Memory> {
        let id = table.page(sequence, page);
        [&keys, &values]
            .map(|pool| T::at(pool.memory, page::head_offset(id, pool.stride, kv_head, dim, bits(pool))))
    };
    let ask = |[key, value]: Homes<T::Memory>| {
        if args.ahead > 0 {
            prefetch::<T, G>(key, page::head_bytes(dim, bits(&keys)));
        }
        if args.ahead > 1 {
            prefetch::<T, G>(value, page::head_bytes(dim, bits(&values)));
        }
    };
    let mut next = [keys.memory, values.memory];
    if !pages.is_empty() {
        next = homes(pages.start);
        ask(next);
    }

    let (all_heads, head) = (num_kv_heads * group, kv_head * group + chunk * most);
    let heads = u32::min(group - chunk * most, most);
    let place = T::at(args.queries, u64::from(query * all_heads + head) * u64::from(4 * dim));
    let queries = Queries::<T, SETS>::load::<G>(place, heads - 1, keys.format);
    let (key_planes, value_planes) = (keys.planes(), values.planes());
    let unit = queries.unit.map(|unit| T::map(unit, |unit| unit * key_planes.unit));
    let [key_row, value_row] = [&keys, &values].map(|pool| page::row_bytes(dim, bits(pool)));
    let (row, column) = (row::<T>(), column::<T>());
    // A unit of scalar codes takes one byte per code bit.
    let unit_bytes = |format: u32| if TRELLIS && page::is_trellis(format) { 0 } else { format };
    let key_unit = T::map(column, |t| t * G as u32);
    let key_start = T::zip(row, key_unit, |g, unit| g * key_row + unit * unit_bytes(keys.format));
    let mut running = [HeadSoftmax::<T>::new(); SETS];
    for page in pages.start..pages.end {
        let [key_home, value_home] = next;
        // The last page is prefetched twice, which avoids a branch.
        next = homes(u32::min(page + 1, pages.end - 1));
        ask(next);
        let tokens = u32::min(length - page * page::SLOTS, page::SLOTS);
        let key_side = PageSide { home: key_home, row_bytes: key_row, start: key_start, unit: key_unit };
        let mut logits = with_reader!(keys.format, TRELLIS, C => dots::<T, C, G, TRELLIS, SETS>(key_side, tokens, &key_planes, &queries));
        let mut scales = [T::splat(0.0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                let scale_of_key = scale::<T>(key_home, key_row, K as u64);
                unroll2!(SETS, SET => {
                    let by = T::zip(scale_of_key, unit[SET % SETS], |scale, unit| scale * unit);
                    let logit = &mut logits[SET % SETS][K % TOKENS];
                    *logit = T::zip(*logit, by, |dot, by| dot * by);
                });
                scales[K % TOKENS] = scale::<T>(value_home, value_row, K as u64);
            }
        });
        if tokens - skip < page::SLOTS {
            // Memory after the end may decode to NaN.
            unroll32!(K => {
                if K < TOKENS {
                    let valid = T::map(row, |g| (g + 8 * K as u32).wrapping_sub(skip) < tokens - skip);
                    let keep = |value, other| T::zip(value, valid, |v, valid| if valid { v } else { other });
                    unroll2!(SETS, SET => {
                        let logit = &mut logits[SET % SETS][K % TOKENS];
                        *logit = keep(*logit, LOWEST);
                    });
                    scales[K % TOKENS] = keep(scales[K % TOKENS], 0.0);
                }
            });
        }
        skip = 0;
        let value_side = |slice: usize| {
            let unit = T::map(row, |g| g * (G as u32 / 2) + (SLICE / 2 * slice) as u32);
            let start = T::zip(column, unit, |t, unit| t * value_row + unit * unit_bytes(values.format));
            PageSide { home: value_home, row_bytes: value_row, start, unit }
        };
        // At D = 128 the first codes are under way while the weights are computed.
        let early = (G == 4 && is_written_out(TRELLIS))
            .then(|| with_reader!(values.format, TRELLIS, C => first::<T, C, G, SLICE>(value_side(0))));
        let (mut integers, mut units) = ([[T::splat(0); TOKENS]; SETS], [T::splat(0.0); SETS]);
        unroll2!(SETS, SET => {
            (integers[SET % SETS], units[SET % SETS]) =
                running[SET % SETS].soften::<G>(logits[SET % SETS], scales);
        });
        unroll32!(AT => {
            if AT < G / SLICE {
                let side = value_side(AT);
                with_reader!(values.format, TRELLIS, C => {
                    let early = if AT == 0 { early } else { None };
                    let sums =
                        sums::<T, C, G, TRELLIS, SLICE, SETS>(side, tokens, &value_planes, integers, early);
                    unroll2!(SETS, SET => {
                        let (sums, unit) = (&sums[SET % SETS], units[SET % SETS]);
                        running[SET % SETS].add::<SLICE>(AT, sums, unit, value_planes.unit);
                    });
                });
            }
        });
    }
    let stride = 4 * (PARTIAL_HEADER + dim);
    let partials = T::at(args.partials, u64::from(part * all_heads + head) * u64::from(stride));
    unroll2!(SETS, SET => {
        running[SET % SETS].write::<G>(values.format, [SET, SETS], heads, stride, partials);
    });
}
