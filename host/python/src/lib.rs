//! The native module of the Python package `tqkv`. It takes and returns NumPy arrays, and releases the
//! interpreter.
//!
//! The module is private to the package. The package's Python modules are the documented interface, and
//! accept other arrays and tensors as well. This module still checks every argument, so that nothing from
//! Python causes more than an exception.

mod arrays;
mod batch;
mod blocks;
mod cache;
mod codec;
mod command;
#[cfg(feature = "cuda")]
mod dlpack;
mod errors;
mod file;
mod follow;
#[cfg(feature = "cuda")]
mod gpu;
mod held;
#[cfg(feature = "cuda")]
mod paged;
mod payload;
mod plan;
mod pool;
mod rows;
mod session;
mod slots;
mod spec;
mod storage;
mod units;
mod weights;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python gives it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const HOT: usize = tqkv_core::life::HOT;
    #[pymodule_export]
    const SEED: u64 = tqkv_core::Options::DEFAULT.seed;
    #[pymodule_export]
    const SINKS: usize = tqkv_core::life::SINKS;
    #[pymodule_export]
    const UNIT: u32 = tqkv_core::units::UNIT;
    #[pymodule_export]
    use super::blocks::Blocks;
    #[pymodule_export]
    use super::cache::Cache;
    #[pymodule_export]
    use super::codec::Codec;
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::errors::TqkvError;
    #[pymodule_export]
    use super::file::{File, FileWriter};
    #[pymodule_export]
    use super::follow::{Follower, Generations};
    #[cfg(feature = "cuda")]
    #[pymodule_export]
    use super::gpu::GpuCache;
    #[cfg(feature = "cuda")]
    #[pymodule_export]
    use super::paged::{Paged, paged_block_bytes};
    #[pymodule_export]
    use super::payload::{crc32, decode_side, encode_side, side_is_finite};
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::session::{
        inspect_session, pack_session, pack_session_file, unpack_session, unpack_session_file,
    };
    #[pymodule_export]
    use super::slots::{SlotMask, Slots};
    #[pymodule_export]
    use super::spec::Spec;
    #[pymodule_export]
    use super::storage::{Basis, Learner, Storage};
    #[cfg(feature = "cuda")]
    #[pymodule_export]
    use super::units::GpuUnits;
    #[pymodule_export]
    use super::units::Units;
    #[pymodule_export]
    use super::weights::CodedMatrix;
}
