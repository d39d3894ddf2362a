//! The team of threads that an OpenMP runtime of this process keeps.
//!
//! llama.cpp and PyTorch compute a layer in turns with this crate: operations of their own, then attention, then their own again.
//! After each turn the threads of their team spin for some milliseconds, because the next is near. A pool of threads that runs
//! meanwhile shares the processors with them: a step of 0.4 ms took 0.94. So the work runs on the team itself, which is
//! also bound to the processors that the program chose for it.
//!
//! The runtimes of GCC, LLVM and Intel on Linux have the function that is called here. Elsewhere there is no team, and the work runs in
//! rayon's pools.

#![expect(unsafe_code, reason = "a function of another library is called by address")]

#[cfg(target_os = "linux")]
mod loaded;

#[cfg(target_os = "linux")]
pub use loaded::library;
#[cfg(target_os = "linux")]
pub(super) use loaded::loads;

use rayon::{ThreadBuilder, ThreadPoolBuilder};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of libraries that the process has loaded so far, where that is known.
#[cfg(not(target_os = "linux"))]
pub(super) fn loads() -> u64 {
    0
}

/// What each thread of a region calls.
type Body = unsafe extern "C" fn(*mut c_void);

/// `void GOMP_parallel(void (*body)(void *), void * data, unsigned threads, unsigned flags)`: calls `body(data)` in each thread
/// of a team, of which the caller is one, and returns when all calls have.
type Parallel = unsafe extern "C" fn(Body, *mut c_void, c_uint, c_uint);

/// Workers of a pool that have no thread yet.
type Waiting = Mutex<Vec<ThreadBuilder>>;

/// `int omp_get_max_threads(void)`: the number of threads that a program set for its regions.
type MaxThreads = unsafe extern "C" fn() -> c_int;

/// An OpenMP runtime.
#[derive(Clone, Copy, Debug)]
pub struct Team {
    parallel: Parallel,
    max_threads: MaxThreads,
}

impl Team {
    /// The runtime that the loaded library whose file name has this part uses, or the program itself if the part is empty; none if it uses
    /// no OpenMP.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(unused_variables, reason = "there is no runtime with these functions")
    )]
    pub fn of(part: &CStr) -> Option<Self> {
        #[cfg(not(target_os = "linux"))]
        return None;
        #[cfg(target_os = "linux")]
        {
            let library = library(part)?;
            let [parallel, max_threads] =
                [c"GOMP_parallel", c"omp_get_max_threads"].map(|name| library.function(name));
            // SAFETY: libgomp, libomp and libiomp5 declare the functions as these types. No program unloads its runtime, whose threads run
            // in it.
            unsafe {
                Some(Self {
                    parallel: std::mem::transmute::<*mut c_void, Parallel>(parallel?),
                    max_threads: std::mem::transmute::<*mut c_void, MaxThreads>(max_threads?),
                })
            }
        }
    }

    /// The number of threads that the program set for regions of this thread.
    pub fn threads(self) -> usize {
        // SAFETY: the function takes nothing, and may be called at any time.
        usize::try_from(unsafe { (self.max_threads)() }).unwrap_or(1).max(1)
    }

    /// Runs work in a rayon pool whose threads are `count` threads of the team. Fewer do all of the work too.
    ///
    /// The pool lives for this call, because a thread of the team must go back to its program afterwards.
    pub fn run<R: Send>(self, count: usize, work: impl FnOnce() -> R + Send) -> R {
        let waiting = Waiting::default();
        let keep = |worker| {
            waiting.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
            Ok(())
        };
        let Ok(pool) = ThreadPoolBuilder::new().num_threads(count).spawn_handler(keep).build() else {
            return work();
        };
        let mut result = None;
        {
            let place = &mut result;
            let pool = Arc::new(pool);
            let own = Arc::clone(&pool);
            let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
                *place = Some(catch_unwind(AssertUnwindSafe(work)));
                // The last owner of the pool: its workers leave it, and the region ends.
                drop(own);
            });
            // SAFETY: only the lifetime changes. The job runs in the region below, which ends after it, before anything is
            // dropped that it borrows.
            pool.spawn(unsafe {
                std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Box<dyn FnOnce() + Send>>(job)
            });
        }
        let threads = c_uint::try_from(count).unwrap_or(c_uint::MAX);
        // SAFETY: `serve` takes the pointer for the `Waiting`, which outlives the region. 0 asks for no binding of threads.
        unsafe { (self.parallel)(serve, (&raw const waiting).cast_mut().cast(), threads, 0) };
        match result.expect("the caller's own thread serves a worker, which runs the job") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// Serves as a worker of the pool until its job is done.
///
/// # Safety
/// `waiting` is a [`Waiting`] that outlives the call.
unsafe extern "C" fn serve(waiting: *mut c_void) {
    // SAFETY: the caller keeps this function's contract.
    let waiting = unsafe { &*waiting.cast::<Waiting>() };
    let worker = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
    if let Some(worker) = worker {
        worker.run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{self, ThreadId};

    /// A team like that of OpenMP, of at most this many threads.
    fn region<const MOST: usize>(body: Body, data: *mut c_void, threads: c_uint) {
        let data = data as usize;
        thread::scope(|scope| {
            for _ in 1..(threads as usize).min(MOST) {
                // SAFETY: the test passes a body and data that outlives the region.
                scope.spawn(move || unsafe { body(data as *mut c_void) });
            }
            // SAFETY: as above.
            unsafe { body(data as *mut c_void) };
        });
    }
    unsafe extern "C" fn all(body: Body, data: *mut c_void, threads: c_uint, _: c_uint) {
        region::<64>(body, data, threads);
    }
    unsafe extern "C" fn one(body: Body, data: *mut c_void, threads: c_uint, _: c_uint) {
        region::<1>(body, data, threads);
    }

    unsafe extern "C" fn four() -> c_int {
        4
    }
    const ALL: Team = Team { parallel: all, max_threads: four };
    const ONE: Team = Team { parallel: one, max_threads: four };

    #[test]
    fn work_runs_on_the_threads_of_the_team() {
        for (team, threads) in [(ALL, 4), (ONE, 1)] {
            for round in 0..50 {
                let (seen, arrived) = (Mutex::new(HashSet::<ThreadId>::new()), AtomicUsize::new(0));
                let borrowed: Vec<usize> = (0..64).collect();
                let sum = team.run(team.threads(), || {
                    let each = |&i: &usize| {
                        seen.lock().unwrap().insert(thread::current().id());
                        // The first parts wait for each other, so that no thread does them all.
                        if arrived.fetch_add(1, Ordering::SeqCst) < threads {
                            while arrived.load(Ordering::SeqCst) < threads {
                                thread::yield_now();
                            }
                        }
                        i + (0..i).into_par_iter().map(|j| j % 2).sum::<usize>()
                    };
                    borrowed.par_iter().with_max_len(1).map(each).sum::<usize>()
                });
                assert_eq!(sum, (0..64).map(|i| i + i / 2).sum(), "round {round}");
                let seen = seen.into_inner().unwrap();
                assert_eq!(seen.len(), threads, "round {round}");
                assert!(threads > 1 || seen.contains(&thread::current().id()));
            }
        }
    }

    #[test]
    fn a_panic_of_the_work_reaches_the_caller() {
        let panic = catch_unwind(|| ALL.run(3, || -> usize { panic!("as planned") })).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"as planned"));
        assert_eq!(ALL.run(3, || 5), 5, "the next work runs");
    }

    #[test]
    fn a_program_without_the_library_has_no_team() {
        assert!(Team::of(c"libtorch_cpu").is_none());
    }
}
