//! The kernels of a 4-bit cache at head dim 128, as entries for the back end of the Rust CUDA project.
//!
//! The bodies and the argument lists come from `tqkv-gpu-kernels`; its `CudaStd` implements the operations of
//! 32 threads. These five entries encode, decode and attend for one cache. Another entry is one line.
//!
//! Do not use this crate to run a cache: the committed PTX is built with rustc's own target. The crate is
//! type-checked on the host, and has not been compiled for any device.
#![cfg_attr(target_os = "cuda", no_std)]
#![allow(unexpected_cfgs, reason = "`#[kernel]` asks for targets that compilers no longer know")]
#![allow(
    clippy::missing_safety_doc,
    reason = "launches pass what `tqkv_gpu_kernels::args` says of each argument"
)]

use cuda_std::{kernel, thread};
use tqkv_core::code::S4;
use tqkv_gpu_kernels::attend::Share;
use tqkv_gpu_kernels::decode::decode_pages;
use tqkv_gpu_kernels::encode::encode_append;
use tqkv_gpu_kernels::merge::attend_merge;
use tqkv_gpu_kernels::rust_cuda::{CudaStd, Place};
use tqkv_gpu_kernels::score::rotate_queries;
use tqkv_gpu_kernels::{args, kind, tensor, with_arguments};

/// Groups of 32 coordinates.
const GROUPS: usize = 4;

/// The number of this warp along the launch's x axis.
fn warp() -> u32 {
    thread::block_idx_x() * thread::block_dim_y() + thread::thread_idx_y()
}

/// Turns a parameter of an entry into the argument of a body.
macro_rules! from {
    (Memory $parameter:ident) => {
        Place::new($parameter)
    };
    ($kind:ident $parameter:ident) => {
        $parameter
    };
}

/// Defines an entry point: its name, and the body that it runs with its arguments.
macro_rules! entry {
    (
        [$symbol:ident, $args:ident => $body:expr]
        $name:ident { $($(#[$doc:meta])* $argument:ident: $kind:ident,)* }
    ) => {
        #[doc = concat!("As `", stringify!($symbol), "` of the committed PTX.")]
        #[kernel]
        #[allow(clippy::too_many_arguments, reason = "a kernel's parameters are scalars and pointers")]
        pub unsafe fn $symbol($($argument: kind!($kind *mut u8)),*) {
            let $args = args::$name { $($argument: from!($kind $argument)),* };
            $body
        }
    };
}

with_arguments!(EncodeAppend => entry! [
    encode_append_s4_d128, args => encode_append::<CudaStd, S4, GROUPS>(warp(), args)
]);
with_arguments!(DecodePages => entry! [
    decode_pages_s4_d128, args => decode_pages::<CudaStd, S4, GROUPS>(warp(), args)
]);
with_arguments!(RotateQueries => entry! [
    rotate_queries_d128, args => rotate_queries::<CudaStd, GROUPS>(warp(), args)
]);
with_arguments!(AttendMerge => entry! [
    attend_merge_d128, args => attend_merge::<CudaStd, GROUPS>(warp(), args)
]);
with_arguments!(Attend => entry! [attend_tensor_d128_r4, args => {
    let chunks = args.group.div_ceil(tensor::HEADS);
    let (y, part) = (thread::block_idx_y(), warp());
    if part < args.parts {
        let share = Share { part, chunk: y % chunks, kv_head: y / chunks };
        tensor::attend::<CudaStd, GROUPS, false, { tensor::slice(GROUPS, false) }, 1>(share, args);
    }
}]);
