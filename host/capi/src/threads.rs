//! The number of threads that work on a call.

use crate::error::{TqkvStatus, guard};
use crate::pointer::Call;

/// Sets the number of threads that share the work of calls, 1 to 1024; RAYON_NUM_THREADS has no effect then.
/// With 1 the calling thread does all of its work. Call it before the first cache is made. Once threads have
/// started, another number returns TQKV_UNSUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_set_threads(threads: usize) -> TqkvStatus {
    guard(|| Ok(tqkv::threads::start_with(threads)?))
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
