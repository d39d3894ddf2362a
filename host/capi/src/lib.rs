//! The C interface of the KV cache and of its codecs: opaque handles and statuses. Nothing unwinds into C.
//!
//! | file | holds |
//! | --- | --- |
//! | `error.rs` | statuses, the text of the last failure, and the guard around every entry point |
//! | `pointer.rs` | turns pointers and lengths into references, with every check that is possible |
//! | `spec.rs` | texts: the spec of a cache, and a codec with its options |
//! | `floats.rs` | keys, values, queries and results in the number type of the program |
//! | `cache.rs` | the cache: append, read back, truncate |
//! | `attend.rs` | attention |
//! | `slots.rs` | the cache of slots, and masks |
//! | `paged.rs` | blocks in the memory of an engine |
//! | `threads.rs` | the number of threads |
//! | `budget.rs` | memory budgets for several caches |
//! | `snapshot.rs` | snapshots: files, and functions of the program |
//! | `codec.rs` | the list of codecs, and blocks without a cache |
//! | `session.rs` | saved states of llama.cpp, with the feature `session` |
//! | `gpu.rs` | the cache on a GPU, with the feature `cuda` |
//!
//! An entry point turns pointers into references and lengths into slices, and calls the crates `tqkv` and
//! `tqkv-simd`. It has no logic of its own. cbindgen makes `include/tqkv.h` from these files, and README.md
//! is for C programmers. Rust programs use `tqkv` instead, and microcontrollers the packages in `core/mcu`.

mod attend;
mod budget;
mod cache;
mod codec;
mod error;
mod floats;
#[cfg(feature = "cuda")]
mod gpu;
mod paged;
mod pointer;
#[cfg(feature = "session")]
mod session;
mod slots;
mod snapshot;
mod spec;
mod threads;

pub use attend::{tqkv_attend, tqkv_attend_many, tqkv_attend_selected, tqkv_prefill, tqkv_scores};
pub use budget::{TqkvBudget, tqkv_budget_create, tqkv_budget_free, tqkv_budget_limit, tqkv_budget_used};
pub use cache::{
    TqkvCache, TqkvCacheStats, tqkv_append, tqkv_create, tqkv_create_within, tqkv_fork, tqkv_free, tqkv_keys,
    tqkv_len, tqkv_reset, tqkv_set_sink_logits, tqkv_stats, tqkv_truncate, tqkv_values,
};
pub use codec::{
    TqkvCodec, tqkv_codec_block_bytes, tqkv_codec_count, tqkv_codec_create, tqkv_codec_decode,
    tqkv_codec_encode, tqkv_codec_free, tqkv_codec_name, tqkv_codec_scores,
};
pub use error::{TqkvStatus, tqkv_last_error, tqkv_status_name, tqkv_version};
pub use floats::TqkvDtype;
#[cfg(feature = "cuda")]
pub use gpu::{
    TqkvGpuCache, tqkv_gpu_append, tqkv_gpu_append_step, tqkv_gpu_attend, tqkv_gpu_attend_step,
    tqkv_gpu_begin_step, tqkv_gpu_create, tqkv_gpu_decode, tqkv_gpu_end_step, tqkv_gpu_fork, tqkv_gpu_free,
    tqkv_gpu_len, tqkv_gpu_reserve, tqkv_gpu_truncate,
};
pub use paged::{
    TqkvPaged, TqkvPages, TqkvRule, TqkvStep, tqkv_paged_attend, tqkv_paged_block_bytes, tqkv_paged_copy,
    tqkv_paged_create, tqkv_paged_free, tqkv_paged_gather, tqkv_paged_store,
};
#[cfg(feature = "session")]
pub use session::{
    TqkvBasis, TqkvSessionInfo, tqkv_basis_free, tqkv_basis_from_bytes, tqkv_basis_load,
    tqkv_session_inspect, tqkv_session_inspect_file, tqkv_session_pack, tqkv_session_pack_basis,
    tqkv_session_pack_basis_file, tqkv_session_pack_file, tqkv_session_unpack, tqkv_session_unpack_file,
};
pub use slots::{
    TqkvMask, TqkvRope, TqkvRopePairing, TqkvSlots, tqkv_mask_causal, tqkv_mask_clear, tqkv_mask_create,
    tqkv_mask_free, tqkv_mask_see, tqkv_slots_attend, tqkv_slots_bytes, tqkv_slots_clear, tqkv_slots_copy,
    tqkv_slots_create, tqkv_slots_encode, tqkv_slots_forget, tqkv_slots_free, tqkv_slots_read,
    tqkv_slots_restore, tqkv_slots_shift, tqkv_slots_write,
};
pub use snapshot::{
    TqkvRead, TqkvWrite, tqkv_load, tqkv_restore, tqkv_restore_from, tqkv_save, tqkv_snapshot,
};
pub use threads::{tqkv_follow_openmp, tqkv_set_threads, tqkv_threads};
