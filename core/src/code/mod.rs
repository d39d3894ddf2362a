//! The codecs by name: one row each.

pub mod codebook;
pub(crate) mod forms;
pub mod ggml;
pub mod int8;
pub mod scalar;
pub(crate) mod scale;
pub mod trellis;

use crate::block_io::SCALE_BYTES;
use crate::head_dim::is_supported_head_dim;
use codebook::Codebook;

/// A codec; with a head dim it fixes the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[expect(missing_docs, reason = "the names are documented by `Family` and the table below")]
pub enum CodecId {
    F16,
    I8,
    S1,
    S2,
    S3,
    S4,
    S5,
    N1,
    N2,
    N3,
    N4,
    Q8_0,
    Q4_0,
    Q8_0R,
    Q4_0R,
    T1,
    T1H,
    T2,
    T2H,
    T3,
    T4,
    T1S8,
    T2S8,
    T3S8,
    T4S8,
}

/// What a codec does, apart from its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Family {
    /// f16 values, no rotation, no scale.
    Half,
    /// Rotated, signed bytes under one scale.
    Int8,
    /// Rotated, Lloyd-Max codes (TurboQuant_mse).
    Scalar,
    /// Rotated, nested codes: dropping the low bit gives the next narrower codec.
    Nested,
    /// ggml runs of 32 with a scale each.
    Ggml,
    /// Rotated, tail-biting trellis codes ([`crate::trellis`]).
    Trellis,
}

struct Row {
    id: CodecId,
    name: &'static str,
    code: u8,
    family: Family,
    bits: u32,
    rotated: bool,
}

const fn row(id: CodecId, name: &'static str, code: u8, family: Family, bits: u32, rotated: bool) -> Row {
    Row { id, name, code, family, bits, rotated }
}

/// WARNING: names and codes are stored in files; rows may be added, never changed.
const ROWS: [Row; 25] = [
    row(CodecId::F16, "f16", 0, Family::Half, 16, false),
    row(CodecId::I8, "i8", 1, Family::Int8, 8, true),
    row(CodecId::S1, "s1", 17, Family::Scalar, 1, true),
    row(CodecId::S2, "s2", 18, Family::Scalar, 2, true),
    row(CodecId::S3, "s3", 19, Family::Scalar, 3, true),
    row(CodecId::S4, "s4", 20, Family::Scalar, 4, true),
    row(CodecId::S5, "s5", 21, Family::Scalar, 5, true),
    row(CodecId::N1, "n1", 33, Family::Nested, 1, true),
    row(CodecId::N2, "n2", 34, Family::Nested, 2, true),
    row(CodecId::N3, "n3", 35, Family::Nested, 3, true),
    row(CodecId::N4, "n4", 36, Family::Nested, 4, true),
    row(CodecId::Q8_0, "q8_0", 64, Family::Ggml, 8, false),
    row(CodecId::Q4_0, "q4_0", 65, Family::Ggml, 4, false),
    row(CodecId::Q8_0R, "q8_0r", 66, Family::Ggml, 8, true),
    row(CodecId::Q4_0R, "q4_0r", 67, Family::Ggml, 4, true),
    row(CodecId::T1, "t1", 128, Family::Trellis, 1, true),
    row(CodecId::T1H, "t1h", 129, Family::Trellis, 1, true),
    row(CodecId::T2, "t2", 130, Family::Trellis, 2, true),
    row(CodecId::T2H, "t2h", 131, Family::Trellis, 2, true),
    row(CodecId::T3, "t3", 132, Family::Trellis, 3, true),
    row(CodecId::T4, "t4", 133, Family::Trellis, 4, true),
    row(CodecId::T1S8, "t1s8", 144, Family::Trellis, 1, true),
    row(CodecId::T2S8, "t2s8", 145, Family::Trellis, 2, true),
    row(CodecId::T3S8, "t3s8", 146, Family::Trellis, 3, true),
    row(CodecId::T4S8, "t4s8", 147, Family::Trellis, 4, true),
];

impl CodecId {
    /// All codecs.
    pub const ALL: &'static [Self] = &{
        let (mut all, mut i) = ([Self::F16; ROWS.len()], 0);
        while i < ROWS.len() {
            assert!(ROWS[i].id as usize == i, "rows stand in the order of the enum");
            all[i] = ROWS[i].id;
            i += 1;
        }
        all
    };

    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The codec of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.id)
    }

    /// Stable number in files.
    pub const fn code(self) -> u8 {
        self.row().code
    }

    /// The codec of that number.
    pub fn from_code(code: u8) -> Option<Self> {
        ROWS.iter().find(|row| row.code == code).map(|row| row.id)
    }

    /// What the codec does.
    pub const fn family(self) -> Family {
        self.row().family
    }

    /// Bits of one code (16 for `f16`), scales not counted; half rates (`t1h`, `t2h`) rounded down.
    pub const fn bits(self) -> u32 {
        self.row().bits
    }

    /// Whether codes are of the rotated vector.
    pub const fn is_rotated(self) -> bool {
        self.row().rotated
    }

    /// Bytes of one block, or `None` where the codec does not support the head dim.
    pub const fn block_bytes(self, dim: usize) -> Option<usize> {
        if !is_supported_head_dim(dim) {
            return None;
        }
        match self.family() {
            Family::Half => Some(2 * dim),
            Family::Int8 | Family::Scalar | Family::Nested => {
                Some(SCALE_BYTES + dim * self.bits() as usize / 8)
            }
            Family::Ggml if !dim.is_multiple_of(ggml::RUN) => None,
            Family::Trellis => match trellis::trellis(self) {
                Some(trellis) => Some(SCALE_BYTES + trellis.code.body_bytes(dim)),
                None => None,
            },
            Family::Ggml => Some(dim / ggml::RUN * (2 + ggml::RUN * self.bits() as usize / 8)),
        }
    }

    /// The codebook, for scalar and nested codecs at a supported head dim.
    pub fn codebook(self, dim: usize) -> Option<&'static Codebook> {
        match self.family() {
            Family::Scalar => codebook::scalar(dim, self.bits() as usize),
            Family::Nested => codebook::nested(dim, self.bits() as usize),
            Family::Half | Family::Int8 | Family::Ggml | Family::Trellis => None,
        }
    }
}
