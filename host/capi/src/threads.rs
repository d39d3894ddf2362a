//! The number of threads that work on a call.

use crate::error::{Failure, TqkvStatus, guard};
use crate::pointer::Call;
use std::ffi::{CString, c_char};

/// Sets the number of threads that share the work of calls, 1 to 1024; RAYON_NUM_THREADS has no effect then.
/// With 1 the calling thread does all of its work. Call it before the first cache is made. Once threads have
/// started, another number returns TQKV_UNSUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_set_threads(threads: usize) -> TqkvStatus {
    guard(|| Ok(tqkv::threads::start_with(threads)?))
}

/// Lets calls share their work among the OpenMP threads of this process, in place of a pool. `library` is a part of the
/// file name of a loaded library that uses OpenMP, such as "ggml-cpu", and null or "" for the program itself.
///
/// An engine that computes in parallel regions calls this once, because the threads of its team spin for some
/// milliseconds after each region and keep the processors from a pool, so that attention takes up to twice as long.
/// OMP_NUM_THREADS and omp_set_num_threads set the number of threads then. The first library that is found stays.
/// TQKV_UNSUPPORTED says that the name is that of no loaded library with the runtime of GCC, LLVM or Intel, which are
/// found on Linux alone; the pool stays then.
///
/// # Safety
/// `library` is null or ends in 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_follow_openmp(library: *const c_char) -> TqkvStatus {
    // SAFETY: `library` is null or ends in 0, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let name = if library.is_null() { "" } else { call.text("library", library)? };
        let of = CString::new(name).map_err(|error| Failure::argument(error.to_string()))?;
        if tqkv::threads::follow(&of) {
            return Ok(());
        }
        let what = if name.is_empty() {
            "the program".to_owned()
        } else {
            format!("a library with '{name}' in its file name")
        };
        let why =
            format!("{what} has not loaded OpenMP of GCC, LLVM or Intel, which is found on Linux alone");
        Err(Failure::new(TqkvStatus::TqkvUnsupported, why))
    })
}

/// Writes the number of threads, and starts them if no call has.
///
/// # Safety
/// `threads` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_threads(threads: *mut usize) -> TqkvStatus {
    // SAFETY: `threads` has room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let place = call.place("threads", threads)?;
        place.write(tqkv::threads::running()?);
        Ok(())
    })
}
