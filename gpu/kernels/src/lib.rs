//! The GPU kernels: the codec of `tqkv-core` on warps of 32 threads.
//!
//! A kernel body is an ordinary generic function over [`Threads`], the operations of 32 threads in lock step.
//! On the device a per-thread value is a plain value, and 32 threads run the body at once. In tests on the
//! host the same body runs over arrays of 32, and every access is checked. Encoding, decoding and the plain
//! dot product are the core's own functions over the token [`Warp`], so their results are bit-identical to
//! the CPU's.
//!
//! | operation | file |
//! | --- | --- |
//! | operations of a warp; the same through `cuda_std` | [`threads`], `rust_cuda` |
//! | the core's instruction set on a warp | [`warp`] |
//! | arguments of each kernel; codecs and head dims with kernels | [`args`], [`codecs`] |
//! | layout of pages; how attention reads rows and scales | [`page`], [`rows`] |
//! | how a warp reads and writes blocks; trellis codes | [`format`], `trellis` |
//! | `encode_append` | [`encode`], [`viterbi`] |
//! | `decode_pages`, `weight_decode` | [`decode`] |
//! | `plan_parts`: parts of a launch, from lengths on the device | [`plan`] |
//! | `rotate_queries`, `scores` | [`score`] |
//! | `attend` | [`attend`] |
//! | `attend_merge` | [`merge`] |
//! | `keep_rows`, `attend_merge_exact`: exact tokens of an engine | [`exact`] |
//! | `give_units`, `keep_units`, `see_units`: which exact tokens are in which rows | [`units`] |
//! | codes and levels as attention reads them | `reader`, [`tables`], `planes` |
//! | `attend` on tensor cores | [`tensor`] |
//! | `qjl_sketch`, `qjl_correct` | [`qjl`] |
//! | `read_bytes`, the memory bandwidth for comparison | [`bandwidth`] |
//!
//! Every warp works alone: no kernel uses shared memory, a barrier of the block or an atomic. So no race
//! between warps is possible. Within a warp, only [`viterbi`], [`plan`] and [`units`] pass data through memory.
//! This crate computes nothing on its own: `tqkv-gpu` loads and launches the PTX that is built from it.
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

/// Runs `$body` for `$i` = 0 to 31, unrolled, because the device cannot index registers at run time.
#[cfg(target_arch = "nvptx64")]
macro_rules! unroll32 {
    ($i:ident => $body:block) => {
        unroll32!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@ $i:ident $body:block $($n:literal)*) => { $({ const $i: usize = $n; $body })* };
}

/// Runs `$body` for `$i` = 0 to 31 in a loop. The emulator has no registers, and the loop compiles in a
/// thirtieth of the time. It is not a range, because without optimisation a range takes most of the run time.
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

/// Runs `$body` with the constant `$i` = 0 .. `$count`, where `$count` is 1 or 2.
macro_rules! unroll2 {
    ($count:expr, $i:ident => $body:block) => {{
        const $i: usize = 0;
        $body
    }
    if $count > 1 {
        // The remainder keeps the index in range even if the body does not run.
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
pub mod exact;
pub mod format;
pub mod merge;
pub mod page;
pub mod plan;
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
pub mod units;
pub mod viterbi;
pub mod warp;

pub use threads::Threads;
pub use warp::{Lane, Warp};
