//! A CUDA driver on the CPU: as much of `libcuda` as `tqkv-gpu` calls, for tests of what the host does.
//!
//! It is late and strict where a GPU may be either. Nothing that is asked of a stream happens before someone
//! waits for it, so memory that is written or freed while a copy is under way shows. Kernels run in the
//! interpreter of PTX that the tests of the committed files use, which stops at an access outside a buffer;
//! the stream then fails for ever, as on a GPU. While a stream is captured, what would break the capture is
//! refused.
//!
//! When not to use it: for anything but tests. It runs one instruction at a time. Not here: managed memory,
//! peers, textures, anything of the runtime API.
//!
//! | what | file |
//! | --- | --- |
//! | the driver's functions, and what they share | `api`, `memory`, `call` |
//! | memory, streams, events, graphs | `state` |
//! | a launch in the interpreter | `launch` |

mod api;
mod call;
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

/// What the calling thread has asked for since it began; `tqkv_fake_counts` writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels launched, by graphs too.
    pub launches: u64,
    /// Warps of these launches.
    pub warps: u64,
    /// Copies to the device.
    pub copies_in: u64,
    /// Of these, such from memory that is not page-locked.
    pub pageable: u64,
    /// Waits for a stream, or for an event that had not been.
    pub waits: u64,
    /// Allocations of device memory.
    pub allocations: u64,
    /// Modules compiled.
    pub modules: u64,
    /// Events recorded.
    pub events: u64,
}
