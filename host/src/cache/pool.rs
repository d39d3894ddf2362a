//! Many sequences under one hard limit of bytes.
//!
//! A pool owns its sequences, so it can free whole ones: those that were not used for longest, where its
//! policy says so. Who wants threads of their own for each sequence shares a [`Budget`] among
//! [`KvCache::within`] instead, and decides what to drop on [`CacheError::Full`].

use super::{Budget, CacheSpec, KvCache};
use crate::error::CacheError;
use std::collections::BTreeMap;

/// A sequence of a pool; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// What a pool does when an operation needs more bytes than are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The operation is refused with [`CacheError::Full`]; the caller removes what it can spare and tries
    /// again.
    #[default]
    Refuse,
    /// The sequence that was not used for longest is removed, until the operation fits or is alone.
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
    /// Counts sequences made, and uses.
    made: u64,
    uses: u64,
}

#[derive(Debug)]
struct Sequence {
    cache: KvCache,
    used: u64,
}

impl CachePool {
    /// An empty pool of at most `bytes` bytes of keys and values.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn new(spec: CacheSpec, bytes: usize, eviction: Eviction) -> Result<Self, CacheError> {
        let empty = KvCache::within(spec, &Budget::new(bytes))?;
        Ok(Self { empty, eviction, sequences: BTreeMap::new(), made: 0, uses: 0 })
    }

    /// Begins an empty sequence.
    ///
    /// # Errors
    /// [`CacheError::Full`].
    pub fn create(&mut self) -> Result<SequenceId, CacheError> {
        let cache = self.empty.fork()?;
        Ok(self.insert(cache))
    }

    /// Begins a sequence with the tokens of another, whose pages it shares.
    ///
    /// # Errors
    /// [`CacheError::NoSequence`], [`CacheError::Full`].
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, CacheError> {
        let cache = self.with(id, |cache| cache.fork())?;
        Ok(self.insert(cache))
    }

    /// Ends a sequence; whether there was one.
    pub fn remove(&mut self, id: SequenceId) -> bool {
        self.sequences.remove(&id).is_some()
    }

    /// A sequence, to read from; this is no use of it.
    pub fn get(&self, id: SequenceId) -> Option<&KvCache> {
        self.sequences.get(&id).map(|sequence| &sequence.cache)
    }

    /// Uses a sequence. Where that needs more bytes than are free, others are removed as [`Eviction`] says,
    /// and `work` is run again: a cache that refused is as it was.
    ///
    /// # Errors
    /// [`CacheError::NoSequence`], and what `work` returns.
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

    /// Sequences there are, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// What the sequences hold together; pages that they share count once.
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

    /// Removes the sequence other than `id` that was not used for longest; whether there was one.
    fn evict_one(&mut self, id: SequenceId) -> bool {
        let others = self.sequences.iter().filter(|(other, _)| **other != id);
        let oldest = others.min_by_key(|(_, sequence)| sequence.used).map(|(other, _)| *other);
        self.eviction == Eviction::LeastRecentlyUsed && oldest.is_some_and(|oldest| self.remove(oldest))
    }
}
