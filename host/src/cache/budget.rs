//! A hard limit on the bytes of several caches, and the share that each part of a cache holds.
//!
//! An operation first reserves the most that it may need, and is refused if that is not free. Then the real
//! allocations are counted, so the sum of all caches never exceeds the limit.

use super::meter::{Event, count};
use crate::error::CacheError;
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::cmp;
use std::sync::Arc;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit on the bytes of keys and values of all caches made with it. Clones share it.
///
/// Pages that forks share count once.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    limit: usize,
    /// Bytes that caches hold.
    used: AtomicUsize,
    /// Bytes that are reserved for running operations.
    reserved: AtomicUsize,
    #[cfg(test)]
    faults: super::tests::Faults,
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

impl Budget {
    /// Makes a budget of at most `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Counters {
            limit: bytes,
            used: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            #[cfg(test)]
            faults: Default::default(),
        }))
    }

    /// Makes a budget that counts bytes and refuses nothing.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Bytes that caches hold now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    pub(super) fn is_limited(&self) -> bool {
        self.0.limit != usize::MAX
    }

    /// Reserves bytes for an operation until the result is dropped.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reserved<'_>, CacheError> {
        #[cfg(test)]
        if self.0.faults.check().is_err() {
            return Err(CacheError::Full { needed: bytes, free: 0, limit: self.0.limit });
        }
        // A thread that sees the end of an operation also sees the bytes it took. `fetch_add` acquires; the
        // drop of the reservation releases.
        let before = self.0.reserved.fetch_add(bytes, Ordering::AcqRel);
        let reserved = Reserved { budget: self, bytes };
        let taken = self.used().saturating_add(before);
        if taken.saturating_add(bytes) <= self.0.limit {
            Ok(reserved)
        } else {
            count(Event::Refused, 1);
            Err(CacheError::Full {
                needed: bytes,
                free: self.0.limit.saturating_sub(taken),
                limit: self.0.limit,
            })
        }
    }

    #[cfg(test)]
    pub(super) fn faults(&self) -> &super::tests::Faults {
        &self.0.faults
    }

    /// Counts bytes that were reserved before.
    pub(super) fn take(&self, bytes: usize) {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were freed.
    pub(super) fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Makes a lease of 0 bytes.
    pub(super) fn lease(&self) -> Lease {
        Lease { budget: self.clone(), bytes: 0 }
    }
}

/// Bytes that are reserved for an operation.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    budget: &'a Budget,
    bytes: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.budget.0.reserved.fetch_sub(self.bytes, Ordering::Release);
    }
}

/// Bytes that a part of a cache holds; dropping the lease frees them. A clone counts the same bytes again.
#[derive(Debug)]
pub(super) struct Lease {
    budget: Budget,
    bytes: usize,
}

impl Lease {
    /// Sets the bytes that the part holds now. They were reserved before.
    pub(super) fn set(&mut self, bytes: usize) {
        // Most calls change nothing, and a count that all caches share takes as long as a copy of a vector.
        match bytes.cmp(&self.bytes) {
            cmp::Ordering::Equal => return,
            cmp::Ordering::Greater => self.budget.take(bytes - self.bytes),
            cmp::Ordering::Less => self.budget.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        let mut copy = self.budget.lease();
        copy.set(self.bytes);
        copy
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Model test of two threads: every order of their steps, and every value that either may see.
#[cfg(all(loom, test))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Takes `bytes` if the budget allows. The total must not exceed the limit then.
    fn grow(budget: &Budget, lease: &mut Lease, bytes: usize) -> bool {
        let Ok(_room) = budget.reserve(bytes) else { return false };
        lease.set(lease.bytes + bytes);
        assert!(budget.used() <= budget.limit(), "{} of {}", budget.used(), budget.limit());
        true
    }

    #[test]
    fn loom_a_limit_holds_and_every_byte_comes_back() {
        loom::model(|| {
            let budget = Budget::new(10);
            let other = budget.clone();
            let thread = thread::spawn(move || {
                let mut lease = other.lease();
                let grown = grow(&other, &mut lease, 6);
                (grown, lease)
            });
            let mut lease = budget.lease();
            let grown = grow(&budget, &mut lease, 6);
            let (other_grown, other_lease) = thread.join().unwrap();
            assert!(!(grown && other_grown), "12 of 10 bytes");
            assert_eq!(budget.used(), lease.bytes + other_lease.bytes);
            drop((lease, other_lease));
            assert_eq!((budget.used(), budget.0.reserved.load(Ordering::Relaxed)), (0, 0));
        });
    }

    /// A thread that sees the end of an operation also sees the bytes that it counted.
    #[test]
    fn loom_bytes_given_back_are_free_for_others() {
        loom::model(|| {
            let budget = Budget::new(10);
            let other = budget.clone();
            let thread = thread::spawn(move || {
                let mut lease = other.lease();
                for _ in 0..2 {
                    grow(&other, &mut lease, 5);
                }
                lease.set(lease.bytes.min(2));
                lease
            });
            let mut lease = budget.lease();
            grow(&budget, &mut lease, 7);
            let copy = thread.join().unwrap();
            assert_eq!(budget.used(), lease.bytes + copy.bytes);
            drop(lease);
            let free = budget.limit() - copy.bytes;
            assert!(budget.reserve(free).is_ok());
            assert!(budget.reserve(free + 1).is_err());
        });
    }
}
