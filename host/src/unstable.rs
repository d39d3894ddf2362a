//! Items for the other crates of this project. A user of a cache does not need them.
//!
//! No promise covers this module: any release may change it.

/// Products of matrices, and eigenvectors.
pub mod algebra {
    pub use crate::eigen::symmetric;
    pub use crate::matmul::{Accumulate, Mat, MatMut, product};
}

/// The options of a spec as rows, and bounds.
pub mod cache {
    pub use crate::cache::key_codecs::learnt_map;
    pub use crate::cache::spec::least_shares;
    pub use crate::cache::text::{COMMON_CODECS, Door, OPTIONS, OptionPart, SpecOption, pair_of, read_bytes};
}

/// A cache of slots by its parts: one side of one layer, and attention of one KV head.
pub mod slots {
    pub use crate::slots::attend::attend;
    pub use crate::slots::format::{SlotFormat, StoreSide};
    pub use crate::slots::maps::RopeLayout;
    pub use crate::slots::operation::{Masks, Operation, Strided};
    pub use crate::slots::policy::check;
    pub use crate::slots::rope::{Shift, Turner, ramp, rotate};
    pub use crate::slots::rule::{QueryMask, QueryRule};
    pub use crate::slots::state::packed_rows;
    pub use crate::slots::store::SlotStore;
    pub use crate::slots::stream::Stream;
    pub use crate::slots::task::StreamSide;
}

/// Threads that share work.
pub mod threads {
    pub use crate::threads::share::{several, share};
    pub use crate::threads::team::Team;
    #[cfg(target_os = "linux")]
    pub use crate::threads::team::library;
}

/// Address space of the system.
pub mod reserve {
    #[cfg(any(unix, windows))]
    pub use crate::reserve::Region;
}
