//! `attend` on tensor cores: up to four query heads share every code that is read.
//!
//! All products are exact integers: levels of 8 bits ([`planes`](crate::planes)), queries of 24, weights of 23,
//! against the largest of their page. The tiles are those of `mma.m16n8k32`: thread 4 g + t of a warp
//! holds parts of rows g and g + 8 and of columns 2 t and 2 t + 1.
//!
//! ```text
//! for each page of 64 tokens:
//!     logits   16 tokens x coordinates  times  coordinates x (4 heads x 2 digits)      four times
//!     softmax  thread (g, t): tokens 8 k + g of head t; a maximum for the page
//!     values   (four coordinates a row) x (8 tokens x 4)  times  (8 tokens x 4) x (2 heads x 4)
//! ```
//!
//! A row of value codes holds four coordinates of one token side by side, so a weight stands in the column
//! of its coordinate and zeros in the other three: codes are multiplied in the order in which they are stored.
//! Queries as factors are in `queries`, the two passes of a page in `keys` and `values`, what lies between in
//! `softmax`. One head a KV head, and f16 rows: [`crate::attend`], which also describes pools, parts and
//! partial results.

mod keys;
mod queries;
mod softmax;
mod values;

use crate::args::Attend;
use crate::attend::{LOWEST, PARTIAL_HEADER, Share};
use crate::page;
use crate::planes::Bytes;
use crate::reader::Reader;
use crate::rows::Pool;
use crate::tables::Words;
use crate::threads::{Threads, divide, load_half};
use keys::dots;
use queries::Queries;
use softmax::Running;
use values::sums;

/// Tokens of a page that one thread has logits of.
const TOKENS: usize = page::SLOTS as usize / 8;

/// Below this no sum of a page's weights is told from 0: the inverse stays finite.
const LEAST: f32 = 1e-30;

/// g: the row of a tile, and the column of its second factor.
#[inline(always)]
fn row<T: Threads>() -> T::Of<u32> {
    T::map(T::lane(), |lane| lane / 4)
}

/// t: which bytes of a row, and which columns of the sums.
#[inline(always)]
fn column<T: Threads>() -> T::Of<u32> {
    T::map(T::lane(), |lane| lane % 4)
}

/// 16 x 8 sums.
type Sums<T> = <T as Threads>::Of<[i32; 4]>;

/// A first factor from the bytes of two rows (or tokens).
#[inline(always)]
fn factor<T: Threads>(a: T::Of<Bytes>, b: T::Of<Bytes>, by_row: bool) -> T::Of<[u32; 4]> {
    T::zip(a, b, |a, b| if by_row { [a[0], b[0], a[1], b[1]] } else { [a[0], a[1], b[0], b[1]] })
}

/// Keys or values of a page: their memory, bytes of a row, and each thread's place in the first rows: the first
/// of the units of 8 coordinates that it reads, and where that is (of trellis codes, where the row is).
#[derive(Clone, Copy)]
struct Side<T: Threads> {
    home: T::Memory,
    row_bytes: u32,
    start: T::Of<u32>,
    unit: T::Of<u32>,
}

impl<T: Threads> Side<T> {
    /// `UNITS` units of a thread's row `slots` behind its first.
    #[inline(always)]
    fn fetch<C: Reader, const G: usize, const UNITS: usize>(&self, slots: u32) -> T::Of<Words> {
        let home = T::at(self.home, u64::from(slots * self.row_bytes));
        C::units::<T, G, UNITS>(home, self.start, self.unit)
    }
}

/// The scales of tokens 8 k + g.
#[inline(always)]
fn scale<T: Threads>(side: Side<T>, k: u64) -> T::Of<f32> {
    let scales = T::at(side.home, u64::from(page::SLOTS * side.row_bytes) + 16 * k);
    load_half::<T>(scales, T::map(row::<T>(), |g| 2 * g))
}

/// Asks for the codes and scales of a page that comes next.
#[inline(always)]
fn prefetch<T: Threads, const G: usize>(home: T::Memory, bytes: u32) {
    unroll32!(I => {
        // 32 threads ask for 128 bytes each; the widest codes take a byte a coordinate.
        let done = 4096 * I as u32;
        if done < page::head_bytes(32 * G as u32, 8) && done < bytes {
            let last = bytes - done - 1;
            T::prefetch(T::at(home, u64::from(done)), T::map(T::lane(), |lane| u32::min(128 * lane, last)));
        }
    });
}

/// Attends over a share with `H` query heads of a KV head, 2 or 4. `TRELLIS`: whether a side may have a trellis
/// code, which takes registers.
#[inline(always)]
pub fn attend<T: Threads, const G: usize, const H: usize, const TRELLIS: bool>(
    share: Share,
    args: Attend<T::Memory>,
) {
    let Attend { parts, num_kv_heads, group, .. } = args;
    let Share { part, chunk, kv_head, row: query } = share;
    let (keys, values) = (Pool::<T>::keys(&args), Pool::<T>::values(&args));
    let dim = 32 * G as u32;
    // Of scalar codes it is the format; registers are short.
    let bits = |pool: &Pool<T>| if TRELLIS { page::bits(pool.format) } else { pool.format };
    let head = query * num_kv_heads * group + kv_head * group + chunk * H as u32;
    let heads = u32::min(group - chunk * H as u32, H as u32);
    let place = T::at(args.queries, u64::from(head) * u64::from(4 * dim));
    let queries = Queries::<T>::load::<G>(place, heads - 1, keys.format);
    let (key_planes, value_planes) = (keys.planes(), values.planes());
    let unit = T::map(queries.unit, |unit| unit * key_planes.unit);

    let (sequence, length) = (T::read(args.sequence_of, 4 * query), T::read(args.lengths, 4 * query));
    let pages = length.div_ceil(page::SLOTS);
    let pages_a_part = divide(pages + parts - 1, parts).0;
    let begin = u32::min(part * pages_a_part, pages);
    let end = u32::min(begin + pages_a_part, pages);
    let home = |pool: &Pool<T>, page: u32| {
        let id = T::read(args.page_table, 4 * (sequence * args.max_pages + page));
        T::at(pool.memory, page::head_offset(id, kv_head, num_kv_heads, dim, bits(pool)))
    };
    let [key_row, value_row] = [&keys, &values].map(|pool| page::row_bytes(dim, bits(pool)));
    let (row, column) = (row::<T>(), column::<T>());
    let key_unit = T::map(column, |t| t * G as u32);
    let value_unit = T::map(row, |g| g * (G as u32 / 2));
    // A unit of scalar codes is as many bytes as a code has bits.
    let unit_bytes = |format: u32| if TRELLIS && page::is_trellis(format) { 0 } else { format };
    let key_start = T::zip(row, key_unit, |g, unit| g * key_row + unit * unit_bytes(keys.format));
    let value_start = T::zip(column, value_unit, |t, unit| t * value_row + unit * unit_bytes(values.format));
    let mut running = Running::<T>::new();
    for page in begin..end {
        let key_side = Side { home: home(&keys, page), row_bytes: key_row, start: key_start, unit: key_unit };
        let value_side =
            Side { home: home(&values, page), row_bytes: value_row, start: value_start, unit: value_unit };
        if page + 1 < end {
            prefetch::<T, G>(home(&keys, page + 1), page::head_bytes(dim, bits(&keys)));
            prefetch::<T, G>(home(&values, page + 1), page::head_bytes(dim, bits(&values)));
        }
        let tokens = u32::min(length - page * page::SLOTS, page::SLOTS);
        let mut logits =
            with_reader!(keys.format, TRELLIS, C => dots::<T, C, G>(key_side, tokens, &key_planes, &queries));
        let mut scales = [T::splat(0.0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                let scale_of = T::zip(scale::<T>(key_side, K as u64), unit, |scale, unit| scale * unit);
                logits[K % TOKENS] = T::zip(logits[K % TOKENS], scale_of, |dot, scale| dot * scale);
                scales[K % TOKENS] = scale::<T>(value_side, K as u64);
            }
        });
        if tokens < page::SLOTS {
            // What lies behind the end may be no number.
            unroll32!(K => {
                if K < TOKENS {
                    let valid = T::map(row, |g| g < tokens.saturating_sub(8 * K as u32));
                    let keep = |value, other| T::zip(value, valid, |v, valid| if valid { v } else { other });
                    logits[K % TOKENS] = keep(logits[K % TOKENS], LOWEST);
                    scales[K % TOKENS] = keep(scales[K % TOKENS], 0.0);
                }
            });
        }
        let weights = running.soften::<G, H>(logits, scales);
        let integers = weights.integers;
        let sums = with_reader!(
            values.format,
            TRELLIS,
            C => sums::<T, C, G, H>(value_side, tokens, &value_planes, integers)
        );
        running.add::<G, H>(&sums, &weights, value_planes.unit);
    }
    let stride = 4 * (PARTIAL_HEADER + dim);
    let partials = T::at(args.partials, u64::from(head * parts + part) * u64::from(stride));
    running.write::<G, H>(values.format, heads, parts * stride, partials);
}
