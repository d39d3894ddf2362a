//! The types of numbers in keys and values.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tqkv_simd::Level;
use tqkv_simd::page::{narrow_rows, widen_rows};

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
    /// Converts numbers to f32. `from` and `to` have the same length, a multiple of 16.
    fn widen(level: Level, from: &[Self], to: &mut [f32]);
    /// [`Element::from_f32`] of numbers, which [`Element::widen`] says more of. True if all are finite.
    fn narrow(level: Level, from: &[f32], to: &mut [Self]) -> bool;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $to:expr, $from:expr, $widen:expr, $narrow:expr) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn to_f32(self) -> f32 {
                $to(self)
            }

            fn from_f32(x: f32) -> Self {
                $from(x)
            }

            #[inline]
            fn push(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; Self::DTYPE.bytes()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }

            fn widen(level: Level, from: &[Self], to: &mut [f32]) {
                $widen(level, from, to);
            }

            fn narrow(level: Level, from: &[f32], to: &mut [Self]) -> bool {
                $narrow(level, from, to)
            }
        }
    };
}

element!(f32, F32, |x| x, |x| x, widen_f32, narrow_f32);
element!(f16, F16, f16::to_f32, f16::from_f32, widen_f16, narrow_f16);
element!(bf16, Bf16, bf16::to_f32, bf16::from_f32, widen_bf16, narrow_bf16);

fn widen_f32(_: Level, from: &[f32], to: &mut [f32]) {
    to.copy_from_slice(from);
}

fn narrow_f32(level: Level, from: &[f32], to: &mut [f32]) -> bool {
    to.copy_from_slice(from);
    level.plain(
        #[inline(always)]
        || from.iter().fold(true, |finite, x| finite & x.is_finite()),
    )
}

fn widen_f16(level: Level, from: &[f16], to: &mut [f32]) {
    widen_rows(level, from.reinterpret_cast(), to);
}

fn narrow_f16(level: Level, from: &[f32], to: &mut [f16]) -> bool {
    const EXPONENT: u16 = 0x7c00;
    let to: &mut [u16] = to.reinterpret_cast_mut();
    narrow_rows(level, from, to);
    level.plain(
        #[inline(always)]
        || to.iter().fold(true, |finite, x| finite & (x & EXPONENT != EXPONENT)),
    )
}

fn widen_bf16(level: Level, from: &[bf16], to: &mut [f32]) {
    level.plain(
        #[inline(always)]
        || from.iter().zip(to).for_each(|(from, to)| *to = f32::from_bits(u32::from(from.to_bits()) << 16)),
    );
}

/// Without the branches of [`bf16::from_f32`], which keep the compiler from making vector code. They are for
/// numbers that are none, which are refused.
fn narrow_bf16(level: Level, from: &[f32], to: &mut [bf16]) -> bool {
    const EXPONENT: u16 = 0x7f80;
    level.plain(
        #[inline(always)]
        || {
            from.iter().zip(to).fold(true, |finite, (from, to)| {
                let bits = from.to_bits();
                // Half of the last place, less one where that place is even: ties go to even.
                let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
                *to = bf16::from_bits(rounded);
                finite & from.is_finite() & (rounded & EXPONENT != EXPONENT)
            })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>() {
        let edges =
            [0.0, -0.0, 1.0, 257.0 / 256.0, 259.0 / 256.0, -3.4e38, 65504.0, 65520.0, 1e-8, f32::MAX, 6e-8];
        let mut x: Vec<f32> =
            (0..1024u32).map(|i| f32::from_bits(i.wrapping_mul(0x0123_4567) & 0xbfff_ffff)).collect();
        x[..edges.len()].copy_from_slice(&edges);
        for level in Level::available() {
            let (mut narrow, mut wide) = (vec![T::from_f32(7.0); x.len()], vec![7.0; x.len()]);
            let finite = T::narrow(level, &x, &mut narrow);
            T::widen(level, &narrow, &mut wide);
            let want: Vec<f32> = x.iter().map(|x| T::from_f32(*x).to_f32()).collect();
            assert_eq!(finite, want.iter().all(|x| x.is_finite()), "{level:?}");
            assert!(
                wide.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{level:?} {:?}",
                T::DTYPE
            );
            assert!(T::narrow(
                level,
                &x[16..32].iter().map(|x| x.clamp(-1.0, 1.0)).collect::<Vec<_>>(),
                &mut narrow[..16]
            ));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7fff_ffff)] {
                x[29] = bad;
                assert!(!T::narrow(level, &x[16..48], &mut narrow[..32]), "{bad}");
            }
            x[29] = 0.5;
        }
    }

    #[test]
    fn numbers_are_converted_alike_on_every_level() {
        check::<f32>();
        check::<f16>();
        check::<bf16>();
    }
}
