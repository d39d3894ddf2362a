//! The only definition of the codes: the list of codecs, the layout of their bytes, the meaning of their
//! codes.
//!
//! Every codec is a row of [`for_each_code!`](crate::for_each_code), a type of its own that implements
//! [`Code`], and a value of [`CodecId`]. `with_code!` leads from the value to the type. A level is a signed
//! byte times a unit, in every codec that has levels. So one table serves floats, integers, microcontrollers
//! and GPUs.
//!
//! | file | holds |
//! | --- | --- |
//! | `list` | the rows |
//! | `layout` | how code bytes lie |
//! | `coding` | properties of a codec that the form of a block needs |
//! | `form`, `any_form`, `batch` | how they meet registers; found at run time; several vectors there |
//! | `codebook` | levels of the scalar and nested codes, for every head dim |
//! | `scalar`, `int8`, `ggml`, `trellis` | codes on registers and bytes |
//! | `scale` | the one scale of a block |
//!
//! Crates that read blocks in their own way (lines, threads) implement a reader of their own for these types.
//! A program that only encodes and attends wants [`crate::Codec`] or [`crate::AnyCodec`].

pub(crate) mod any_form;
pub(crate) mod batch;
mod books;
pub(crate) mod codebook;
pub(crate) mod coding;
pub(crate) mod form;
mod ggml;
pub(crate) mod int8;
mod layout;
pub(crate) mod levels;
mod list;
pub(crate) mod scalar;
pub(crate) mod scale;
pub(crate) mod trellis;

use crate::error::UnknownCodec;
use codebook::Codebook;
use core::fmt;
use core::str::FromStr;
pub use layout::Layout;
pub(crate) use levels::Levels;
use trellis::{Plain, Trellis, tables};

/// A codec as a type, with all that the compiler knows of it.
pub trait Code: form::Formed + Copy + fmt::Debug + 'static {
    /// The codec as a value.
    const ID: CodecId;
    /// The layout of its bytes.
    const LAYOUT: Layout;
    /// The source of its levels.
    #[doc(hidden)]
    const LEVELS: Levels;
}

struct Row {
    id: CodecId,
    name: &'static str,
    number: u8,
    rotation: Rotation,
    layout: Layout,
    levels: Levels,
}

/// The parts of a vector that a codec rotates.
#[derive(Clone, Copy, PartialEq)]
enum Rotation {
    Nothing,
    Whole,
    Quarters,
}

macro_rules! rotation {
    (plain) => {
        Rotation::Nothing
    };
    (rotated) => {
        Rotation::Whole
    };
    (quarters) => {
        Rotation::Quarters
    };
}

macro_rules! codes {
    (
        []
        $($id:ident $name:literal $number:literal $rotation:ident [$($layout:tt)*] $levels:ident $(($of:expr))?;)*
    ) => {
        /// A codec. Together with a head dim, it determines the bytes of a block.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub enum CodecId {
            $(#[doc = concat!("`", $name, "`")] $id,)*
        }

        const ROWS: &[Row] = &[$(Row {
            id: CodecId::$id,
            name: $name,
            number: $number,
            rotation: rotation!($rotation),
            layout: <$id as Code>::LAYOUT,
            levels: <$id as Code>::LEVELS,
        }),*];

        $(
            #[doc = concat!("`", $name, "`, as a type.")]
            #[derive(Clone, Copy, Debug)]
            #[cfg_attr(feature = "defmt", derive(defmt::Format))]
            pub enum $id {}

            impl form::Formed for $id {
                type Form = layout::form!($($layout)*);
            }

            impl Code for $id {
                const ID: CodecId = CodecId::$id;
                const LAYOUT: Layout = Layout::$($layout)*;
                const LEVELS: Levels = Levels::$levels $(($of))?;
            }
        )*
    };
}

crate::for_each_code!([codes] []);

impl CodecId {
    /// All codecs.
    pub const ALL: &'static [Self] = &{
        let (mut all, mut i) = ([Self::F16; ROWS.len()], 0);
        while i < ROWS.len() {
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

    /// The codec with this name, as [`CodecId::name`] writes it; `parse` also accepts capitals.
    pub fn from_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.id)
    }

    /// Stable number in files.
    pub const fn code(self) -> u8 {
        self.row().number
    }

    /// The codec with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        ROWS.iter().find(|row| row.number == code).map(|row| row.id)
    }

    /// The layout of its bytes.
    pub const fn layout(self) -> Layout {
        self.row().layout
    }

    /// The source of its levels.
    #[doc(hidden)]
    pub const fn levels(self) -> Levels {
        self.row().levels
    }

    /// Bits of one code (16 for `f16`), without scales; half rates (`t2h`, `t3h`) are rounded down.
    pub const fn bits(self) -> u32 {
        self.layout().bits()
    }

    /// Returns true if the codec rotates the vector before it is coded.
    pub const fn is_rotated(self) -> bool {
        !matches!(self.row().rotation, Rotation::Nothing)
    }

    /// Returns true if the codec rotates each quarter of a vector by itself.
    #[doc(hidden)]
    pub const fn rotates_quarters(self) -> bool {
        matches!(self.row().rotation, Rotation::Quarters)
    }

    /// The codec of one width that takes as many bits: `t2` for `m2` and `t3` for `m3`, whose widths need a
    /// map of the keys. Any other codec is its own.
    pub const fn of_one_width(self) -> Self {
        match self {
            Self::M2 => Self::T2,
            Self::M3 => Self::T3,
            one => one,
        }
    }

    /// Bytes of one block, or `None` if the codec does not support the head dim.
    pub const fn block_bytes(self, dim: usize) -> Option<usize> {
        self.layout().block_bytes(dim)
    }

    /// Returns true if dropping the low bit of a code gives the code of the next narrower codec
    /// ([`crate::demote`]).
    pub const fn is_nested(self) -> bool {
        matches!(self.levels(), Levels::Nested)
    }

    /// The trellis of a trellis codec.
    #[doc(hidden)]
    pub const fn trellis(self) -> Option<&'static Trellis<'static>> {
        match self.levels() {
            Levels::Trellis(trellis) => Some(trellis),
            Levels::Values | Levels::Codes(_) | Levels::LloydMax | Levels::Nested => None,
        }
    }

    /// The codebook, for scalar and nested codecs at a supported head dim.
    #[doc(hidden)]
    pub fn codebook(self, dim: usize) -> Option<&'static Codebook> {
        match self.levels() {
            Levels::LloydMax => codebook::scalar(dim, self.bits() as usize),
            Levels::Nested => codebook::nested(dim, self.bits() as usize),
            Levels::Values | Levels::Codes(_) | Levels::Trellis(_) => None,
        }
    }
}

/// The name.
impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses a name, in small letters or capitals.
///
/// ```
/// use tqkv_core::CodecId;
///
/// assert_eq!("S4".parse(), Ok(CodecId::S4));
/// assert!("balanced".parse::<CodecId>().is_err());
/// ```
impl FromStr for CodecId {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let found = Self::ALL.iter().find(|id| id.name().eq_ignore_ascii_case(name));
        found.copied().ok_or(UnknownCodec)
    }
}
