//! Many sequences under one hard limit of bytes.
//!
//! A pool owns its sequences. If its policy says so, it frees the least recently used ones. For separate
//! threads per sequence, share a [`Budget`] with [`KvCache::within`] instead, and decide what to drop on
//! [`CacheError::Full`].

use super::{Budget, CacheSpec, KvCache};
use crate::error::CacheError;
use std::collections::BTreeMap;

/// Identifies a sequence of a pool. An id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// The policy of a pool when an operation needs more bytes than are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The operation is refused with [`CacheError::Full`]. The caller removes sequences and tries again.
    #[default]
    Refuse,
    /// The least recently used sequences are removed until the operation fits or no other sequence is left.
    LeastRecentlyUsed,
}

/// Sequences of one spec that share a budget.
///
/// ```
/// use tqkv::cache::{CachePool, CacheSpec, Eviction};
///
/// let mut pool = CachePool::new(CacheSpec::new(1, 1, 1, 64), 1 << 20, Eviction::LeastRecentlyUsed)?;
/// let prompt = pool.create()?;
/// pool.with(prompt, |cache| cache.append(0, &[0.5; 64], &[0.5; 64]))?;
/// let answer = pool.fork(prompt)?;
/// assert_eq!(pool.get(answer).map(|cache| cache.len()), Some(1));
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Debug)]
pub struct CachePool {
    empty: KvCache,
    eviction: Eviction,
    sequences: BTreeMap<SequenceId, Sequence>,
    /// Counter for ids and for the order of uses.
    made: u64,
    uses: u64,
}

#[derive(Debug)]
struct Sequence {
    cache: KvCache,
    used: u64,
}

impl CachePool {
    /// Makes an empty pool of at most `bytes` bytes of keys and values.
    ///
    /// # Errors
    /// The same as [`KvCache::new`].
    pub fn new(spec: CacheSpec, bytes: usize, eviction: Eviction) -> Result<Self, CacheError> {
        let empty = KvCache::within(spec, &Budget::new(bytes))?;
        Ok(Self { empty, eviction, sequences: BTreeMap::new(), made: 0, uses: 0 })
    }

    /// Creates an empty sequence.
    ///
    /// # Errors
    /// [`CacheError::Full`].
    pub fn create(&mut self) -> Result<SequenceId, CacheError> {
        let cache = self.empty.fork()?;
        Ok(self.insert(cache))
    }

    /// Creates a sequence with the tokens of another one, whose pages it shares.
    ///
    /// # Errors
    /// [`CacheError::NoSequence`], [`CacheError::Full`].
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, CacheError> {
        let cache = self.with(id, |cache| cache.fork())?;
        Ok(self.insert(cache))
    }

    /// Removes a sequence. Returns true if it existed.
    pub fn remove(&mut self, id: SequenceId) -> bool {
        self.sequences.remove(&id).is_some()
    }

    /// A sequence for reading. This does not count as a use.
    pub fn get(&self, id: SequenceId) -> Option<&KvCache> {
        self.sequences.get(&id).map(|sequence| &sequence.cache)
    }

    /// Runs `work` on a sequence, which counts as a use. If it needs more bytes than are free, others are
    /// removed as [`Eviction`] says and `work` runs again. A cache that refused a call is unchanged.
    ///
    /// # Errors
    /// [`CacheError::NoSequence`], and the errors of `work`.
    pub fn with<R>(
        &mut self,
        id: SequenceId,
        mut work: impl FnMut(&mut KvCache) -> Result<R, CacheError>,
    ) -> Result<R, CacheError> {
        self.uses += 1;
        let uses = self.uses;
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return Err(CacheError::NoSequence) };
            sequence.used = uses;
            match work(&mut sequence.cache) {
                Err(CacheError::Full { .. }) if self.evict_one(id) => {}
                result => return result,
            }
        }
    }

    /// The ids of all sequences, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// The budget of all sequences together. Shared pages count once.
    pub fn budget(&self) -> &Budget {
        self.empty.budget()
    }

    fn insert(&mut self, cache: KvCache) -> SequenceId {
        let id = SequenceId(self.made);
        self.made += 1;
        self.uses += 1;
        self.sequences.insert(id, Sequence { cache, used: self.uses });
        id
    }

    /// Removes the least recently used sequence other than `id`. Returns true if there was one.
    fn evict_one(&mut self, id: SequenceId) -> bool {
        let others = self.sequences.iter().filter(|(other, _)| **other != id);
        let oldest = others.min_by_key(|(_, sequence)| sequence.used).map(|(other, _)| *other);
        self.eviction == Eviction::LeastRecentlyUsed && oldest.is_some_and(|oldest| self.remove(oldest))
    }
}
