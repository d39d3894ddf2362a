//! `RingCache`: the KV cache of one attention head in static memory.

use super::attend::Attention;
use super::codec::FixedCodec;
use super::kernels::Kernels;
use super::tables::Tables;
use crate::Portable;
use crate::code::Code;
use crate::error::{DecodeError, EncodeError};

/// Keys and values of the newest tokens of one KV head, and of the first tokens (*sinks*).
///
/// It uses two memories. The codecs hold the signs and never change: they belong in flash, and one pair
/// serves the rings of all heads. The tokens are bytes of RAM, which the caller lends. Start them with zeros,
/// so that a `static` of them takes no flash.
///
/// A slot is one key block and one value block. The ring has as many slots as fit the bytes; use
/// `RingCache::<D, K, V>::bytes_for(tokens)`. When the ring is full, each new token replaces the oldest one
/// that is not a sink. The caller handles positions (keys come after RoPE), so attention does not depend on
/// the order of slots.
///
/// ```
/// use tqkv_core::code::{S3, S4};
/// use tqkv_core::fixed::{FixedCodec, RingCache};
///
/// static KEYS: FixedCodec<64, S4> = FixedCodec::DEFAULT;
/// static VALUES: FixedCodec<64, S3> = FixedCodec::DEFAULT;
/// const BYTES: usize = RingCache::<64, S4, S3>::bytes_for(32);
///
/// let mut memory = [0; BYTES]; // in a firmware a `static`, by `cortex_m::singleton!` or `static_cell`
/// let mut cache = RingCache::new(&KEYS, &VALUES, &mut memory, 4);
/// for token in 0..100_i16 {
///     let vector = core::array::from_fn(|i| token.wrapping_mul((i as i16).wrapping_mul(1237) ^ 411));
///     cache.push(&vector, -12, &vector, -15)?;
/// }
/// assert_eq!((cache.len(), cache.capacity()), (32, 32));
/// let mut out = [0; 64];
/// cache.attend(&[1000; 64], -12, -15, &mut out).unwrap();
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingCache<'a, const D: usize, K: Code, V: Code, M = Portable> {
    keys: &'a FixedCodec<D, K, M>,
    values: &'a FixedCodec<D, V, M>,
    memory: &'a mut [u8],
    /// Tokens held, in the first slots.
    len: usize,
    sinks: usize,
    /// The slot of the next token when the ring is full.
    next: usize,
}

impl<const D: usize, K: Code, V: Code> RingCache<'_, D, K, V> {
    /// Bytes of one token: one key block and one value block.
    pub const SLOT_BYTES: usize = Tables::<D, K>::BLOCK_BYTES + Tables::<D, V>::BLOCK_BYTES;

    /// Memory for `tokens` tokens.
    pub const fn bytes_for(tokens: usize) -> usize {
        tokens * Self::SLOT_BYTES
    }
}

impl<'a, const D: usize, K: Code, V: Code, M: Kernels> RingCache<'a, D, K, V, M> {
    const SLOT: usize = RingCache::<D, K, V>::SLOT_BYTES;

    /// An empty cache that never replaces its first `sinks` tokens. At most all slots but one are sinks. The
    /// contents of the memory do not matter.
    pub const fn new(
        keys: &'a FixedCodec<D, K, M>,
        values: &'a FixedCodec<D, V, M>,
        memory: &'a mut [u8],
        sinks: usize,
    ) -> Self {
        let most = (memory.len() / Self::SLOT).saturating_sub(1);
        let sinks = if sinks < most { sinks } else { most };
        Self { keys, values, memory, len: 0, sinks, next: sinks }
    }

    /// Maximum number of tokens.
    pub const fn capacity(&self) -> usize {
        self.memory.len() / Self::SLOT
    }

    /// Number of tokens held.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no token is held.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all tokens.
    pub const fn clear(&mut self) {
        self.len = 0;
        self.next = self.sinks;
    }

    /// Appends a token: `key * 2^key_exponent` and `value * 2^value_exponent`. In a full ring it replaces the
    /// oldest token that is not a sink. A ring without room for one token stays empty.
    ///
    /// # Errors
    /// The scale does not fit f16. The ring then holds the same tokens as before, except the one to be
    /// replaced: it is a token of zeros until the next push.
    pub fn push(
        &mut self,
        key: &[i16; D],
        key_exponent: i32,
        value: &[i16; D],
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
            self.next = if self.next + 1 < self.capacity() { self.next + 1 } else { self.sinks };
        } else {
            self.len += 1;
        }
        result
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
        let query = self.keys.query(q, exponent);
        let mut sum = Attention::new();
        for (key, value) in self.slots() {
            let score = self.keys.score_block(&query, key)?;
            sum.add_block(self.values, score, value)?;
        }
        sum.finish(self.values, out_exponent, out);
        Ok(())
    }

    /// The stored slots, each a key block and a value block, for a server to decode. They are in order of
    /// arrival until the ring is full.
    pub fn slots(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let slots = self.memory.chunks_exact(Self::SLOT).take(self.len);
        slots.filter_map(|slot| slot.split_at_checked(Tables::<D, K>::BLOCK_BYTES))
    }
}
