//! Starts the threads of rayon's pool at a point where failure is still an error.
//!
//! Rayon starts its global pool at first use, and panics if the system cannot provide the threads
//! (`RAYON_NUM_THREADS=20000`, a limit on processes or memory). [`KvCache::new`](crate::cache::KvCache::new)
//! starts the pool. A program that wants another number of threads starts it earlier.

pub(crate) mod share;
pub(crate) mod team;

pub use share::follow;
pub(crate) use share::{is_shared, several, share};

use crate::error::CacheError;
use std::error::Error;
use std::sync::OnceLock;

/// More threads than the processors of any machine help nothing, and each takes a stack.
const MOST: usize = 1024;

/// Starts the global pool, unless the caller runs in a pool or the pool has started.
///
/// # Errors
/// [`CacheError::Threads`] if the system cannot provide the threads.
pub fn start() -> Result<(), CacheError> {
    if is_shared() { Ok(()) } else { start_pool(0) }
}

/// Starts the global pool with `threads` threads; `RAYON_NUM_THREADS` has no effect then. With 1 every call
/// does its work itself. Call it before the first cache is made: a started pool keeps its number of threads.
///
/// # Errors
/// [`CacheError::Threads`] in three cases:
///
/// * The number is 0 or more than 1024.
/// * The pool has started with another number.
/// * The system cannot provide the threads. No cache can be made in this process then.
pub fn start_with(threads: usize) -> Result<(), CacheError> {
    if !(1..=MOST).contains(&threads) {
        return Err(CacheError::Threads(format!("{threads} is not valid: expected 1 to {MOST}")));
    }
    start_pool(threads)?;
    let running = rayon::current_num_threads();
    if running == threads {
        return Ok(());
    }
    Err(CacheError::Threads(format!("{threads} is not possible: {running} have started already")))
}

/// Number of threads that share the work of calls: those of the team that the process [follows](follow), or of the pool, which starts if it
/// has not started.
///
/// # Errors
/// The same as [`start`].
pub fn running() -> Result<usize, CacheError> {
    start()?;
    Ok(share::threads())
}

/// Starts the global pool with this many threads, or with rayon's default for 0. Does nothing if the pool has
/// started.
fn start_pool(threads: usize) -> Result<(), CacheError> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| {
        let mut pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        // WebAssembly has no threads: the calling thread does all work.
        if cfg!(target_family = "wasm") {
            pool = pool.num_threads(1).use_current_thread();
        }
        let error = pool.build_global().err()?;
        // An error without a source means that the pool had started before.
        error.source().map(ToString::to_string)
    });
    refused.clone().map_or(Ok(()), |error| Err(CacheError::Threads(error)))
}
