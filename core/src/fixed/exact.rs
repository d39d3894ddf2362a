//! The tokens of a ring that are not coded: its first ones and its newest ones.
//!
//! A row has integers of the caller's own coordinates, so a query meets them before its rotation. The softmax
//! is that of the coded tokens: one denominator, and sums for each of the two kinds.

use super::attend::{Attention, ValueSums};
use super::kernels::Kernels;
use super::math::{Real, clamp_exponent};
use super::query::{LIMIT, SCORE_BITS};
use super::sample::Sample;
use super::words::Words;
use crate::code::codebook::sqrt;
use heapless::Vec;

/// Exact tokens of a [`super::RingCache`]: the first `S`, which stay, and the newest `N`.
///
/// `X` is the type of a coordinate. `i16` keeps samples as they are. `i8` keeps 7 bits below the largest one
/// of a vector, in half of the memory. A vector takes `D` coordinates and 4 bytes. `size_of` gives the bytes
/// of all, as a constant. An empty value has no bytes other than zero, so a `static` one takes no flash.
///
/// ```
/// use tqkv_core::fixed::ExactTokens;
///
/// // 4 + 16 tokens of two vectors, and three words that count them.
/// const BYTES: usize = size_of::<ExactTokens<64, i8, 4, 16>>();
/// assert_eq!(BYTES, 20 * 2 * (64 + 4) + 3 * size_of::<usize>());
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ExactTokens<const D: usize, X: Sample, const S: usize, const N: usize> {
    sinks: Vec<Token<D, X>, S>,
    newest: Vec<Token<D, X>, N>,
    /// The oldest of the newest, once there are `N`.
    next: usize,
}

/// The vectors of a token.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct Token<const D: usize, X> {
    pub(super) key: ExactRow<D, X>,
    pub(super) value: ExactRow<D, X>,
}

/// A vector: `samples * 2^exponent`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct ExactRow<const D: usize, X> {
    /// Within +-1009.
    exponent: i16,
    /// The left shift after which the largest sample has all bits of the type.
    room: u16,
    pub(super) samples: [X; D],
}

impl<const D: usize, X: Sample> ExactRow<D, X> {
    const ZERO: Self = Self { exponent: -1000, room: 0, samples: [X::ZERO; D] };

    pub(super) fn exponent(&self) -> i32 {
        i32::from(self.exponent)
    }

    /// Becomes `x * 2^exponent`, rounded to the bits of the type.
    fn set(&mut self, x: &[i16; D], exponent: i32) {
        let bits = bits_of(x);
        let down = bits.saturating_sub(X::BITS - 1);
        let half = (1_i32 << down) >> 1;
        for (sample, &v) in self.samples.iter_mut().zip(x) {
            *sample = X::saturated((i32::from(v) + half) >> down);
        }
        // A vector of zeros must not decide the unit of a sum.
        let is_zero = bits == 0 && x.iter().all(|&v| v == 0);
        let exponent = if is_zero { Self::ZERO.exponent() } else { clamp_exponent(exponent) };
        self.exponent = (exponent + down as i32) as i16;
        self.room = (X::BITS - 1 + down - bits) as u16;
    }
}

/// Bits of the largest magnitude without the sign, or one more.
#[inline(always)]
fn bits_of<const D: usize>(x: &[i16; D]) -> u32 {
    let all = x.iter().fold(0, |all: i16, &v| all | (v ^ (v >> 15)));
    16 - all.leading_zeros()
}

/// Bits of a query without the sign, where rows have bytes: the dot of 1,024 of them stays below 2^30.
const QUERY_BITS: u32 = 13;

/// A query for exact rows: `samples * 2^exponent`.
struct PlainQuery<'a, const D: usize> {
    samples: &'a [i16; D],
    /// Its samples, rounded to [`QUERY_BITS`], for [`Kernels::dot`].
    narrow: Words<D>,
    exponent: i32,
    narrow_exponent: i32,
}

impl<'a, const D: usize> PlainQuery<'a, D> {
    /// `narrow` is only filled for rows of bytes.
    #[inline(always)]
    fn new<X: Sample>(samples: &'a [i16; D], exponent: i32) -> Self {
        let exponent = clamp_exponent(exponent);
        let mut query = Self { samples, narrow: Words([0; D]), exponent, narrow_exponent: exponent };
        if X::BITS == 8 {
            let down = bits_of(samples).saturating_sub(QUERY_BITS);
            let half = (1 << down) >> 1;
            let pairs = samples.as_chunks::<2>().0;
            for (word, &[first, second]) in query.narrow.as_mut_slice().iter_mut().zip(pairs) {
                let [first, second] = [first, second].map(|v| (i32::from(v) + half) >> down);
                *word = second & 0xffff | first << 16;
            }
            query.narrow_exponent += down as i32;
        }
        query
    }

    /// <this, row> / sqrt(D), in units and with the limits of [`super::FixedCodec::score`].
    #[inline(always)]
    fn score<X: Sample>(&self, kernels: impl Kernels, row: &ExactRow<D, X>) -> i32 {
        if let Some(bytes) = X::bytes(&row.samples) {
            let dot = kernels.dot(self.narrow.as_slice(), bytes).unwrap_or_else(|| self.narrow.dot(bytes));
            return scaled::<D>(dot.into(), self.narrow_exponent + row.exponent());
        }
        let pairs = self.samples.iter().zip(&row.samples);
        let dot = pairs.map(|(&q, &k)| i64::from(i32::from(q) * k.widen())).sum();
        scaled::<D>(dot, self.exponent + row.exponent())
    }
}

/// `dot * 2^exponent / sqrt(D)` in units of 2^-16, saturated.
fn scaled<const D: usize>(dot: i64, exponent: i32) -> i32 {
    let magnitude = dot.unsigned_abs();
    let zeros = magnitude.leading_zeros() & 63;
    let mantissa = ((magnitude << zeros) >> 32) as u32;
    let root = const { Real::from_f64(1.0 / sqrt(D as f64)) };
    let score = Real { mantissa, exponent: exponent + 32 - zeros as i32 }.times(root);
    // The mantissa is 0, or 2^30 at least.
    let down = (-(score.exponent + SCORE_BITS as i32)).max(0) as u32;
    let score = score.mantissa.checked_shr(down).unwrap_or(0).min(LIMIT as u32) as i32;
    if dot < 0 { -score } else { score }
}

impl<const D: usize, X: Sample, const S: usize, const N: usize> Default for ExactTokens<D, X, S, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const D: usize, X: Sample, const S: usize, const N: usize> ExactTokens<D, X, S, N> {
    /// No tokens.
    pub const fn new() -> Self {
        Self { sinks: Vec::new(), newest: Vec::new(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.sinks.len() + self.newest.len()
    }

    pub(super) fn clear(&mut self) {
        self.sinks.clear();
        self.newest.clear();
        self.next = 0;
    }

    /// True if the next token takes the place of another one.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= S + N
    }

    /// The token whose place the next one takes.
    pub(super) fn leaving(&self) -> Option<&Token<D, X>> {
        if self.is_full() { self.newest.get(self.next) } else { None }
    }

    /// Takes a token up, in the place of the one that is leaving.
    #[inline(never)]
    pub(super) fn push(&mut self, key: &[i16; D], key_exponent: i32, value: &[i16; D], value_exponent: i32) {
        let empty = Token { key: ExactRow::ZERO, value: ExactRow::ZERO };
        let place = if self.sinks.len() < S {
            self.sinks.push_mut(empty).ok()
        } else if self.newest.len() < N {
            self.newest.push_mut(empty).ok()
        } else {
            let at = self.next;
            self.next = if at + 1 < N { at + 1 } else { 0 };
            self.newest.get_mut(at)
        };
        if let Some(token) = place {
            token.key.set(key, key_exponent);
            token.value.set(value, value_exponent);
        }
    }

    /// Adds all tokens to the softmax of `sum`, and their values to `values`.
    #[inline(never)]
    pub(super) fn attend(
        &self,
        kernels: impl Kernels,
        q: &[i16; D],
        exponent: i32,
        sum: &mut Attention<D>,
        values: &mut ValueSums<D>,
    ) {
        let query = PlainQuery::new::<X>(q, exponent);
        for token in self.sinks.iter().chain(&self.newest) {
            let (whole, power) = sum.weigh(query.score(kernels, &token.key));
            let (row, room) = (&token.value, i32::from(token.value.room));
            // Half of the power has 15 bits, as kernels take them.
            let weight = values.aligned(whole + 1 + row.exponent() - room, power as i32 >> 1, most::<X>());
            // At most 2^(32 - BITS) times 2^(BITS - 1) after the shift.
            let weight = weight << room;
            if let Some(bytes) = X::bytes(&row.samples)
                && kernels.add_bytes(weight, bytes, &mut values.sums).is_some()
            {
                continue;
            }
            for (sum, &v) in values.sums.iter_mut().zip(&row.samples) {
                *sum += weight * v.widen();
            }
        }
    }
}

/// Limit of the sum of weights, so that sums of weight * sample stay below 2^31. It is the limit of levels
/// with the bits of the sample's type in place of 8.
const fn most<X: Sample>() -> u32 {
    (1 << (32 - X::BITS)) - 2
}
