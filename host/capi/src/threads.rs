//! How many threads work on a call.

use crate::error::{TqkvStatus, guard};
use crate::pointer::Call;

/// Has calls divide their work among `threads` threads, 1 to 1024, whatever RAYON_NUM_THREADS says; with 1
/// the thread that calls does all of it. Call it before the first cache is made: threads that were started
/// stay as many, and another number ends with TQKV_UNSUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_set_threads(threads: usize) -> TqkvStatus {
    guard(|| Ok(tqkv::threads::start_with(threads)?))
}

/// Writes how many threads there are, and starts them where no call has.
///
/// # Safety
/// `threads` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_threads(threads: *mut usize) -> TqkvStatus {
    // SAFETY: `threads` is room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let place = call.place("threads", threads)?;
        place.write(tqkv::threads::running()?);
        Ok(())
    })
}
