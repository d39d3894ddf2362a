//! Which threads share the work of a call: the pool that it comes from, an OpenMP team, or rayon's global pool.

use crate::threads::team::{self, Team};
use std::ffi::CStr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The team on which the process runs shared work.
static FOLLOWED: OnceLock<Team> = OnceLock::new();

/// Lets calls of this process share their work among the OpenMP threads of a loaded library, in place of rayon's global pool. Returns
/// whether they do; without such a library the pool stays.
///
/// `library` is a part of its file name, such as `ggml-cpu`, and empty for the program itself. The first library that is found stays. A
/// program that computes in parallel regions of OpenMP calls this once, because the threads of its team spin for some milliseconds after
/// each region, and keep the processors from a pool. `OMP_NUM_THREADS` and `omp_set_num_threads` set the number of threads then. The
/// runtimes of GCC, LLVM and Intel on Linux are found.
///
/// A program that may load the library later calls this before each work: until the process has loaded something more, a call without success
/// takes less than a microsecond.
pub fn follow(library: &CStr) -> bool {
    static SOUGHT: Mutex<(u64, Vec<u8>)> = Mutex::new((0, Vec::new()));
    if FOLLOWED.get().is_some() {
        return true;
    }
    let mut sought = SOUGHT.lock().unwrap_or_else(PoisonError::into_inner);
    // Where the number of loads is not known it stays 0, and there is no team.
    let loads = team::loads();
    if sought.0 == loads && sought.1 == library.to_bytes() {
        return false;
    }
    *sought = (loads, library.to_bytes().to_vec());
    let Some(team) = Team::of(library) else { return false };
    FOLLOWED.get_or_init(|| team);
    true
}

/// Number of threads among which a call shares its work, once the pool has started.
pub(super) fn threads() -> usize {
    match FOLLOWED.get() {
        Some(team) if !is_shared() => team.threads(),
        _ => rayon::current_num_threads(),
    }
}

/// True if another thread can take a part of the work. A hand-over costs a wake of about 10 us.
pub fn several() -> bool {
    threads() > 1
}

/// True in work that threads share.
pub(crate) fn is_shared() -> bool {
    rayon::current_thread_index().is_some()
}

/// Runs work that divides itself by rayon's functions: in the pool that this thread is of, on the team that the process
/// follows, or in the global pool.
pub fn share<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match FOLLOWED.get() {
        _ if is_shared() => work(),
        Some(team) => team.run(team.threads(), work),
        None => rayon::scope(|_| work()),
    }
}
