//! `RingCache`: the KV cache of one attention head in static memory.

use super::attend::Attention;
use super::codec::FixedCodec;
use super::kernels::Kernels;
use super::query::FixedQuery;
use crate::Portable;
use crate::error::{DecodeError, EncodeError};
use heapless::Vec;

/// What a ring needs of a codec: [`FixedCodec`], alone or in [`WithKernels`].
pub trait BlockCodec: sealed::Sealed {
    /// `[i16; D]`.
    type Vector;
    /// A prepared query.
    type Query;
    /// A weighted sum in progress.
    type Attention;
    /// Bytes of one block.
    const BLOCK_BYTES: usize;

    /// [`FixedCodec::encode`].
    ///
    /// # Errors
    /// As there.
    fn encode_block(&self, x: &Self::Vector, exponent: i32, block: &mut [u8]) -> Result<(), EncodeError>;
    /// [`FixedCodec::query`].
    fn prepare(&self, q: &Self::Vector, exponent: i32) -> Self::Query;
    /// [`FixedCodec::score`].
    ///
    /// # Errors
    /// As there.
    fn score_block(&self, query: &Self::Query, block: &[u8]) -> Result<i32, DecodeError>;
    /// [`Attention::new`].
    fn start(&self) -> Self::Attention;
    /// [`Attention::add`].
    ///
    /// # Errors
    /// As there.
    fn add_block(&self, sum: &mut Self::Attention, score: i32, block: &[u8]) -> Result<(), DecodeError>;
    /// [`Attention::finish`].
    fn finish(&self, sum: Self::Attention, exponent: i32, out: &mut Self::Vector);
}

mod sealed {
    pub trait Sealed {}
    impl<const D: usize, const CODEC: usize> Sealed for super::FixedCodec<D, CODEC> {}
    impl<C: Sealed, K> Sealed for super::WithKernels<C, K> {}
}

impl<const D: usize, const CODEC: usize> BlockCodec for FixedCodec<D, CODEC> {
    type Vector = [i16; D];
    type Query = FixedQuery<D>;
    type Attention = Attention<D>;
    const BLOCK_BYTES: usize = Self::BLOCK_BYTES;

    #[inline(never)]
    fn encode_block(&self, x: &[i16; D], exponent: i32, block: &mut [u8]) -> Result<(), EncodeError> {
        self.encode_slice(Portable, x, exponent, block)
    }

    fn prepare(&self, q: &[i16; D], exponent: i32) -> FixedQuery<D> {
        self.query(q, exponent)
    }

    #[inline(never)]
    fn score_block(&self, query: &FixedQuery<D>, block: &[u8]) -> Result<i32, DecodeError> {
        Self::score_slice(query, block)
    }

    fn start(&self) -> Attention<D> {
        Attention::new()
    }

    #[inline(never)]
    fn add_block(&self, sum: &mut Attention<D>, score: i32, block: &[u8]) -> Result<(), DecodeError> {
        sum.add_slice(self, score, block)
    }

    fn finish(&self, sum: Attention<D>, exponent: i32, out: &mut [i16; D]) {
        sum.finish(self, exponent, out);
    }
}

/// A codec whose vectors and queries go through other [`Kernels`], for a [`RingCache`]. The same blocks, the same results.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct WithKernels<C, K> {
    /// The codec.
    pub codec: C,
    /// The kernels.
    pub kernels: K,
}

impl<const D: usize, const CODEC: usize, K: Kernels> BlockCodec for WithKernels<FixedCodec<D, CODEC>, K> {
    type Vector = [i16; D];
    type Query = FixedQuery<D>;
    type Attention = Attention<D>;
    const BLOCK_BYTES: usize = FixedCodec::<D, CODEC>::BLOCK_BYTES;

    #[inline(never)]
    fn encode_block(&self, x: &[i16; D], exponent: i32, block: &mut [u8]) -> Result<(), EncodeError> {
        self.codec.encode_slice(self.kernels, x, exponent, block)
    }

    fn prepare(&self, q: &[i16; D], exponent: i32) -> FixedQuery<D> {
        self.codec.query_with(self.kernels, q, exponent)
    }

    fn score_block(&self, query: &FixedQuery<D>, block: &[u8]) -> Result<i32, DecodeError> {
        self.codec.score_block(query, block)
    }

    fn start(&self) -> Attention<D> {
        Attention::new()
    }

    fn add_block(&self, sum: &mut Attention<D>, score: i32, block: &[u8]) -> Result<(), DecodeError> {
        self.codec.add_block(sum, score, block)
    }

    fn finish(&self, sum: Attention<D>, exponent: i32, out: &mut [i16; D]) {
        sum.finish(&self.codec, exponent, out);
    }
}

/// Keys and values of the newest tokens of one KV head, and of the first ones (*sinks*).
///
/// `BYTES` of storage hold `BYTES / slot_bytes` tokens, where a slot is one key and one value
/// block; take `RingCache::<K, V, 0>::bytes_for(tokens)`. When it is full, each new token replaces
/// the oldest that is no sink. Positions are the business of the caller (keys come after
/// RoPE), so attention does not care for the order of slots.
///
/// ```
/// use tqkv_core::fixed::{FixedCodec, RingCache};
///
/// type Keys = FixedCodec<64, 4>;
/// type Values = FixedCodec<64, 3>;
/// const BYTES: usize = RingCache::<Keys, Values, 0>::bytes_for(32);
///
/// let mut cache = RingCache::<Keys, Values, BYTES>::new(Keys::DEFAULT, Values::DEFAULT, 4);
/// for token in 0..100_i16 {
///     let vector = core::array::from_fn(|i| token.wrapping_mul((i as i16).wrapping_mul(1237) ^ 411));
///     cache.push(&vector, &vector, -15)?;
/// }
/// assert_eq!((cache.len(), cache.capacity()), (32, 32));
/// let mut out = [0; 64];
/// cache.attend(&[1000; 64], -12, -15, &mut out).unwrap();
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RingCache<K, V, const BYTES: usize> {
    keys: K,
    values: V,
    sinks: usize,
    /// Where the next token goes once the ring is full, in slots.
    next: usize,
    slots: Vec<u8, BYTES>,
}

impl<K: BlockCodec, V: BlockCodec<Vector = K::Vector>, const BYTES: usize> RingCache<K, V, BYTES> {
    /// Bytes of one token: a key and a value block.
    pub const SLOT_BYTES: usize = K::BLOCK_BYTES + V::BLOCK_BYTES;

    /// Storage for `tokens` tokens.
    pub const fn bytes_for(tokens: usize) -> usize {
        tokens * Self::SLOT_BYTES
    }

    /// An empty cache that never replaces its first `sinks` tokens; of those at most all but one
    /// slot are used.
    pub const fn new(keys: K, values: V, sinks: usize) -> Self {
        let most = (BYTES / Self::SLOT_BYTES).saturating_sub(1);
        let sinks = if sinks < most { sinks } else { most };
        Self { keys, values, sinks, next: sinks, slots: Vec::new() }
    }

    /// Most tokens held.
    pub const fn capacity(&self) -> usize {
        BYTES / Self::SLOT_BYTES
    }

    /// Tokens held.
    pub fn len(&self) -> usize {
        self.slots.len() / Self::SLOT_BYTES
    }

    /// Whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.next = self.sinks;
    }

    /// Appends a token whose key and value are multiples of 2^exponent; in a full ring it replaces the
    /// oldest that is no sink. A ring without room for one token stays empty.
    ///
    /// # Errors
    /// A scale outside f16; the ring is then as before, but for the slot to be
    /// replaced, which is a token of zeros until the next push.
    pub fn push(&mut self, key: &K::Vector, value: &K::Vector, exponent: i32) -> Result<(), EncodeError> {
        let (full, before) = (self.len() >= self.capacity(), self.slots.len());
        let start = if full { self.next * Self::SLOT_BYTES } else { before };
        if !full && self.slots.resize(start + Self::SLOT_BYTES, 0).is_err() {
            return Ok(());
        }
        let result = match self.slots.get_mut(start..start + Self::SLOT_BYTES) {
            Some(slot) => encode_slot(&self.keys, &self.values, key, value, exponent, slot),
            None => Ok(()),
        };
        match result {
            Ok(()) if full => {
                self.next = if self.next + 1 < self.capacity() { self.next + 1 } else { self.sinks };
            }
            Err(_) if !full => self.slots.truncate(before),
            Ok(()) | Err(_) => {}
        }
        result
    }

    /// Softmax attention of the query `q * 2^exponent` over all tokens, logits scaled by
    /// 1/sqrt(D); writes multiples of 2^`out_exponent`, rounded and saturated, zeros where the ring
    /// is empty.
    ///
    /// # Errors
    /// A stored scale is NaN or infinite, which no encoder writes; `out` is untouched then.
    pub fn attend(
        &self,
        q: &K::Vector,
        exponent: i32,
        out_exponent: i32,
        out: &mut K::Vector,
    ) -> Result<(), DecodeError> {
        let query = self.keys.prepare(q, exponent);
        let mut sum = self.values.start();
        for slot in self.slots.chunks_exact(Self::SLOT_BYTES) {
            if let Some((key, value)) = slot.split_at_checked(K::BLOCK_BYTES) {
                let score = self.keys.score_block(&query, key)?;
                self.values.add_block(&mut sum, score, value)?;
            }
        }
        self.values.finish(sum, out_exponent, out);
        Ok(())
    }

    /// The stored slots, a key and a value block each: what a server decodes. The order is that
    /// of arrival until the ring is full.
    pub fn slots(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.slots.chunks_exact(Self::SLOT_BYTES).filter_map(|slot| slot.split_at_checked(K::BLOCK_BYTES))
    }
}

fn encode_slot<K: BlockCodec, V: BlockCodec<Vector = K::Vector>>(
    keys: &K,
    values: &V,
    key: &K::Vector,
    value: &K::Vector,
    exponent: i32,
    slot: &mut [u8],
) -> Result<(), EncodeError> {
    if let Some((key_block, value_block)) = slot.split_at_mut_checked(K::BLOCK_BYTES) {
        let result = keys.encode_block(key, exponent, key_block);
        let result = result.and(values.encode_block(value, exponent, value_block));
        if result.is_err() {
            slot.fill(0);
        }
        return result;
    }
    Ok(())
}
