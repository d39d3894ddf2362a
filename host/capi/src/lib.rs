//! The C interface of the KV cache and of its codecs: opaque handles, statuses, nothing that unwinds.
//!
//! | file | holds |
//! | --- | --- |
//! | `error.rs` | statuses, the text of the last failure, the guard that every entry point runs in |
//! | `pointer.rs` | from a C program's pointers and lengths to references: every check that can be made |
//! | `spec.rs` | what a cache is built from, and how the plain struct may grow |
//! | `floats.rs` | numbers in the type that a program holds them in |
//! | `cache.rs` | the cache: tokens in, tokens out |
//! | `attend.rs` | attention |
//! | `threads.rs` | how many threads work |
//! | `budget.rs` | bytes that caches share |
//! | `snapshot.rs` | a cache as bytes: files, and functions of the program |
//! | `codec.rs` | the list of codecs, and blocks without a cache |
//! | `gpu.rs` | the cache on a GPU, with the feature `cuda` |
//!
//! An entry point turns pointers into references and lengths into slices, and calls the crates `tqkv` and
//! `tqkv-simd`; no logic of the codec is here. `include/tqkv.h` is made from these files, README.md beside it
//! is for authors of C. When not to use it: Rust programs want `tqkv`, microcontrollers the package in
//! `fixed`.

mod attend;
mod budget;
mod cache;
mod codec;
mod error;
mod floats;
#[cfg(feature = "cuda")]
mod gpu;
mod number;
mod pointer;
mod snapshot;
mod spec;
mod threads;

pub use attend::{tqkv_attend, tqkv_attend_many, tqkv_prefill, tqkv_scores};
pub use budget::{TqkvBudget, tqkv_budget_create, tqkv_budget_free, tqkv_budget_limit, tqkv_budget_used};
pub use cache::{
    TqkvCache, TqkvCacheStats, tqkv_append, tqkv_create, tqkv_create_within, tqkv_fork, tqkv_free, tqkv_keys,
    tqkv_len, tqkv_reset, tqkv_stats, tqkv_truncate, tqkv_values,
};
pub use codec::{
    TqkvCodec, tqkv_codec_block_bytes, tqkv_codec_count, tqkv_codec_create, tqkv_codec_decode,
    tqkv_codec_encode, tqkv_codec_free, tqkv_codec_from_name, tqkv_codec_id, tqkv_codec_name,
    tqkv_codec_scores,
};
pub use error::{TqkvStatus, tqkv_last_error, tqkv_status_name, tqkv_version};
pub use floats::TqkvDtype;
#[cfg(feature = "cuda")]
pub use gpu::{
    TqkvGpuCache, TqkvGpuSpec, tqkv_gpu_append, tqkv_gpu_append_step, tqkv_gpu_attend, tqkv_gpu_attend_step,
    tqkv_gpu_begin_step, tqkv_gpu_create, tqkv_gpu_decode, tqkv_gpu_end_step, tqkv_gpu_fork, tqkv_gpu_free,
    tqkv_gpu_len, tqkv_gpu_reserve, tqkv_gpu_spec_init, tqkv_gpu_truncate,
};
pub use snapshot::{TqkvRead, TqkvWrite, tqkv_load, tqkv_restore, tqkv_save, tqkv_snapshot};
pub use spec::{
    TqkvArithmetic, TqkvCentring, TqkvEffort, TqkvScaleMode, TqkvSpec, TqkvTier, tqkv_spec_from_text,
    tqkv_spec_init, tqkv_spec_preset,
};
pub use threads::{tqkv_set_threads, tqkv_threads};
