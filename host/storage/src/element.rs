//! The types of numbers in keys and values.

use half::{bf16, f16};

/// The type of a number, as the format codes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16.
    Bf16,
}

impl Dtype {
    const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    pub(crate) const fn code(self) -> u16 {
        self as u16
    }

    pub(crate) fn from_code(code: u16) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A number type of keys and values: f32, f16 or bf16.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The type of this number.
    const DTYPE: Dtype;
    /// Converts to f32, exactly.
    fn to_f32(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn from_f32(x: f32) -> Self;
    /// Appends its bytes, little-endian.
    fn push(self, out: &mut Vec<u8>);
    /// Reads a number from its bytes.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $to:expr, $from:expr) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn to_f32(self) -> f32 {
                $to(self)
            }

            fn from_f32(x: f32) -> Self {
                $from(x)
            }

            fn push(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; Self::DTYPE.bytes()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    };
}

element!(f32, F32, |x| x, |x| x);
element!(f16, F16, f16::to_f32, f16::from_f32);
element!(bf16, Bf16, bf16::to_f32, bf16::from_f32);
