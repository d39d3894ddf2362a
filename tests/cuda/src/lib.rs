//! A CUDA driver on the CPU: the part of `libcuda` that `tqkv-gpu` calls. It tests the host code.
//!
//! It is late and strict in every case in which a GPU may be. Work on a stream only happens when something
//! waits for it. So memory that is written or freed during a copy shows. Kernels run in the same interpreter
//! of PTX as the tests of the committed files. It stops at an access outside a buffer, and then the stream
//! fails for ever, as on a GPU. While a stream is captured, calls that would break the capture are refused.
//!
//! A test may map host memory, such as that of PyTorch's tensors, as device memory. From then on work is done
//! at once, because a library may give memory away as soon as a call has returned.
//!
//! Use it only for tests: it runs one instruction at a time. It has no managed memory, peers, textures or
//! runtime API.
//!
//! | what | file |
//! | --- | --- |
//! | the driver's functions, and their shared parts | `api`, `memory`, `call` |
//! | memory, streams, events, graphs | `state` |
//! | a launch in the interpreter | `launch` |

mod api;
mod call;
mod failure;
mod launch;
mod memory;
mod state;

#[path = "../../../gpu/tests/ptx/alu.rs"]
mod alu;
#[path = "../../../gpu/tests/ptx/machine.rs"]
mod machine;
#[path = "../../../gpu/tests/ptx/parse.rs"]
mod parse;
#[path = "../../../gpu/tests/ptx/races.rs"]
mod races;

/// Counts of the calling thread's calls since it began; `tqkv_fake_counts` writes them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels launched, including launches by graphs.
    pub launches: u64,
    /// Warps of these launches.
    pub warps: u64,
    /// Copies to the device.
    pub copies_in: u64,
    /// Bytes of these copies.
    pub bytes_in: u64,
    /// Bytes of copies from the device.
    pub bytes_out: u64,
    /// Copies to the device from memory that is not page-locked.
    pub pageable: u64,
    /// Waits for a stream, or for an event that had not happened.
    pub waits: u64,
    /// Allocations of device memory.
    pub allocations: u64,
    /// Modules compiled.
    pub modules: u64,
    /// Events recorded.
    pub events: u64,
}
