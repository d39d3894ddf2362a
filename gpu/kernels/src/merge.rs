//! `attend_merge`: merges the parts of a sequence into one result and rotates it back.
//!
//! A warp merges the parts of one query head. Its time depends on how often it waits for memory. So it
//! first reads 64 headers at once, two per thread, then up to 128 words of the accumulators per thread,
//! 16 bytes per load. For 192 parts at head dim 128 it waits for them six times. [`crate::attend`] and
//! [`crate::tensor`] make the parts.

use crate::args::AttendMerge;
use crate::attend::{LOWEST, PARTIAL_HEADER};
use crate::decode::{store_elements, unrotate};
use crate::encode::element;
use crate::threads::{Threads, divide, first, shuffle_f32, shuffle_xor_f32};
use crate::warp::Lane;

/// The partial results of a query head: their start, their number, and the bytes from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Parts<T: Threads> {
    home: T::Memory,
    count: u32,
    stride: u32,
}

impl<T: Threads> Parts<T> {
    /// The parts of query head `warp`, of `heads` of each row.
    #[inline(always)]
    pub(crate) fn of<const G: usize>(
        partials: T::Memory,
        first_part: T::Memory,
        heads: u32,
        warp: u32,
    ) -> Self {
        let (row, head) = divide(warp, heads);
        let first = T::read(first_part, 4 * row);
        let count = T::read(first_part, 4 * row + 4) - first;
        let bytes = 4 * (PARTIAL_HEADER + 32 * G as u32);
        let index = u64::from(first) * u64::from(heads) + u64::from(head);
        Self { home: T::at(partials, index * u64::from(bytes)), count, stride: heads * bytes }
    }

    /// Maximum and sum of part `first` and the parts after it, one per thread. A thread after the last part
    /// gets an empty softmax.
    #[inline(always)]
    fn headers(self, first: u32) -> T::Of<(f32, f32)> {
        let part = T::map(T::lane(), |lane| first + lane);
        let place = T::map(part, |part| u32::min(part, self.count - 1) * self.stride);
        T::zip(T::load::<2>(self.home, place), part, |[max, sum], part| {
            let header = (f32::from_bits(max), f32::from_bits(sum));
            if part < self.count { header } else { (LOWEST, 0.0) }
        })
    }

    /// The accumulator of a part. Behind the last part it is the last part's.
    #[inline(always)]
    fn accumulator<const G: usize>(self, part: u32) -> [T::Of<f32>; G] {
        let place = T::at(self.home, u64::from(u32::min(part, self.count - 1) * self.stride));
        load_wide::<T, G>(place, PARTIAL_HEADER, element::F32)
    }

    /// The sum of the accumulators of all parts, relative to a maximum of logits. Each thread has neighbours, as
    /// [`load_wide`] gives them.
    #[inline(always)]
    fn weighted<const G: usize>(self, max: f32) -> [Lane<T>; G] {
        // Number of parts per round: up to 128 words per thread, and a factor per thread.
        let run = usize::min(128 / G, 32);
        let mut acc = [Lane::<T>(T::splat(0.0)); G];
        let mut first = 0;
        while first < self.count {
            let factors = T::map(self.headers(first), |(part, _)| T::exp2(part - max));
            let mut words = [[T::splat(0.0); G]; 32];
            unroll32!(PART => {
                if PART < run {
                    words[PART] = self.accumulator::<G>(first + PART as u32);
                }
            });
            unroll32!(PART => {
                if PART < run {
                    let factor = shuffle_f32::<T>(factors, T::splat(PART as u32));
                    unroll32!(I => {
                        if I < G {
                            acc[I % G] = acc[I % G] + Lane(words[PART][I % G]) * Lane(factor);
                        }
                    });
                }
            });
            first += run as u32;
        }
        acc
    }

    /// The same, rotated back but for the factor 1/dim. Thread t of word g has coordinate 32 g + t.
    #[inline(always)]
    pub(crate) fn unrotated<const G: usize>(self, signs: T::Memory, max: f32) -> [Lane<T>; G] {
        let mut acc = in_order::<T, G>(self.weighted(max));
        unrotate(signs, &mut acc);
        acc
    }

    /// The maximum over all parts, and the sum of all parts relative to it.
    #[inline(always)]
    pub(crate) fn softmax(self) -> (f32, f32) {
        let mut all = T::splat((LOWEST, 0.0));
        let mut first = 0;
        while first < self.count {
            let (near, far) = (self.headers(first), self.headers(first + 32));
            all = T::zip(all, T::zip(near, far, together::<T>), together::<T>);
            first += 64;
        }
        unroll32!(I => {
            let mask = I as u32;
            if mask.is_power_of_two() {
                let other = |of: fn((f32, f32)) -> f32| shuffle_xor_f32::<T>(T::map(all, of), mask);
                all = T::zip(all, T::zip(other(|v| v.0), other(|v| v.1), |max, sum| (max, sum)), together::<T>);
            }
        });
        (T::uniform(T::map(all, |(max, _)| max)), T::uniform(T::map(all, |(_, sum)| sum)))
    }
}

/// Neighbours that a thread loads at once: 16 bytes, or 8 at head dim 64.
const fn wide(groups: usize) -> usize {
    if groups < 4 { groups } else { 4 }
}

/// The coordinate of word `word` of a thread, if threads have neighbours.
#[inline(always)]
pub(crate) fn neighbour<const G: usize>(word: usize, lane: u32) -> u32 {
    let wide = wide(G);
    (32 * wide * (word / wide) + word % wide) as u32 + wide as u32 * lane
}

/// Loads a row of `32 G` elements from element `start` on. Each load takes [`wide`] neighbours per thread.
#[inline(always)]
pub(crate) fn load_wide<T: Threads, const G: usize>(
    row: T::Memory,
    start: u32,
    kind: u32,
) -> [T::Of<f32>; G] {
    let mut words = [T::splat(0.0); G];
    unroll32!(RUN => {
        if RUN < G / wide(G) {
            let offset = T::map(T::lane(), |lane| {
                element::bytes(kind) * (start + neighbour::<G>(wide(G) * RUN, lane))
            });
            let four = load_neighbours::<T>(row, offset, kind, wide(G));
            unroll32!(I => {
                if I < wide(G) {
                    words[(wide(G) * RUN + I) % G] = T::map(four, |four| four[I % 4]);
                }
            });
        }
    });
    words
}

/// Loads `count` elements, two or four, from each thread's offset on.
#[inline(always)]
fn load_neighbours<T: Threads>(
    row: T::Memory,
    offset: T::Of<u32>,
    kind: u32,
    count: usize,
) -> T::Of<[f32; 4]> {
    let bits = match (kind, count) {
        (element::F32, 2) => T::map(T::load::<2>(row, offset), |[a, b]| [a, b, 0, 0]),
        (element::F32, _) => T::load::<4>(row, offset),
        (_, 2) => T::map(T::load::<1>(row, offset), |[pair]| [pair & 0xffff, pair >> 16, 0, 0]),
        _ => T::map(T::load::<2>(row, offset), |[a, b]| [a & 0xffff, a >> 16, b & 0xffff, b >> 16]),
    };
    T::map(bits, |bits| {
        bits.map(|bits| match kind {
            element::F32 => f32::from_bits(bits),
            element::F16 => T::from_half(bits as u16),
            _ => f32::from_bits(bits << 16),
        })
    })
}

/// Gives thread t of word g coordinate 32 g + t, as the rotation takes them.
#[inline(always)]
pub(crate) fn in_order<T: Threads, const G: usize>(words: [Lane<T>; G]) -> [Lane<T>; G] {
    let wide = wide(G);
    let mut ordered = [Lane(T::splat(0.0)); G];
    unroll32!(I => {
        if I < G {
            let from = T::map(T::lane(), |lane| ((32 * (I % wide)) as u32 + lane) / wide as u32);
            unroll32!(J => {
                if J < wide {
                    let word = shuffle_f32::<T>(words[(I / wide * wide + J) % G].0, from);
                    let mine = T::zip(T::lane(), word, |lane, word| (lane % wide as u32 == J as u32, word));
                    let ordered = &mut ordered[I % G].0;
                    *ordered = T::zip(*ordered, mine, |other, (mine, word)| if mine { word } else { other });
                }
            });
        }
    });
    ordered
}

/// The softmax of two sets of parts together.
#[inline(always)]
fn together<T: Threads>(a: (f32, f32), b: (f32, f32)) -> (f32, f32) {
    let max = f32::max(a.0, b.0);
    (max, a.1 * T::exp2(a.0 - max) + b.1 * T::exp2(b.0 - max))
}

/// Merges the parts of query head `warp` of `count` and rotates the result back.
#[inline(always)]
pub fn attend_merge<T: Threads, const G: usize>(warp: u32, args: AttendMerge<T::Memory>) {
    if warp >= args.count {
        return;
    }
    let parts = Parts::<T>::of::<G>(args.partials, args.first_part, args.heads, warp);
    let (max, sum) = parts.softmax();
    if args.has_lse != 0 {
        let lse = (max + T::log2(sum)) * core::f32::consts::LN_2;
        let at = T::at(args.lse, 4 * u64::from(warp));
        T::store(at, T::splat(0), T::splat([lse.to_bits()]), first::<T>());
    }
    let mut acc = in_order::<T, G>(parts.weighted(max));
    // The sum is 0 without tokens, and NaN for a query that is not finite.
    let mut factor = if sum > 0.0 { 1.0 / sum } else { 0.0 * sum };
    if args.rotated != 0 {
        unrotate(args.signs, &mut acc);
        factor *= 1.0 / (32 * G) as f32;
    }
    let out = T::at(args.out, u64::from(warp) * u64::from(32 * G as u32 * element::bytes(args.kind)));
    for (g, &v) in acc.iter().enumerate() {
        store_elements::<T>(out, args.kind, 32 * g as u32, (v * Lane(T::splat(factor))).0);
    }
}
