//! The host's number of threads, as a pool that sleeps while it has nothing to do.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, PoisonError};

/// Products of numbers below which waking a thread costs more than it saves.
const WORTH: usize = 1 << 20;

/// A pool of as many threads as the host has for this context.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pool: Mutex<(usize, Option<ThreadPool>)>,
}

impl Threads {
    /// Sets the number; a pool of that many is made at the first work that is worth it.
    pub(crate) fn set(&self, count: usize) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.0 != count {
            *pool = (count, None);
        }
    }

    /// Runs work of about `products` products of numbers, in the pool where that is worth it.
    pub(crate) fn run<R: Send>(&self, products: usize, work: impl FnOnce() -> R + Send) -> R {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, pool) = &mut *pool;
        if *count > 1 && products >= WORTH {
            if pool.is_none() {
                *pool = ThreadPoolBuilder::new().num_threads(*count).build().ok();
            }
            if let Some(pool) = pool {
                return pool.install(work);
            }
        }
        work()
    }
}
