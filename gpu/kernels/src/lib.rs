//! The GPU kernels: the codec of `tqkv-core` on warps of 32 threads.
//!
//! A kernel body is an ordinary generic function over [`Threads`], what 32 threads in lock step
//! can do. On the device a value of a thread is a value, and 32 threads run the body at once; on
//! the host the same body runs over arrays of 32 in tests, with every access checked. Encoding,
//! decoding and the plain dot product are the core's own functions over the token [`Warp`], so
//! their results are the CPU's to the bit.
//!
//! | operation | file |
//! | --- | --- |
//! | what a warp can do; the same by way of `cuda_std` | [`threads`], `rust_cuda` |
//! | the core's instruction set on it | [`warp`] |
//! | what each kernel takes; which codecs and head dims have kernels | [`args`], [`codecs`] |
//! | where pages keep rows and scales; how attention reads them | [`page`], [`rows`] |
//! | how a warp reads and writes blocks; trellis codes | [`format`], `trellis` |
//! | `encode_append` | [`encode`], [`viterbi`] |
//! | `decode_pages`, `weight_decode` | [`decode`] |
//! | `rotate_queries`, `scores` | [`score`] |
//! | `attend` | [`attend`] |
//! | `attend_merge` | [`merge`] |
//! | codes and levels as attention reads them | `reader`, [`tables`], `planes` |
//! | `attend` on tensor cores | [`tensor`] |
//! | `qjl_sketch`, `qjl_correct` | [`qjl`] |
//! | `read_bytes`, a yardstick | [`bandwidth`] |
//!
//! Every warp works alone: no kernel uses shared memory, a barrier of the block or an atomic, so there is no
//! race between warps to find; within one, only [`viterbi`] passes data through memory. When not to use it:
//! this crate computes nothing on its own; `tqkv-gpu` loads and launches the PTX that it is built to.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features, reason = "the target's own intrinsics"))]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_ptx,
        abi_unadjusted,
        asm_experimental_arch,
        core_intrinsics,
        f16,
        link_llvm_intrinsics,
        portable_simd,
        stdarch_nvptx
    )
)]
#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::private_intra_doc_links,
    reason = "shapes stand in square brackets, and what a kernel is made of is private"
)]
#![allow(long_running_const_eval, reason = "the codebooks are solved at compile time")]

/// Runs `$body` for `$i` = 0 to 31, written out: on the device registers must not be indexed at
/// run time.
#[cfg(target_arch = "nvptx64")]
macro_rules! unroll32 {
    ($i:ident => $body:block) => {
        unroll32!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@ $i:ident $body:block $($n:literal)*) => { $({ const $i: usize = $n; $body })* };
}

/// Runs `$body` for `$i` = 0 to 31: the emulator has no registers, and compiles the loop in a
/// thirtieth of the time. Not a range, which costs most of the run without optimisation.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! unroll32 {
    ($i:ident => $body:block) => {
        let mut next = 0_usize;
        while next < 32 {
            #[allow(non_snake_case, reason = "a constant on the device")]
            let $i = next;
            next += 1;
            $body
        }
    };
}

/// Runs `$body` with the constant `$i` = 0 .. `$count`, which is 1 or 2.
macro_rules! unroll2 {
    ($count:expr, $i:ident => $body:block) => {{
        const $i: usize = 0;
        $body
    }
    if $count > 1 {
        // The remainder keeps the index in range where the body is not run.
        const $i: usize = 1;
        $body
    }};
}

#[macro_use]
pub mod args;
pub mod attend;
pub mod bandwidth;
#[macro_use]
pub mod codecs;
pub mod decode;
#[cfg(target_arch = "nvptx64")]
mod device;
pub mod encode;
#[cfg(target_arch = "nvptx64")]
mod entry;
pub mod format;
pub mod merge;
pub mod page;
mod planes;
pub mod qjl;
#[macro_use]
mod reader;
pub mod rows;
#[cfg(feature = "rust-cuda")]
pub mod rust_cuda;
pub mod score;
pub mod tables;
pub mod tensor;
pub mod threads;
mod trellis;
pub mod viterbi;
pub mod warp;

pub use threads::Threads;
pub use warp::{Lane, Warp};
