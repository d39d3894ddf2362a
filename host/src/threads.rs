//! The threads of rayon's pool, started where they can still be refused.
//!
//! Rayon starts its global pool at its first use and panics where the system has no threads to give
//! (`RAYON_NUM_THREADS=20000`, a limit on processes or memory). A cache starts it when it is made.

use crate::error::CacheError;
use std::error::Error;
use std::sync::OnceLock;

/// Starts the global pool, unless the caller is in a pool already or has started it.
///
/// # Errors
/// [`CacheError::Threads`] where the system has none to give.
pub fn start() -> Result<(), CacheError> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    if rayon::current_thread_index().is_some() {
        return Ok(());
    }
    let refused = REFUSED.get_or_init(|| {
        let error = rayon::ThreadPoolBuilder::new().build_global().err()?;
        // Without a source: it was there.
        error.source().map(ToString::to_string)
    });
    refused.clone().map_or(Ok(()), |error| Err(CacheError::Threads(error)))
}

/// Whether rayon has another thread to give work to. Handing it over costs a wake of about 10 us.
pub(crate) fn several() -> bool {
    rayon::current_num_threads() > 1
}
