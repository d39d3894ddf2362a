//! The codecs with everything known to the compiler: one type each, generic over the groups.

use crate::threads::Threads;
use crate::warp::{Lane, Warp, load_codes, pack};
use tqkv_core::codebook::Codebook;
use tqkv_core::lanes::Isa;
use tqkv_core::{Effort, ScaleMode, Stored, int8, scalar, to_f16};

/// A codec for vectors of `32 * G` values.
pub trait Format<const G: usize> {
    /// Code width.
    const BITS: u32;

    /// Codes and scale of the rotated vector `y` with |x|^2 = `norm_squared`.
    fn quantise<T: Threads>(
        norm_squared: f32,
        mode: ScaleMode,
        effort: Effort,
        y: &[Lane<T>; G],
        codes: &mut [T::Of<u32>; G],
    ) -> Stored;

    /// Levels of the codes in sigma units.
    fn levels<T: Threads>(codes: [T::Of<u32>; G]) -> [Lane<T>; G];

    /// The words of one group's codes; see [`pack`].
    fn pack<T: Threads>(codes: T::Of<u32>) -> T::Of<u32>;

    /// Reads the codes of one group; see [`load_codes`].
    fn load<T: Threads>(memory: T::Memory, offset: u32) -> T::Of<u32>;
}

/// `s2`, `s3`, `s4`.
#[derive(Debug)]
pub struct Scalar<const BITS: usize>;

/// `n4`.
#[derive(Debug)]
pub struct Nested<const BITS: usize>;

/// `i8`.
#[derive(Debug)]
pub struct Int8;

macro_rules! codebook_format {
    ($name:ident, $solve:ident) => {
        impl<const G: usize, const BITS: usize> Format<G> for $name<BITS> {
            const BITS: u32 = BITS as u32;

            #[inline(always)]
            fn quantise<T: Threads>(
                norm_squared: f32,
                mode: ScaleMode,
                effort: Effort,
                y: &[Lane<T>; G],
                codes: &mut [T::Of<u32>; G],
            ) -> Stored {
                let book = const { &Codebook::$solve(32 * G, BITS) };
                if norm_squared == 0.0 {
                    return Stored::Zero;
                }
                let isa = Warp::<T>::new();
                let mut spare = *codes;
                let scale = scalar::quantise::<_, BITS>(
                    isa,
                    book,
                    mode,
                    effort,
                    32 * G,
                    norm_squared,
                    y,
                    false,
                    codes,
                    &mut spare,
                );
                to_f16(isa, scale)
            }

            #[inline(always)]
            fn levels<T: Threads>(codes: [T::Of<u32>; G]) -> [Lane<T>; G] {
                let book = const { &Codebook::$solve(32 * G, BITS) };
                let isa = Warp::<T>::new();
                let mut levels = [isa.splat(0.0); G];
                scalar::levels::<_, BITS>(isa, book, &codes, false, &mut levels);
                levels
            }

            #[inline(always)]
            fn pack<T: Threads>(codes: T::Of<u32>) -> T::Of<u32> {
                pack::<T, BITS>(codes)
            }

            #[inline(always)]
            fn load<T: Threads>(memory: T::Memory, offset: u32) -> T::Of<u32> {
                load_codes::<T, BITS>(memory, offset)
            }
        }
    };
}

codebook_format!(Scalar, solve_scalar);
codebook_format!(Nested, solve_nested);

impl<const G: usize> Format<G> for Int8 {
    const BITS: u32 = 8;

    #[inline(always)]
    fn quantise<T: Threads>(
        _norm_squared: f32,
        _mode: ScaleMode,
        _effort: Effort,
        y: &[Lane<T>; G],
        codes: &mut [T::Of<u32>; G],
    ) -> Stored {
        let isa = Warp::<T>::new();
        let stored = to_f16(isa, int8::scale(isa, y));
        if let Stored::Scale(scale) = stored {
            int8::quantise(isa, isa.widen_half(scale), y, codes);
        }
        stored
    }

    #[inline(always)]
    fn levels<T: Threads>(codes: [T::Of<u32>; G]) -> [Lane<T>; G] {
        let isa = Warp::<T>::new();
        let mut levels = [isa.splat(0.0); G];
        int8::levels(isa, &codes, &mut levels);
        levels
    }

    #[inline(always)]
    fn pack<T: Threads>(codes: T::Of<u32>) -> T::Of<u32> {
        pack::<T, 8>(codes)
    }

    #[inline(always)]
    fn load<T: Threads>(memory: T::Memory, offset: u32) -> T::Of<u32> {
        load_codes::<T, 8>(memory, offset)
    }
}
