//! Which threads share the work of a call: the pool that it comes from, an OpenMP team, or rayon's global pool.

use crate::threads::team::{self, Team};
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The team on which the process runs shared work.
static FOLLOWED: OnceLock<Team> = OnceLock::new();

/// From now on, calls of this process share their work among the OpenMP threads of a loaded library, which [`Team::of`] finds,
/// in place of rayon's global pool. The first team that is found stays.
///
/// A program that may load the library later calls this before each work: until the process has loaded something more, a call without success
/// takes less than a microsecond.
pub fn follow(library: &CStr) {
    static LOADS: AtomicU64 = AtomicU64::new(0);
    if FOLLOWED.get().is_some() {
        return;
    }
    let loads = team::loads();
    if LOADS.swap(loads, Ordering::Relaxed) != loads
        && let Some(team) = Team::of(library)
    {
        FOLLOWED.get_or_init(|| team);
    }
}

/// True if another thread can take a part of the work. A hand-over costs a wake of about 10 us.
pub fn several() -> bool {
    let threads = match FOLLOWED.get() {
        Some(team) if !is_shared() => team.threads(),
        _ => rayon::current_num_threads(),
    };
    threads > 1
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
