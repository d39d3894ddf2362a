//! The codecs with everything known to the compiler: one type each, generic over the groups.

use crate::threads::Threads;
use crate::warp::{Lane, Warp, load_codes, pack};
use tqkv_core::codebook::Codebook;
use tqkv_core::lanes::Isa;
use tqkv_core::{Effort, ScaleMode, Stored, int8, scalar, to_f16};

/// A codec whose blocks of `32 * G` values can be read.
pub trait Blocks<const G: usize> {
    /// Code bits a coordinate.
    const BITS: u32;
    /// What a stored scale is multiplied by.
    const UNIT: f32 = 1.0;

    /// Levels of the codes that start at `offset`, which is even.
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G];
}

/// A codec that a warp can encode.
pub trait Format<const G: usize>: Blocks<G> {
    /// Codes and scale of the rotated vector `y` with |x|^2 = `norm_squared`.
    fn quantise<T: Threads>(
        norm_squared: f32,
        mode: ScaleMode,
        effort: Effort,
        y: &[Lane<T>; G],
        codes: &mut [T::Of<u32>; G],
    ) -> Stored;

    /// The words of one group's codes; see [`pack`].
    fn pack<T: Threads>(codes: T::Of<u32>) -> T::Of<u32>;
}

/// The codes of all groups, which lie one after the other.
#[inline(always)]
fn load_all<T: Threads, const BITS: usize, const G: usize>(
    memory: T::Memory,
    offset: u32,
) -> [T::Of<u32>; G] {
    let mut codes = [T::splat(0); G];
    for (g, codes) in codes.iter_mut().enumerate() {
        *codes = load_codes::<T, BITS>(memory, offset + (4 * BITS * g) as u32);
    }
    codes
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
        impl<const G: usize, const BITS: usize> Blocks<G> for $name<BITS> {
            const BITS: u32 = BITS as u32;

            #[inline(always)]
            fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
                let book = const { &Codebook::$solve(32 * G, BITS) };
                let (isa, codes) = (Warp::<T>::new(), load_all::<T, BITS, G>(memory, offset));
                let mut levels = [isa.splat(0.0); G];
                scalar::levels::<_, BITS>(isa, book, &codes, false, &mut levels);
                levels
            }
        }

        impl<const G: usize, const BITS: usize> Format<G> for $name<BITS> {
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
            fn pack<T: Threads>(codes: T::Of<u32>) -> T::Of<u32> {
                pack::<T, BITS>(codes)
            }
        }
    };
}

codebook_format!(Scalar, solve_scalar);
codebook_format!(Nested, solve_nested);

impl<const G: usize> Blocks<G> for Int8 {
    const BITS: u32 = 8;

    #[inline(always)]
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
        let isa = Warp::<T>::new();
        let mut levels = [isa.splat(0.0); G];
        int8::levels(isa, &load_all::<T, 8, G>(memory, offset), &mut levels);
        levels
    }
}

impl<const G: usize> Format<G> for Int8 {
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
    fn pack<T: Threads>(codes: T::Of<u32>) -> T::Of<u32> {
        pack::<T, 8>(codes)
    }
}
