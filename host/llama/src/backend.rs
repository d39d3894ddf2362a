//! The back end of one context: it runs the operations of a graph.

#![allow(unsafe_code, reason = "the host calls functions with pointers")]

use crate::abi::{self, Backend, BackendFunctions, Device, Tensor};
use crate::copies;
use crate::host::{self, Operation};
use crate::rotate;
use crate::serve;
use crate::tensor::View;
use crate::threads::Threads;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `GGML_TENSOR_FLAG_COMPUTE`; every version that has the flag gives it this value.
const COMPUTE: i32 = 16;

static GUID: [u8; 16] = *b"tqkv kv cache 01";

/// A new back end of a device. The host frees it by its function `free`.
pub(crate) fn new(device: *mut Device) -> *mut Backend {
    let functions = BackendFunctions {
        get_name: name,
        free,
        set_tensor_async: None,
        get_tensor_async: None,
        set_tensor_2d_async: None,
        get_tensor_2d_async: None,
        cpy_tensor_async: None,
        synchronize: None,
        graph_plan_create: None,
        graph_plan_free: None,
        graph_plan_update: None,
        graph_plan_compute: None,
        graph_compute: compute,
        event_record: None,
        event_wait: None,
        graph_optimize: None,
    };
    let context = Box::into_raw(Box::new(Threads::default())).cast();
    Box::into_raw(Box::new(Backend { guid: &raw const GUID, functions, device, context }))
}

unsafe extern "C" fn name(_: *mut Backend) -> *const c_char {
    c"TQKV".as_ptr()
}

unsafe extern "C" fn free(backend: *mut Backend) {
    // SAFETY: `new` made both boxes, and the host frees a back end once.
    unsafe {
        let backend = Box::from_raw(backend);
        drop(Box::from_raw(backend.context.cast::<Threads>()));
    }
}

/// `ggml_backend_set_n_threads`
pub(crate) unsafe extern "C" fn set_threads(backend: *mut Backend, count: c_int) {
    // SAFETY: the back end is from `new` and valid; the host runs no graph on it during this call.
    let threads = unsafe { &*(*backend).context.cast::<Threads>() };
    threads.set(usize::try_from(count).unwrap_or(1));
}

unsafe extern "C" fn compute(backend: *mut Backend, graph: *mut c_void) -> c_int {
    // SAFETY: the back end is from `new`; graph and tensors are the host's and valid during the call.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe {
        let Ok(host) = host::host() else { return false };
        let threads = &*(*backend).context.cast::<Threads>();
        host.nodes(graph).all(|node| run(host, threads, node))
    }));
    if done.unwrap_or(false) { abi::SUCCESS } else { abi::FAILED }
}

/// Runs one operation; false where it is not served.
///
/// # Safety
/// `node` is null or a tensor of the host; it, its sources and their buffers are valid.
unsafe fn run(host: &host::Host, threads: &Threads, node: *const Tensor) -> bool {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        let Some(op) = View::new(node) else { return false };
        let kind = host.operation(op.get().op);
        if kind == Operation::Nothing || op.is_empty() || op.get().flags & COMPUTE == 0 {
            return true;
        }
        match kind {
            Operation::SetRows => serve::set_rows(&op),
            Operation::Attention => serve::attend(&op, threads),
            Operation::Rope => rotate::rotate(&op),
            Operation::Copy => copies::copy(&op),
            Operation::Nothing | Operation::Product | Operation::Other => None,
        }
        .is_some()
    }
}
