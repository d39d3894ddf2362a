//! Items for the other crates of this project. A user of the codecs does not need them.
//!
//! No promise covers this module: any release may change it. Implementations of an instruction set need
//! [`machine`] and [`trellis`]; readers of blocks need the rest.

/// The operations that the algorithms need of a processor.
pub mod machine {
    pub use crate::machine::{F32x32, Isa, Lanes, Memory, spread, squeeze, words};
}

/// Random signs and the Hadamard transform, in registers.
pub mod rotation {
    pub use crate::rotation::{Signs, flip, load, store, sylvester};
}

/// The codebooks of the scalar and nested codecs.
pub mod codebook {
    pub use crate::code::codebook::{Codebook, Exact};
}

/// Codes of 8 bits, in registers.
pub mod int8 {
    pub use crate::code::int8::{UNIT, quantise, scale};
}

/// Scalar codes, in registers.
pub mod scalar {
    pub use crate::code::scalar::{levels, norm_squared, quantise};
}

/// The trellis codes: tables, planes of bits, and the search.
pub mod trellis {
    pub use crate::code::trellis::{
        Candidate, Code, MAX_LEVELS, MAX_MEMORY, PARITIES, Plain, Predictor, QUARTERS, Quarter,
        QuarterWeights, Quarters, RESOLUTION, Search, Target, Trellis, Vector, WARM_UP, choose_plain, levels,
        offsets, pair_parts, parities, round_target, workspace_bytes,
    };
}

pub use crate::code::levels::Levels;
pub use crate::code::scale::{StoredScale, to_f16};
pub use crate::with_code;
