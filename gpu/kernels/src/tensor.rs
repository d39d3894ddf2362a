//! `attend` for scalar codes on tensor cores: up to four query heads share every code that is read.
//!
//! All products are exact integers: levels of 16 bits ([`planes`](crate::planes)), queries of 24, weights of
//! 23, against the largest of their page. The tiles are those of `mma.m16n8k32`: thread 4 g + t of a warp
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
//! Trellis codes and f16 rows: [`crate::attend`], which also describes pools, parts and partial results.

use crate::attend::{Codes, LOWEST, PARTIAL_HEADER, Pool};
use crate::page;
use crate::planes::{Bytes, Planes, Words, position};
use crate::threads::{Threads, divide, load_half, shuffle_f32, shuffle_xor_f32};

/// Tokens of a page that one thread has logits of.
const TOKENS: usize = page::SLOTS as usize / 8;

/// Below this no sum of a page's weights is told from 0: the inverse stays finite.
const LEAST: f32 = 1e-30;

/// Largest integer of a query: its three digits of 8 bits are signed; less what rounding may add.
const LARGEST_QUERY: f32 = 8_355_703.0;

/// Largest integer of a weight: its three digits are the mantissa of a float from [`BESIDE`] on.
const LARGEST_WEIGHT: f32 = 8_388_600.0;

/// A float beside which the low 23 bits of others are integers.
const BESIDE: f32 = 8_388_608.0;

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

/// Four query heads as factors: three digits of each coordinate.
#[derive(Clone, Copy)]
struct Queries<T: Threads> {
    /// Columns 2 h and 2 h + 1: first and second digit of head h.
    digits: [T::Of<Bytes>; 8],
    /// Column 2 h: third digit.
    last: [T::Of<Bytes>; 8],
    /// What 1 stands for, of head t.
    unit: T::Of<f32>,
}

/// Byte `which` of four words, as signed digits.
#[inline(always)]
fn digit<T: Threads>(words: [u32; 4], which: u32) -> u32 {
    let choice = which | (which + 4) << 4;
    let pair = |a, b| T::permute(a, b, choice);
    T::permute(pair(words[0], words[1]), pair(words[2], words[3]), 0x5410) ^ 0x8080_8080
}

impl<T: Threads> Queries<T> {
    /// Reads rotated queries from `place` on: head h of the columns is head `min(h, last_head)`.
    #[inline(always)]
    fn load<const G: usize>(place: T::Memory, last_head: u32, format: u32) -> Self {
        let dim = 32 * G as u32;
        let start = T::map(T::lane(), |lane| u32::min(lane / 8, last_head) * 4 * dim + lane % 4 * dim);
        let mut values = [T::splat([0.0; 8]); 8];
        let mut largest = T::splat(0.0_f32);
        unroll32!(U => {
            if U < G {
                let four = |at: u32| T::load::<4>(place, T::map(start, |start| start + 32 * U as u32 + at));
                let eight = T::zip(four(0), four(16), |a, b| [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]);
                let eight = T::map(eight, |v| v.map(f32::from_bits));
                values[U % 8] = T::map(eight, |v| match format {
                    2 => [v[0], v[2], v[4], v[6], v[1], v[3], v[5], v[7]],
                    _ => v,
                });
                largest = T::zip(largest, eight, |m, v| {
                    let pair = |a: f32, b: f32| f32::max(a.abs(), b.abs());
                    let four = |a, b, c, d| f32::max(pair(a, b), pair(c, d));
                    m.max(four(v[0], v[1], v[2], v[3])).max(four(v[4], v[5], v[6], v[7]))
                });
            }
        });
        let largest = T::zip(largest, shuffle_xor_f32::<T>(largest, 1), f32::max);
        let largest = T::zip(largest, shuffle_xor_f32::<T>(largest, 2), f32::max);
        let steps = T::map(largest, |m| if m > LEAST { LARGEST_QUERY / m } else { 0.0 });
        let (mut digits, mut last) = ([T::splat([0; 2]); 8], [T::splat([0; 2]); 8]);
        unroll32!(U => {
            if U < G {
                let words = T::zip(values[U % 8], steps, |v, steps| v.map(|v| integer(v * steps)));
                let runs = T::map(words, |w| ([w[0], w[1], w[2], w[3]], [w[4], w[5], w[6], w[7]]));
                digits[U % 8] = T::zip(runs, row::<T>(), |(a, b), column| {
                    [digit::<T>(a, 2 - column % 2), digit::<T>(b, 2 - column % 2)]
                });
                last[U % 8] = T::zip(runs, row::<T>(), |(a, b), column| {
                    if column % 2 == 0 { [digit::<T>(a, 0), digit::<T>(b, 0)] } else { [0; 2] }
                });
            }
        });
        let unit = T::map(largest, |m| m / LARGEST_QUERY);
        Self { digits, last, unit: shuffle_f32::<T>(unit, T::map(column::<T>(), |head| 8 * head)) }
    }
}

/// The integer below, with digits that are signed once their top bits are flipped.
#[inline(always)]
fn integer(x: f32) -> u32 {
    (x as i32 + 0x0080_8080) as u32
}

/// A thread's run of `CODES` codes; `offset` is where it starts.
#[inline(always)]
fn run<T: Threads, const BITS: usize, const CODES: usize>(
    home: T::Memory,
    offset: T::Of<u32>,
) -> T::Of<Words> {
    match BITS * CODES / 8 {
        2 => T::map(T::load_u16(home, offset), |codes| {
            let mut words = [0; 16];
            words[0] = u32::from(codes);
            words
        }),
        4 => wide::<T, 1>(home, offset),
        8 => wide::<T, 2>(home, offset),
        12 => wide::<T, 3>(home, offset),
        16 => wide::<T, 4>(home, offset),
        24 => wide::<T, 6>(home, offset),
        32 => wide::<T, 8>(home, offset),
        64 => wide::<T, 16>(home, offset),
        // 3 or 6 bytes, which may start between words. The scales lie behind the codes, so there are words.
        _ => {
            let word = |at: u32| T::load::<1>(home, T::map(offset, |offset| (offset & !3) + at));
            let both = T::zip(word(0), word(4), |[low], [high]| u64::from(low) | u64::from(high) << 32);
            T::zip(both, offset, |both, offset| {
                let (codes, mut words) = (both >> (8 * (offset % 4)), [0; 16]);
                (words[0], words[1]) = (codes as u32, (codes >> 32) as u32);
                words
            })
        }
    }
}

/// N words that lie together.
#[inline(always)]
fn wide<T: Threads, const N: usize>(home: T::Memory, offset: T::Of<u32>) -> T::Of<Words> {
    T::map(T::load::<N>(home, offset), |words| {
        let mut padded = [0; 16];
        padded[..N].copy_from_slice(&words);
        padded
    })
}

/// A first factor from the bytes of two rows (or tokens).
#[inline(always)]
fn factor<T: Threads>(
    a: T::Of<[Bytes; 2]>,
    b: T::Of<[Bytes; 2]>,
    plane: usize,
    by_row: bool,
) -> T::Of<[u32; 4]> {
    T::zip(a, b, |a, b| {
        let (a, b) = (a[plane], b[plane]);
        if by_row { [a[0], b[0], a[1], b[1]] } else { [a[0], a[1], b[0], b[1]] }
    })
}

/// Keys or values of a page: their memory, bytes of a row, and each thread's place in the first rows.
#[derive(Clone, Copy)]
struct Side<T: Threads> {
    home: T::Memory,
    row_bytes: u32,
    start: T::Of<u32>,
}

impl<T: Threads> Side<T> {
    /// A thread's `CODES` codes of the slot `slots` behind its first.
    #[inline(always)]
    fn fetch<const BITS: usize, const CODES: usize>(&self, slots: u32) -> T::Of<Words> {
        run::<T, BITS, CODES>(T::at(self.home, u64::from(slots * self.row_bytes)), self.start)
    }
}

/// Dot products of the first `tokens` keys of a page: of tokens 8 k + g with head t, in units of both factors.
#[inline(always)]
fn dots<T: Threads, const BITS: usize, const G: usize>(
    keys: Side<T>,
    tokens: u32,
    planes: &Planes,
    queries: &Queries<T>,
) -> [T::Of<f32>; TOKENS] {
    let fetch = |slots: u32| match G {
        2 => keys.fetch::<BITS, 16>(slots),
        4 => keys.fetch::<BITS, 32>(slots),
        _ => keys.fetch::<BITS, 64>(slots),
    };
    let mut out = [T::splat(0.0); TOKENS];
    // Backwards, so that the first tile ends up in front: registers have no number at run time.
    for tile in (0..tokens.div_ceil(16)).rev() {
        let words = [fetch(16 * tile), fetch(16 * tile + 8)];
        let [upper, lower] = tile_dots::<T, BITS, G>(words, planes, queries);
        out = [upper, lower, out[0], out[1], out[2], out[3], out[4], out[5]];
    }
    out
}

/// Dot products of 16 keys: rows g and g + 8 with head t.
#[inline(always)]
fn tile_dots<T: Threads, const BITS: usize, const G: usize>(
    words: [T::Of<Words>; 2],
    planes: &Planes,
    queries: &Queries<T>,
) -> [T::Of<f32>; 2] {
    let (mut high, mut low, mut last) = (T::splat([0; 4]), T::splat([0; 4]), T::splat([0; 4]));
    unroll32!(U => {
        if U < G {
            let [a, b] = words.map(|words| T::map(words, |words| planes.bytes::<T, BITS>(&words, U)));
            let bytes = factor::<T>(a, b, 0, true);
            high = T::multiply::<true>(bytes, queries.digits[U % 8], high);
            last = T::multiply::<true>(bytes, queries.last[U % 8], last);
            if BITS < 8 {
                low = T::multiply::<true>(factor::<T>(a, b, 1, true), queries.digits[U % 8], low);
            }
        }
    });
    let rest = T::zip(low, last, |low, last| (low, last));
    let dot = T::zip(high, rest, |high, (low, last)| {
        let dot = |i: usize| {
            let (first, second) = (256 * high[i] + high[i + 1] + low[i], low[i + 1] + last[i]);
            // Units of 2^8 of the second sum: the third digit of the high bytes.
            256.0 * (256.0 * first as f32 + second as f32)
        };
        (dot(0), dot(2))
    });
    [T::map(dot, |(upper, _)| upper), T::map(dot, |(_, lower)| lower)]
}

/// Sums of a page's values: for each unit of 8 coordinates and pair of heads, by powers of 256.
type PageSums<T> = [[[Sums<T>; 3]; 2]; 4];

/// Weights times the first `tokens` values of a page; `weights` are integers of tokens 8 k + g of head t.
#[inline(always)]
fn sums<T: Threads, const BITS: usize, const G: usize, const H: usize>(
    values: Side<T>,
    tokens: u32,
    planes: &Planes,
    weights: [T::Of<u32>; TOKENS],
) -> PageSums<T> {
    let fetch = |slots: u32| match G {
        2 => values.fetch::<BITS, 8>(slots),
        4 => values.fetch::<BITS, 16>(slots),
        _ => values.fetch::<BITS, 32>(slots),
    };
    let mut sums = [[[T::splat([0; 4]); 3]; 2]; 4];
    let mut weights = weights;
    for step in 0..tokens.div_ceil(8) {
        let words = [fetch(8 * step), fetch(8 * step + 4)];
        let now = weights[0];
        weights =
            [weights[1], weights[2], weights[3], weights[4], weights[5], weights[6], weights[7], weights[0]];
        let mut second = [[T::splat([0; 2]); 3]; 2];
        unroll2!(H / 2, PAIR => { second[PAIR % 2] = weight_digits::<T>(now, 2 * PAIR as u32); });
        unroll32!(U => {
            if U < G / 2 {
                let [a, b] = words.map(|words| T::map(words, |words| planes.bytes::<T, BITS>(&words, U)));
                let high = factor::<T>(a, b, 0, false);
                let low = factor::<T>(a, b, 1, false);
                unroll2!(H / 2, PAIR => {
                    let sums = &mut sums[U % 4][PAIR % 2];
                    let [first, middle, last] = second[PAIR % 2];
                    sums[0] = T::multiply::<false>(high, first, sums[0]);
                    sums[1] = T::multiply::<false>(high, middle, sums[1]);
                    sums[2] = T::multiply::<false>(high, last, sums[2]);
                    if BITS < 8 {
                        sums[1] = T::multiply::<false>(low, first, sums[1]);
                        sums[2] = T::multiply::<false>(low, middle, sums[2]);
                    }
                });
            }
        });
    }
    sums
}

/// The three digits of the weights of 8 tokens as second factors, for heads `head` and `head + 1`: column n is
/// coordinate n % 4 of head n / 4, and a weight stands in the row of its own coordinate.
#[inline(always)]
fn weight_digits<T: Threads>(weights: T::Of<u32>, head: u32) -> [T::Of<Bytes>; 3] {
    let of = |token: u32| {
        let from = T::zip(row::<T>(), column::<T>(), |g, t| 4 * (t + token) + head + g / 4);
        T::shuffle(weights, from)
    };
    let both = T::zip(of(0), of(4), |a, b| [a, b]);
    [2, 1, 0].map(|digit| {
        // Zeros (byte 4) but in the place of the coordinate.
        let choice = T::map(row::<T>(), |g| 0x4444 ^ (4 ^ digit) << (4 * (g % 4)));
        T::zip(both, choice, |both, choice| both.map(|weight| T::permute(weight, 0, choice)))
    })
}

/// What the threads of all rows g make of their values.
#[inline(always)]
fn over_rows<T: Threads>(value: T::Of<f32>, f: impl Fn(f32, f32) -> f32) -> T::Of<f32> {
    let value = T::zip(value, shuffle_xor_f32::<T>(value, 4), &f);
    let value = T::zip(value, shuffle_xor_f32::<T>(value, 8), &f);
    T::zip(value, shuffle_xor_f32::<T>(value, 16), &f)
}

/// The largest over the page.
#[inline(always)]
fn largest_of<T: Threads>(values: [T::Of<f32>; TOKENS]) -> T::Of<f32> {
    let mut largest = values[0];
    unroll32!(K => { if K < TOKENS { largest = T::zip(largest, values[K % TOKENS], f32::max); } });
    over_rows::<T>(largest, f32::max)
}

/// The softmax of head t so far, and the sums of all heads.
struct Running<T: Threads> {
    max: T::Of<f32>,
    /// Over the thread's own tokens.
    sum: T::Of<f32>,
    acc: [[T::Of<[f32; 4]>; 2]; 4],
}

/// What a page's weights become: integers, what 1 stands for, and what older sums are multiplied by.
struct Weights<T: Threads> {
    integers: [T::Of<u32>; TOKENS],
    unit: T::Of<f32>,
    older: T::Of<f32>,
}

impl<T: Threads> Running<T> {
    /// Takes in the logits of a page whose values have these scales.
    #[inline(always)]
    fn soften(&mut self, logits: [T::Of<f32>; TOKENS], scales: [T::Of<f32>; TOKENS]) -> Weights<T> {
        let max = T::zip(self.max, largest_of::<T>(logits), f32::max);
        let older = T::zip(self.max, max, |old, new| T::exp2(old - new));
        self.max = max;
        self.sum = T::zip(self.sum, older, |sum, older| sum * older);
        let mut weights = [T::splat(0.0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                let weight = T::zip(logits[K % TOKENS], max, |logit, max| T::exp2(logit - max));
                self.sum = T::zip(self.sum, weight, |sum, weight| sum + weight);
                weights[K % TOKENS] = T::zip(weight, scales[K % TOKENS], |weight, scale| weight * scale);
            }
        });
        let largest = largest_of::<T>(weights);
        let steps = T::map(largest, |m| if m > LEAST { LARGEST_WEIGHT / m } else { 0.0 });
        let mut integers = [T::splat(0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                integers[K % TOKENS] =
                    T::zip(weights[K % TOKENS], steps, |w, steps| T::mul_add(w, steps, BESIDE).to_bits());
            }
        });
        Weights { integers, unit: T::map(largest, |m| m / LARGEST_WEIGHT), older }
    }

    /// Adds a page's sums.
    #[inline(always)]
    fn add<const G: usize, const H: usize>(&mut self, sums: &PageSums<T>, weights: &Weights<T>, unit: f32) {
        unroll2!(H / 2, PAIR => {
            // Thread (g, t) has sums of head 2 PAIR + t / 2, and softmax values of head t.
            let from = T::map(T::lane(), |lane| (lane & !3) + 2 * PAIR as u32 + lane % 4 / 2);
            let older = shuffle_f32::<T>(weights.older, from);
            let unit = T::map(shuffle_f32::<T>(weights.unit, from), |of_weights| of_weights * unit);
            let factors = T::zip(older, unit, |older, unit| (older, unit));
            unroll32!(U => {
                if U < G / 2 {
                    let [first, second, third] = sums[U % 4][PAIR % 2];
                    let upper = T::zip(first, second, |a, b| {
                        [256 * a[0] + b[0], 256 * a[1] + b[1], 256 * a[2] + b[2], 256 * a[3] + b[3]]
                    });
                    let acc = &mut self.acc[U % 4][PAIR % 2];
                    let scaled = T::zip(*acc, factors, |acc, (older, unit)| (acc.map(|v| v * older), unit));
                    *acc = T::zip(scaled, T::zip(upper, third, |upper, third| (upper, third)), |(acc, unit), (upper, third)| {
                        let one = |i: usize| {
                            let sum = T::mul_add(upper[i] as f32, 65_536.0, 256.0 * third[i] as f32);
                            T::mul_add(sum, unit, acc[i])
                        };
                        [one(0), one(1), one(2), one(3)]
                    });
                }
            });
        });
    }

    /// Writes the partial results of the chunk's heads below `heads`; `bytes` from one head to the next.
    #[inline(always)]
    fn write<const G: usize, const H: usize>(self, format: u32, heads: u32, bytes: u32, partials: T::Memory) {
        let sum = over_rows::<T>(self.sum, |a, b| a + b);
        let header = T::zip(self.max, sum, |max, sum| [max.to_bits(), sum.to_bits(), 0, 0]);
        let active = T::map(T::lane(), |lane| lane < u32::min(heads, H as u32));
        T::store::<4>(partials, T::map(T::lane(), |lane| lane % 4 * bytes), header, active);
        unroll2!(H / 2, PAIR => {
            let head = T::map(column::<T>(), |t| 2 * PAIR as u32 + t / 2);
            let active = T::map(head, |head| head < heads);
            unroll32!(I => {
                let (unit, i) = (I as u32 / 4, I as u32 % 4);
                if unit < G as u32 / 2 {
                    let at = T::zip(row::<T>(), column::<T>(), |g, t| {
                        4 * G as u32 * g + 8 * unit + position(format, i / 2, 2 * (t % 2) + i % 2)
                    });
                    let offset = T::zip(head, at, |head, at| head * bytes + 4 * (PARTIAL_HEADER + at));
                    let value = T::map(self.acc[I / 4 % 4][PAIR % 2], |acc| [acc[I % 4].to_bits()]);
                    T::store::<1>(partials, offset, value, active);
                }
            });
        });
    }
}

/// The scales of tokens 8 k + g.
#[inline(always)]
fn scale<T: Threads>(pool: &Pool<T>, side: Side<T>, k: u64) -> T::Of<f32> {
    let scales = T::at(side.home, u64::from(page::SLOTS * side.row_bytes) + 16 * k);
    let unit = Codes::unit(pool.format);
    T::map(load_half::<T>(scales, T::map(row::<T>(), |g| 2 * g)), |scale| scale * unit)
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

/// Attends with query heads `H * chunk ..` of a KV head; arguments as for [`crate::attend::attend`], but the
/// codes are scalar and H is 2 or 4.
#[inline(always)]
pub fn attend<T: Threads, const G: usize, const H: usize>(
    part: u32,
    parts: u32,
    chunk: u32,
    kv_head: u32,
    sequence: u32,
    queries: T::Memory,
    num_kv_heads: u32,
    group: u32,
    keys: Pool<T>,
    values: Pool<T>,
    page_table: T::Memory,
    max_pages: u32,
    lengths: T::Memory,
    partials: T::Memory,
) {
    let dim = 32 * G as u32;
    let head = sequence * num_kv_heads * group + kv_head * group + chunk * H as u32;
    let heads = u32::min(group - chunk * H as u32, H as u32);
    let place = T::at(queries, u64::from(head) * u64::from(4 * dim));
    let queries = Queries::<T>::load::<G>(place, heads - 1, keys.format);
    let (key_planes, value_planes) = (keys.planes(), values.planes());
    let unit = T::map(queries.unit, |unit| unit * key_planes.unit);

    let length = T::read(lengths, 4 * sequence);
    let pages = length.div_ceil(page::SLOTS);
    let pages_a_part = divide(pages + parts - 1, parts).0;
    let begin = u32::min(part * pages_a_part, pages);
    let end = u32::min(begin + pages_a_part, pages);
    let home = |pool: &Pool<T>, page: u32| {
        let id = T::read(page_table, 4 * (sequence * max_pages + page));
        T::at(pool.memory, page::head_offset(id, kv_head, num_kv_heads, dim, pool.format))
    };
    let [key_row, value_row] = [&keys, &values].map(|pool| page::row_bytes(dim, pool.format));
    let key_start = T::zip(row::<T>(), column::<T>(), |g, t| g * key_row + t * (key_row / 4));
    let value_start = T::zip(row::<T>(), column::<T>(), |g, t| t * value_row + g * (value_row / 8));
    let mut running =
        Running::<T> { max: T::splat(LOWEST), sum: T::splat(0.0), acc: [[T::splat([0.0; 4]); 2]; 4] };
    for page in begin..end {
        let key_side = Side { home: home(&keys, page), row_bytes: key_row, start: key_start };
        let value_side = Side { home: home(&values, page), row_bytes: value_row, start: value_start };
        if page + 1 < end {
            prefetch::<T, G>(home(&keys, page + 1), page::head_bytes(dim, keys.format));
            prefetch::<T, G>(home(&values, page + 1), page::head_bytes(dim, values.format));
        }
        let tokens = u32::min(length - page * page::SLOTS, page::SLOTS);
        let mut logits = match keys.format {
            2 => dots::<T, 2, G>(key_side, tokens, &key_planes, &queries),
            3 => dots::<T, 3, G>(key_side, tokens, &key_planes, &queries),
            4 => dots::<T, 4, G>(key_side, tokens, &key_planes, &queries),
            _ => dots::<T, 8, G>(key_side, tokens, &key_planes, &queries),
        };
        let mut scales = [T::splat(0.0); TOKENS];
        unroll32!(K => {
            if K < TOKENS {
                let factor = T::zip(scale::<T>(&keys, key_side, K as u64), unit, |scale, unit| scale * unit);
                logits[K % TOKENS] = T::zip(logits[K % TOKENS], factor, |dot, factor| dot * factor);
                scales[K % TOKENS] = scale::<T>(&values, value_side, K as u64);
            }
        });
        if tokens < page::SLOTS {
            // What lies behind the end may be no number.
            unroll32!(K => {
                if K < TOKENS {
                    let valid = T::map(row::<T>(), |g| g < tokens.saturating_sub(8 * K as u32));
                    let keep = |value, other| T::zip(value, valid, |v, valid| if valid { v } else { other });
                    logits[K % TOKENS] = keep(logits[K % TOKENS], LOWEST);
                    scales[K % TOKENS] = keep(scales[K % TOKENS], 0.0);
                }
            });
        }
        let weights = running.soften(logits, scales);
        let sums = match values.format {
            2 => sums::<T, 2, G, H>(value_side, tokens, &value_planes, weights.integers),
            3 => sums::<T, 3, G, H>(value_side, tokens, &value_planes, weights.integers),
            4 => sums::<T, 4, G, H>(value_side, tokens, &value_planes, weights.integers),
            _ => sums::<T, 8, G, H>(value_side, tokens, &value_planes, weights.integers),
        };
        running.add::<G, H>(&sums, &weights, value_planes.unit);
    }
    let stride = 4 * (PARTIAL_HEADER + dim);
    let partials = T::at(partials, u64::from(head * parts + part) * u64::from(stride));
    running.write::<G, H>(values.format, heads, parts * stride, partials);
}
