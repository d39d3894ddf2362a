//! Bytes that caches share: a hard limit, and what each part of a cache holds of it.
//!
//! An operation first reserves the most that it may need, and is refused as a whole where that is not free.
//! What is allocated then is counted as it is, so the sum of all caches never passes the limit.

use super::meter::{Event, count};
use crate::error::CacheError;
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit on the bytes of keys and values that all caches made with it hold together; clones share it.
///
/// Pages that forks share count once.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    limit: usize,
    /// Held by caches.
    used: AtomicUsize,
    /// Promised to operations that are running.
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
    /// At most that many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Counters {
            limit: bytes,
            used: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            #[cfg(test)]
            faults: Default::default(),
        }))
    }

    /// Counts, and refuses nothing.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Bytes that caches may hold together.
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

    /// Promises bytes to an operation, until the promise is dropped.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reserved<'_>, CacheError> {
        #[cfg(test)]
        if self.0.faults.check().is_err() {
            return Err(CacheError::Full { needed: bytes, free: 0, limit: self.0.limit });
        }
        // Whoever sees that an operation has ended sees what it has taken: acquired here, released by its
        // drop.
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

    /// Counts bytes that were reserved.
    pub(super) fn take(&self, bytes: usize) {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that are free again.
    pub(super) fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A part that holds nothing yet.
    pub(super) fn lease(&self) -> Lease {
        Lease { budget: self.clone(), bytes: 0 }
    }
}

/// Bytes promised to an operation.
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

/// Bytes that a part of a cache holds, given back when it is dropped. A copy of the part holds as many again.
#[derive(Debug)]
pub(super) struct Lease {
    budget: Budget,
    bytes: usize,
}

impl Lease {
    /// Says how many bytes the part holds now; they were reserved.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.take(bytes - self.bytes);
        } else {
            self.budget.give_back(self.bytes - bytes);
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

/// Every order in which two threads can do what they do, and everything that either may see of the other.
#[cfg(all(loom, test))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Takes `bytes` if it may; what it holds is not above the limit then, whatever others do.
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

    /// What has been counted when an operation ends is seen by whoever sees that it has ended.
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
