//! [`Current`] and [`Restore`]: the current context of the calling thread is the caller's, and stays as it
//! was.
//!
//! cudarc makes the context of a device current in each call, and leaves it so. A program that works with
//! several devices would go on with the wrong one.

use cudarc::driver::{CudaStream, result, sys};

/// Puts the calling thread's context back when it is dropped.
#[derive(Debug)]
#[must_use = "the context is put back when this is dropped"]
pub(crate) struct Current {
    /// The address of a context, or 0 if none was current.
    before: usize,
}

/// The address of the calling thread's context, or 0 if it has none.
fn current() -> usize {
    result::ctx::get_current().ok().flatten().map_or(0, |context| context.expose_provenance())
}

impl Current {
    /// Notes the calling thread's context. The driver must be open.
    pub(crate) fn keep() -> Self {
        Self { before: current() }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if current() != self.before {
            let context: sys::CUcontext = std::ptr::with_exposed_provenance_mut(self.before);
            // SAFETY: it is null, or the context that the caller had made current. A failure leaves the
            // device's context current, which is what cudarc does anyway.
            let _ = unsafe { result::ctx::set_current(context) };
        }
    }
}

/// The last field of an owner of device memory or kernels. `Drop` of the owner fills it. It puts the caller's
/// context back after the fields before it have been freed.
#[derive(Debug, Default)]
pub(crate) struct Restore(Option<Current>);

impl Clone for Restore {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl Restore {
    /// Notes the caller's context.
    pub(crate) fn note(&mut self) {
        self.0 = Some(Current::keep());
    }

    /// Notes the caller's context, makes the stream's context current, and waits for the stream. After that
    /// memory can be freed, also in the order of the default stream, and no kernel runs that is unloaded.
    pub(crate) fn settle(&mut self, stream: &CudaStream) {
        self.note();
        // If an earlier call failed, the first call returns that failure and does nothing else.
        if stream.context().bind_to_thread().is_err() {
            let _ = stream.context().bind_to_thread();
        }
        let _ = stream.synchronize();
    }
}
