//! A pool with the host's number of threads. It sleeps while it has nothing to do.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, PoisonError};

/// Number of multiplications below which waking a thread costs more time than it saves.
const WORTH: usize = 1 << 20;

/// A pool with the number of threads that the host sets for this context.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pool: Mutex<(usize, Option<ThreadPool>)>,
}

impl Threads {
    /// Sets the number of threads. The pool is made at the first work that is large enough.
    pub(crate) fn set(&self, count: usize) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.0 != count {
            *pool = (count, None);
        }
    }

    /// Runs work of about `products` multiplications: in the pool if that saves time, else in this thread.
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
