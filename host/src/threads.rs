//! The threads of rayon's pool, started where they can still be refused.
//!
//! Rayon starts its global pool at its first use and panics where the system has no threads to give
//! (`RAYON_NUM_THREADS=20000`, a limit on processes or memory). A cache starts it when it is made; a program
//! that wants another number of threads starts it before.

use crate::error::CacheError;
use std::error::Error;
use std::sync::OnceLock;

/// More than any machine's processors give nothing; each takes a stack.
const MOST: usize = 1024;

/// Starts the global pool, unless the caller is in a pool already or has started it.
///
/// # Errors
/// [`CacheError::Threads`] where the system has none to give.
pub fn start() -> Result<(), CacheError> {
    if rayon::current_thread_index().is_some() { Ok(()) } else { start_pool(0) }
}

/// Starts the global pool with so many threads, whatever `RAYON_NUM_THREADS` says; 1 has every call do its
/// work itself. Call it before the first cache is made: a pool that is there keeps its number.
///
/// # Errors
/// [`CacheError::Threads`] for 0 or more than 1024, where the pool was started with another number, or where
/// the system has none to give; no cache can be made in the process in the last case.
pub fn start_with(threads: usize) -> Result<(), CacheError> {
    if !(1..=MOST).contains(&threads) {
        return Err(CacheError::Threads(format!("{threads} are asked for, accepted are 1 to {MOST}")));
    }
    start_pool(threads)?;
    let running = rayon::current_num_threads();
    if running == threads {
        return Ok(());
    }
    Err(CacheError::Threads(format!("{threads} are asked for, {running} have been started before")))
}

/// How many threads calls divide their work among; starts them where nothing has.
///
/// # Errors
/// As [`start`].
pub fn running() -> Result<usize, CacheError> {
    start()?;
    Ok(rayon::current_num_threads())
}

/// Starts the global pool with so many threads, 0 for as many as rayon would, or does nothing where it is
/// there.
fn start_pool(threads: usize) -> Result<(), CacheError> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| {
        let error = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().err()?;
        // Without a source: it was there.
        error.source().map(ToString::to_string)
    });
    refused.clone().map_or(Ok(()), |error| Err(CacheError::Threads(error)))
}

/// Whether rayon has another thread to give work to. Handing it over costs a wake of about 10 us.
pub(crate) fn several() -> bool {
    rayon::current_num_threads() > 1
}
