//! `RingCache`: the KV cache of one attention head in static memory.

use super::attend::{Attention, ValueSums};
use super::codec::FixedCodec;
use super::exact::ExactTokens;
use super::kernels::Kernels;
use super::sample::Sample;
use super::tables::Tables;
use crate::Portable;
use crate::code::Code;
use crate::error::{DecodeError, EncodeError};

/// Keys and values of the newest tokens of one KV head, and of the first tokens (*sinks*).
///
/// A token passes through tiers. The first `S` tokens and the newest `N` are exact, in samples of type `X`.
/// Others are coded, as `K` and `V`. When all slots of codes are taken, each new token replaces the oldest
/// one that is not a sink. Without [`Self::with_exact`] every token is coded (`S` and `N` are 0).
///
/// The ring borrows three memories. The codecs hold the signs and never change: they belong in flash, and one
/// pair serves the rings of all heads. The codes are bytes of RAM: a slot is one key block and one value
/// block, and there are as many slots as fit. Start them with zeros, so that a `static` of them takes no
/// flash. The exact tokens are [`ExactTokens`]. The caller handles positions (keys come after RoPE), so
/// attention does not depend on the order of slots.
///
/// ```
/// use tqkv_core::code::{S3, S4};
/// use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
///
/// static KEYS: FixedCodec<64, S4> = FixedCodec::DEFAULT;
/// static VALUES: FixedCodec<64, S3> = FixedCodec::DEFAULT;
/// const BYTES: usize = RingCache::<64, S4, S3>::bytes_for(32);
///
/// // In a firmware a `static` each, by `cortex_m::singleton!` or `static_cell`.
/// let mut memory = [0; BYTES];
/// let mut exact = ExactTokens::<64, i8, 4, 16>::new();
/// let mut cache = RingCache::new(&KEYS, &VALUES, &mut memory, 0).with_exact(&mut exact);
/// for token in 0..100_i16 {
///     let vector = core::array::from_fn(|i| token.wrapping_mul((i as i16).wrapping_mul(1237) ^ 411));
///     cache.push(&vector, -12, &vector, -15)?;
/// }
/// assert_eq!((cache.len(), cache.capacity()), (52, 52));
/// let mut out = [0; 64];
/// cache.attend(&[1000; 64], -12, -15, &mut out).unwrap();
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingCache<
    'a,
    const D: usize,
    K: Code,
    V: Code,
    M = Portable,
    X: Sample = i8,
    const S: usize = 0,
    const N: usize = 0,
> {
    codes: Codes<'a, D, K, V, M>,
    /// None only if `S` and `N` are 0.
    exact: Option<&'a mut ExactTokens<D, X, S, N>>,
}

/// The coded tokens.
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
struct Codes<'a, const D: usize, K: Code, V: Code, M> {
    keys: &'a FixedCodec<D, K, M>,
    values: &'a FixedCodec<D, V, M>,
    memory: &'a mut [u8],
    /// Tokens held, in the first slots.
    len: usize,
    /// The slots that are never replaced, if there are more slots.
    sinks: usize,
    /// The slot of the next token when all are taken.
    next: usize,
}

impl<const D: usize, K: Code, V: Code> RingCache<'_, D, K, V> {
    /// Bytes of a coded token: one key block and one value block.
    pub const SLOT_BYTES: usize = Tables::<D, K>::BLOCK_BYTES + Tables::<D, V>::BLOCK_BYTES;

    /// Memory for `tokens` coded tokens. Exact ones take the `size_of` of their [`ExactTokens`].
    pub const fn bytes_for(tokens: usize) -> usize {
        tokens * Self::SLOT_BYTES
    }
}

impl<'a, const D: usize, K: Code, V: Code, M: Kernels> RingCache<'a, D, K, V, M> {
    /// An empty cache of coded tokens that never replaces its first `sinks` tokens. At most all slots but one
    /// are sinks. The contents of the memory do not matter.
    pub const fn new(
        keys: &'a FixedCodec<D, K, M>,
        values: &'a FixedCodec<D, V, M>,
        memory: &'a mut [u8],
        sinks: usize,
    ) -> Self {
        let codes = Codes { keys, values, memory, len: 0, sinks, next: 0 };
        Self { codes: codes.emptied(), exact: None }
    }

    /// The same empty cache with exact tokens: the first `S` of all, and the newest `N`. Sinks beyond `S`
    /// stay coded. Tokens that `exact` holds are forgotten.
    pub fn with_exact<X: Sample, const S: usize, const N: usize>(
        self,
        exact: &'a mut ExactTokens<D, X, S, N>,
    ) -> RingCache<'a, D, K, V, M, X, S, N> {
        exact.clear();
        let sinks = self.codes.sinks.saturating_sub(S);
        RingCache { codes: Codes { sinks, ..self.codes }.emptied(), exact: Some(exact) }
    }
}

impl<'a, const D: usize, K: Code, V: Code, M: Kernels, X: Sample, const S: usize, const N: usize>
    RingCache<'a, D, K, V, M, X, S, N>
{
    /// Maximum number of tokens.
    pub const fn capacity(&self) -> usize {
        S + N + self.codes.capacity()
    }

    /// Number of tokens held.
    pub fn len(&self) -> usize {
        self.exact.as_ref().map_or(0, |exact| exact.len()) + self.codes.len
    }

    /// Returns true if no token is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.codes.clear();
        if let Some(exact) = &mut self.exact {
            exact.clear();
        }
    }

    /// Appends a token: `key * 2^key_exponent` and `value * 2^value_exponent`. If exact tokens have no room,
    /// the oldest of the newest is encoded, or this one if there are none. If all slots are taken, that
    /// replaces the oldest coded token that is not a sink, or is dropped where no slot is.
    ///
    /// # Errors
    /// The scale of the encoded token does not fit f16. That token is dropped. The token that it replaces is
    /// a token of zeros until the next one is encoded. A new token that is exact is held all the same.
    pub fn push(
        &mut self,
        key: &[i16; D],
        key_exponent: i32,
        value: &[i16; D],
        value_exponent: i32,
    ) -> Result<(), EncodeError> {
        let Some(exact) = &mut self.exact else {
            return self.codes.push(key, key_exponent, value, value_exponent);
        };
        if const { N == 0 } && exact.is_full() {
            return self.codes.push(key, key_exponent, value, value_exponent);
        }
        let encoded = exact.leaving().map_or(Ok(()), |old| {
            let (key, value) = (&old.key, &old.value);
            self.codes.push(&key.samples, key.exponent(), &value.samples, value.exponent())
        });
        exact.push(key, key_exponent, value, value_exponent);
        encoded
    }

    /// Softmax attention of the query `q * 2^exponent` over all tokens; logits are scaled by 1/sqrt(D).
    /// Writes multiples of 2^`out_exponent`, rounded and saturated, or zeros if the ring is empty.
    ///
    /// # Errors
    /// A stored scale is NaN or infinite, which no encoder writes; `out` is then untouched.
    pub fn attend(
        &self,
        q: &[i16; D],
        exponent: i32,
        out_exponent: i32,
        out: &mut [i16; D],
    ) -> Result<(), DecodeError> {
        let mut sum = Attention::new();
        let Some(exact) = &self.exact else {
            self.codes.attend(q, exponent, &mut sum)?;
            sum.finish(self.codes.values, out_exponent, out);
            return Ok(());
        };
        let mut values = ValueSums::new();
        exact.attend(self.codes.values.kernels, q, exponent, &mut sum, &mut values);
        self.codes.attend(q, exponent, &mut sum)?;
        sum.finish(self.codes.values, out_exponent, out);
        sum.finish_plain(&values, out_exponent, out);
        Ok(())
    }

    /// The stored slots of coded tokens, each a key block and a value block, for a server to decode. They are
    /// in order of arrival until all slots are taken.
    pub fn slots(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.codes.slots()
    }
}

impl<const D: usize, K: Code, V: Code, M> Codes<'_, D, K, V, M> {
    const SLOT: usize = RingCache::<D, K, V>::SLOT_BYTES;

    const fn capacity(&self) -> usize {
        self.memory.len() / Self::SLOT
    }

    /// The first slot that is ever replaced.
    const fn first(&self) -> usize {
        let most = self.capacity().saturating_sub(1);
        if self.sinks < most { self.sinks } else { most }
    }

    const fn clear(&mut self) {
        self.len = 0;
        self.next = self.first();
    }

    const fn emptied(mut self) -> Self {
        self.clear();
        self
    }

    fn slots(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let slots = self.memory.chunks_exact(Self::SLOT).take(self.len);
        slots.filter_map(|slot| slot.split_at_checked(Tables::<D, K>::BLOCK_BYTES))
    }
}

impl<const D: usize, K: Code, V: Code, M: Kernels> Codes<'_, D, K, V, M> {
    fn push<T: Sample>(
        &mut self,
        key: &[T; D],
        key_exponent: i32,
        value: &[T; D],
        value_exponent: i32,
    ) -> Result<(), EncodeError> {
        let full = self.len >= self.capacity();
        let at = if full { self.next } else { self.len };
        let slot = self.memory.chunks_exact_mut(Self::SLOT).nth(at);
        let Some(slot) = slot else { return Ok(()) };
        let Some((key_block, value_block)) = slot.split_at_mut_checked(Tables::<D, K>::BLOCK_BYTES) else {
            return Ok(());
        };
        let result = self.keys.encode_block(key, key_exponent, key_block);
        let result = result.and(self.values.encode_block(value, value_exponent, value_block));
        if result.is_err() {
            slot.fill(0);
        } else if full {
            self.next = if self.next + 1 < self.capacity() { self.next + 1 } else { self.first() };
        } else {
            self.len += 1;
        }
        result
    }

    fn attend(&self, q: &[i16; D], exponent: i32, sum: &mut Attention<D>) -> Result<(), DecodeError> {
        let query = self.keys.query(q, exponent);
        for (key, value) in self.slots() {
            let score = self.keys.score_block(&query, key)?;
            sum.add_block(self.values, score, value)?;
        }
        Ok(())
    }
}
