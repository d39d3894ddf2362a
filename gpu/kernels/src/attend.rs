//! `attend`: paged decode attention with one query head per KV head, and on f16 rows.
//!
//! If several query heads share codes, [`crate::tensor`] attends instead.
//!
//! A thread owns 32 coordinates of one key. So `G` threads share a key, and a warp takes `32 / G` keys per
//! step. A thread reads its 32 codes with one or two wide loads, or one word of each plane of a trellis code.
//! Together the warp reads one contiguous run. Query and accumulator stay in registers.
//!
//! Every key slot of the warp keeps its own online softmax. The slots are merged once, at the end of the
//! warp's part. A second kernel ([`crate::merge`]) merges the parts and rotates the result back. Values are
//! accumulated in the rotated domain.
//!
//! ```text
//! for each step of the part: load codes of the next step (keys and values, in flight meanwhile)
//!     s = sum over the G threads of q * level, times the key's scale     (log2 units)
//!     if any s > m: rescale l and acc by 2^(m - s)
//!     p = 2^(s - m);  l += p;  acc += p * scale_v * level_v
//! ```
//!
//! One warp serves `R` query heads of one KV head. Logits are in log2 units, because `rotate_queries`
//! multiplied the query by log2(e) / (dim sqrt(dim)).

use crate::args::Attend;
use crate::page;
use crate::rows::{PagePool, StoredRows, order, table};
use crate::tensor;
use crate::threads::{Threads, shuffle_xor_f32};
use core::ops::Range;

/// Below every logit. It is finite, so that differences are not NaN.
pub(crate) const LOWEST: f32 = -1e30;

/// Floats before the accumulator in a partial result: maximum, sum, two unused.
pub const PARTIAL_HEADER: u32 = 4;

/// The largest head dim whose kernels have eight query heads per warp.
const WIDEST_OF_EIGHT: usize = 128;

/// Chooses the attention kernel for keys and values of these formats, with `group` query heads per KV head.
/// Returns its name and the query heads per warp. The entry is `{name}_d{head_dim}_r{heads}`.
pub fn kernel(formats: [u32; 2], group: u32, head_dim: usize) -> (&'static str, u32) {
    let any = |test: fn(u32) -> bool| formats.iter().any(|&format| test(format));
    if any(|format| format == page::HALF_BITS) {
        ("attend_f16", group.min(2))
    } else if group == 1 && any(page::is_trellis) {
        // Plain cores need fewer instructions here than tensor cores.
        ("attend", 1)
    } else if any(page::is_trellis) {
        ("attend_trellis", tensor::HEADS)
    } else if group > tensor::HEADS && head_dim <= WIDEST_OF_EIGHT {
        ("attend_tensor", 2 * tensor::HEADS)
    } else {
        ("attend_tensor", tensor::HEADS)
    }
}

/// A thread's part of one key or value.
#[derive(Clone, Copy)]
struct Fetched<T: Threads, W: Copy> {
    words: T::Of<W>,
    scale: T::Of<f32>,
}

/// The running softmax of `R` heads in a thread's key slot.
struct SlotSoftmax<T: Threads, const R: usize> {
    max: [T::Of<f32>; R],
    sum: [T::Of<f32>; R],
    acc: [[T::Of<f32>; 32]; R],
}

impl<T: Threads, const R: usize> SlotSoftmax<T, R> {
    #[inline(always)]
    fn new() -> Self {
        let zero = T::splat(0.0);
        Self { max: [T::splat(LOWEST); R], sum: [zero; R], acc: [[zero; 32]; R] }
    }

    /// Rescales head `r` to a new maximum.
    #[inline(always)]
    fn rescale(&mut self, r: usize, max: T::Of<f32>) {
        let factor = T::zip(self.max[r], max, |old, new| T::exp2(old - new));
        self.max[r] = max;
        self.sum[r] = T::zip(self.sum[r], factor, |v, f| v * f);
        unroll32!(I => { self.acc[r][I] = T::zip(self.acc[r][I], factor, |v, f| v * f); });
    }

    /// Merges the key slots whose thread numbers differ in the bits of `mask`.
    #[inline(always)]
    fn merge(&mut self, mask: u32) {
        unroll2!(R, H => {
            let r = H % R;
            let max = T::zip(self.max[r], shuffle_xor_f32::<T>(self.max[r], mask), f32::max);
            self.rescale(r, max);
            self.sum[r] = T::zip(self.sum[r], shuffle_xor_f32::<T>(self.sum[r], mask), |a, b| a + b);
            unroll32!(I => {
                let other = shuffle_xor_f32::<T>(self.acc[r][I], mask);
                self.acc[r][I] = T::zip(self.acc[r][I], other, |a, b| a + b);
            });
        });
    }
}

/// Reads this thread's coordinates of slot `step * 32 / G + lane / G` of a page.
#[inline(always)]
fn fetch<T: Threads, W: StoredRows, const G: usize>(
    pool: &PagePool<T>,
    home: T::Memory,
    step: u32,
) -> Fetched<T, W::Words> {
    let dim = 32 * G as u32;
    let slot = T::map(T::lane(), |lane| step * (32 / G as u32) + lane / G as u32);
    let row = T::map(slot, |slot| slot * page::row_bytes(dim, page::bits(pool.format)));
    Fetched {
        words: W::fetch::<T, G>(pool.format, home, row),
        scale: W::scale::<T>(dim, pool.format, home, slot),
    }
}

/// The row of an entry in the list of parts that has no work.
pub const UNUSED: u32 = u32::MAX;

/// The work of one warp of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The entry in the list of parts.
    pub part: u32,
    /// The chunk of query heads: heads `R * chunk ..` of the KV head. It is below `ceil(group / R)`.
    pub chunk: u32,
    /// The KV head.
    pub kv_head: u32,
}

/// The row and the pages of entry `part` of the list, if it has work, and the slots of its first page that are not seen.
#[inline(always)]
pub(crate) fn entry<T: Threads>(list: T::Memory, part: u32) -> Option<(u32, Range<u32>, u32)> {
    let word = |i: u32| T::read(list, 12 * part + 4 * i);
    let (row, token) = (word(0), word(1));
    if row == UNUSED { None } else { Some((row, token / page::SLOTS..word(2), token % page::SLOTS)) }
}

/// Attends over a share with `R` query heads of a KV head.
#[inline(always)]
pub fn attend<T: Threads, W: StoredRows, const G: usize, const R: usize>(
    share: Share,
    args: Attend<T::Memory>,
) {
    let Attend { num_kv_heads, group, partials, .. } = args;
    let Share { part, chunk, kv_head } = share;
    let Some((row, pages, mut skip)) = entry::<T>(args.list, part) else { return };
    let (keys, values) = (PagePool::<T>::keys(&args), PagePool::<T>::values(&args));
    let dim = 32 * G as u32;
    let heads = num_kv_heads * group;
    // A chunk past the end of the group repeats the group's last head and does not write it.
    let head = |r: usize| kv_head * group + u32::min(chunk * R as u32 + r as u32, group - 1);
    let (first, stride) = order::<T, G>(keys.format);
    let (zero, key_unit) = (T::splat(0.0), keys.unit::<W>());
    let mut q = [[zero; 32]; R];
    unroll2!(R, H => {
        let row = T::at(args.queries, u64::from(row * heads + head(H)) * u64::from(4 * dim));
        unroll32!(I => {
            if I < 8 {
                let four = T::load::<4>(row, T::map(first, |first| 4 * (first + I as u32 * stride)));
                let at = 4 * (I % 8);
                q[H % R][at] = T::map(four, |four| f32::from_bits(four[0]) * key_unit);
                q[H % R][at + 1] = T::map(four, |four| f32::from_bits(four[1]) * key_unit);
                q[H % R][at + 2] = T::map(four, |four| f32::from_bits(four[2]) * key_unit);
                q[H % R][at + 3] = T::map(four, |four| f32::from_bits(four[3]) * key_unit);
            }
        });
    });
    let (key_table, value_table) = (keys.table(), values.table());
    let (sequence, length) = (T::read(args.sequence_of, 4 * row), T::read(args.lengths, 4 * row));
    let table = table::<T>(&args);
    let steps_a_page = page::SLOTS * G as u32 / 32;
    let mut running = SlotSoftmax::<T, R>::new();
    for page in pages {
        let id = table.page(sequence, page);
        let home = |pool: &PagePool<T>| {
            let bits = page::bits(pool.format);
            T::at(pool.memory, page::head_offset(id, pool.stride, kv_head, dim, bits))
        };
        let (key_home, value_home) = (home(&keys), home(&values));
        let left = u32::min(length - page * page::SLOTS, page::SLOTS);
        // The first slot that is seen and the one after the last one, in one register.
        let seen = skip | left << 16;
        skip = 0;
        let steps = left.div_ceil(32 / G as u32);
        let mut key = fetch::<T, W, G>(&keys, key_home, 0);
        let mut value = fetch::<T, W, G>(&values, value_home, 0);
        for step in 0..steps {
            let ahead = u32::min(step + 1, steps_a_page - 1);
            let next_key = fetch::<T, W, G>(&keys, key_home, ahead);
            let next_value = fetch::<T, W, G>(&values, value_home, ahead);
            let valid = T::map(T::lane(), |lane| {
                let slot = step * (32 / G as u32) + lane / (G as u32);
                slot >= seen & 0xffff && slot < seen >> 16
            });
            let mut dots = [zero; R];
            W::each::<T, G>(keys.format, key.words, key_table, |i, level| {
                unroll2!(R, H => {
                    let pair = T::zip(q[H % R][i], level, |q, l| (q, l));
                    dots[H % R] = T::zip(pair, dots[H % R], |(q, l), sum| T::mul_add(q, l, sum));
                });
            });
            let mut weights = [zero; R];
            unroll2!(R, H => {
                let r = H % R;
                weights[r] = softmax_step::<T, G, R>(&mut running, r, dots[r], key.scale, valid);
                let weighted = T::zip(weights[r], value.scale, |p, scale| p * scale);
                weights[r] = T::zip(weighted, valid, |w, valid| if valid { w } else { 0.0 });
            });
            W::each::<T, G>(values.format, value.words, value_table, |i, level| {
                let level = T::zip(level, valid, |level, valid| if W::FINITE || valid { level } else { 0.0 });
                unroll2!(R, H => {
                    let pair = T::zip(weights[H % R], level, |w, l| (w, l));
                    let acc = &mut running.acc[H % R][i];
                    *acc = T::zip(pair, *acc, |(w, l), sum| T::mul_add(w, l, sum));
                });
            });
            (key, value) = (next_key, next_value);
        }
    }
    let mut mask = G as u32;
    while mask < 32 {
        running.merge(mask);
        mask *= 2;
    }
    let unit = values.unit::<W>();
    unroll2!(R, H => {
        if chunk * R as u32 + (H as u32) < group {
            let index = part * heads + head(H);
            write_partial::<T, G, R>(&running, H % R, (values.format, unit), index, partials);
        }
    });
}

/// Finishes the dot products of head `r`, updates its softmax, and returns the weight of each key.
#[inline(always)]
fn softmax_step<T: Threads, const G: usize, const R: usize>(
    running: &mut SlotSoftmax<T, R>,
    r: usize,
    dot: T::Of<f32>,
    scale: T::Of<f32>,
    valid: T::Of<bool>,
) -> T::Of<f32> {
    let mut dot = dot;
    unroll32!(I => {
        let mask = I as u32;
        if mask.is_power_of_two() && mask < G as u32 {
            dot = T::zip(dot, shuffle_xor_f32::<T>(dot, mask), |a, b| a + b);
        }
    });
    let logit = T::zip(dot, scale, |dot, scale| dot * scale);
    let logit = T::zip(logit, valid, |logit, valid| if valid { logit } else { LOWEST });
    // The maximum settles after a few keys, so a new maximum is rare.
    if T::ballot(T::zip(logit, running.max[r], |logit, max| logit > max)) != 0 {
        running.rescale(r, T::zip(logit, running.max[r], f32::max));
    }
    let weight = T::zip(logit, running.max[r], |logit, max| T::exp2(logit - max));
    let weight = T::zip(weight, valid, |weight, valid| if valid { weight } else { 0.0 });
    running.sum[r] = T::zip(running.sum[r], weight, |a, b| a + b);
    weight
}

/// Writes partial result `index`. Its values are in units of `unit`, and threads below G hold its
/// coordinates.
#[inline(always)]
fn write_partial<T: Threads, const G: usize, const R: usize>(
    running: &SlotSoftmax<T, R>,
    r: usize,
    (format, unit): (u32, f32),
    index: u32,
    partials: T::Memory,
) {
    let place = T::at(partials, u64::from(index) * u64::from(4 * (PARTIAL_HEADER + 32 * G as u32)));
    let header = T::zip(running.max[r], running.sum[r], |max, sum| [max.to_bits(), sum.to_bits(), 0, 0]);
    T::store::<4>(place, T::splat(0), header, T::map(T::lane(), |lane| lane == 0));
    let active = T::map(T::lane(), |lane| lane < G as u32);
    let (first, stride) = order::<T, G>(format);
    unroll32!(I => {
        if I.is_multiple_of(4) {
            let low = T::zip(running.acc[r][I], running.acc[r][(I + 1) % 32], |a, b| (a, b));
            let high = T::zip(running.acc[r][(I + 2) % 32], running.acc[r][(I + 3) % 32], |a, b| (a, b));
            let four = T::zip(low, high, |(a, b), (c, d)| [a, b, c, d].map(|v| (v * unit).to_bits()));
            let offset = T::map(first, |first| 4 * (PARTIAL_HEADER + first + I as u32 / 4 * stride));
            T::store::<4>(place, offset, four, active);
        }
    });
}
