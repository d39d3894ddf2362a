//! Items for the other crates of this project. A user of a cache does not need them.
//!
//! No promise covers this module: any release may change it. `check` measures with it. The methods
//! that it needs besides are hidden: `Device::kernels`, `Device::l2_bytes`, `Device::upload`,
//! `Device::zeros`, `GpuCache::attention` and `GpuCache::set_cut`.

/// One call of attention over pages, also over pages of f16.
pub mod attention {
    pub use crate::launch::{TokenVectors, Vectors};
    pub use crate::paged::attention::{
        Also, Attention, Plan, Pool, Resources, Scratch, Source, Table, Words, Work, ahead,
    };
    pub use crate::paged::merge::SeenRows;
    pub use crate::parts::{Cut, Parts, parts};
    pub use tqkv_gpu_kernels::plan::Limits;
}

/// Launches of any kernel.
pub mod launch {
    pub use crate::launch::{Memory, launch, warps};
}

pub use crate::loader::driver_cuda;
pub use crate::spec::MAX_CHUNK;
