//! The codecs with everything known to the compiler: one type each, generic over the groups.

use crate::threads::Threads;
use crate::warp::{Lane, Warp, load_codes, pack};
use tqkv_core::code::Levels;
use tqkv_core::codebook::Codebook;
use tqkv_core::lanes::Isa;
use tqkv_core::{CodecId, Effort, ScaleMode, Stored, int8, scalar, to_f16};

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
    /// Writes the codes of the rotated vector `y` with |x|^2 = `norm_squared` to `row` bytes from `home`
    /// and returns its scale; writes nothing where that is out of range. `workspace` is the warp's own:
    /// [`crate::viterbi::workspace_bytes`] for trellis codes, not touched by others.
    fn encode<T: Threads>(
        norm_squared: f32,
        mode: ScaleMode,
        effort: Effort,
        y: &[Lane<T>; G],
        workspace: T::Memory,
        home: T::Memory,
        row: u32,
    ) -> Stored;
}

/// Writes the codes of all groups: thread j < `BITS` writes word j of a group. No codes: zeros.
#[inline(always)]
fn store_all<T: Threads, const BITS: usize, const G: usize>(
    home: T::Memory,
    row: u32,
    codes: &[T::Of<u32>; G],
    zero: bool,
) {
    let active = T::map(T::lane(), |lane| lane < BITS as u32);
    for (g, &codes) in codes.iter().enumerate() {
        let codes = if zero { T::splat(0) } else { codes };
        let words = T::map(pack::<T, BITS>(codes), |word| [word]);
        let offset = T::map(T::lane(), |lane| row + 4 * (g as u32 * BITS as u32 + lane));
        T::store::<1>(home, offset, words, active);
    }
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

/// The codecs by their names.
pub type S2 = Scalar<2>;
/// As [`S2`].
pub type S3 = Scalar<3>;
/// As [`S2`].
pub type S4 = Scalar<4>;
/// As [`S2`].
pub type N4 = Nested<4>;
/// As [`S2`].
pub type I8 = Int8;
/// As [`S2`].
pub type T2 = crate::trellis::Trellis<2>;
/// As [`S2`].
pub type T3 = crate::trellis::Trellis<3>;
/// As [`S2`].
pub type T4 = crate::trellis::Trellis<4>;

macro_rules! codebook_format {
    ($name:ident, $solve:ident) => {
        impl<const G: usize, const BITS: usize> Blocks<G> for $name<BITS> {
            const BITS: u32 = BITS as u32;
            const UNIT: f32 = Codebook::$solve(32 * G, BITS).unit();

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
            fn encode<T: Threads>(
                norm_squared: f32,
                mode: ScaleMode,
                effort: Effort,
                y: &[Lane<T>; G],
                _workspace: T::Memory,
                home: T::Memory,
                row: u32,
            ) -> Stored {
                let (isa, book) = (Warp::<T>::new(), const { &Codebook::$solve(32 * G, BITS) });
                let (mut codes, mut spare) = ([T::splat(0); G], [T::splat(0); G]);
                let mut stored = Stored::Zero;
                if norm_squared != 0.0 {
                    let scale = scalar::quantise::<_, BITS>(
                        isa,
                        book,
                        mode,
                        effort,
                        32 * G,
                        norm_squared,
                        y,
                        false,
                        &mut codes,
                        &mut spare,
                    );
                    stored = to_f16(isa, scale);
                }
                if stored != Stored::OutOfRange {
                    store_all::<T, BITS, G>(home, row, &codes, stored == Stored::Zero);
                }
                stored
            }
        }
    };
}

codebook_format!(Scalar, solve_scalar);
codebook_format!(Nested, solve_nested);

impl<const G: usize> Blocks<G> for Int8 {
    const BITS: u32 = 8;
    const UNIT: f32 = match CodecId::I8.levels() {
        Levels::Codes(unit) => unit,
        Levels::Values | Levels::LloydMax | Levels::Nested | Levels::Trellis(_) => panic!("codes are levels"),
    };

    #[inline(always)]
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
        let isa = Warp::<T>::new();
        load_all::<T, 8, G>(memory, offset).map(|codes| isa.widen_i8(codes))
    }
}

impl<const G: usize> Format<G> for Int8 {
    #[inline(always)]
    fn encode<T: Threads>(
        _norm_squared: f32,
        _mode: ScaleMode,
        _effort: Effort,
        y: &[Lane<T>; G],
        _workspace: T::Memory,
        home: T::Memory,
        row: u32,
    ) -> Stored {
        let (isa, mut codes) = (Warp::<T>::new(), [T::splat(0); G]);
        let stored = to_f16(isa, int8::scale(isa, y));
        if let Stored::Scale(scale) = stored {
            int8::quantise(isa, isa.widen_half(scale), y, &mut codes);
        }
        if stored != Stored::OutOfRange {
            store_all::<T, 8, G>(home, row, &codes, false);
        }
        stored
    }
}
