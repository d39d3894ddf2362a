//! How a warp reads and writes blocks: the core's types of codes, each for every number of groups. [`F16`] is
//! the rotated vector itself here.

use crate::threads::{Threads, load_half};
use crate::trellis::Trellis;
use crate::warp::{Lane, Warp, load_codes, pack};
use tqkv_core::code::{Code, F16, I8, S2, S3, S4, T2, T3, T4};
use tqkv_core::unstable::codebook::Codebook;
use tqkv_core::unstable::machine::Isa;
use tqkv_core::unstable::{Levels, int8, scalar};
use tqkv_core::unstable::{StoredScale, to_f16};
use tqkv_core::{Effort, ScaleMode};

/// A codec that a warp can read, in blocks of `32 * G` values.
pub trait Blocks<const G: usize>: Code {
    /// Code bits per coordinate.
    const BITS: u32 = Self::LAYOUT.bits();
    /// The value of a level of 1; it multiplies the stored scale.
    const UNIT: f32;

    /// Reads the levels, which are whole numbers, of the codes at `offset`, which is even.
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G];
}

/// A codec that a warp can encode.
pub trait Format<const G: usize>: Blocks<G> {
    /// Encodes the rotated vector `y`, with |x|^2 = `norm_squared`. Writes the codes at `row` bytes from
    /// `home` and returns the scale. Writes nothing if the scale is out of range. `workspace` belongs to this
    /// warp alone. For trellis codes it has [`crate::viterbi::workspace_bytes`].
    fn encode<T: Threads>(
        norm_squared: f32,
        mode: ScaleMode,
        effort: Effort,
        y: &[Lane<T>; G],
        workspace: T::Memory,
        home: T::Memory,
        row: u32,
    ) -> StoredScale;
}

/// Writes the codes of all groups: thread j < `BITS` writes word j of a group. Writes zeros if there are no
/// codes.
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

/// Reads the codes of all groups, which lie one after the other.
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

/// Implements codes of one width side by side, with the codebook of the head dim.
macro_rules! dense {
    ($($code:ident)*) => { $(
        impl<const G: usize> Blocks<G> for $code {
            const UNIT: f32 = book::<Self>(32 * G).unit();

            #[inline(always)]
            fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
                const BITS: usize = <$code as Code>::LAYOUT.bits() as usize;
                let book = const { &book::<$code>(32 * G) };
                let (isa, codes) = (Warp::<T>::new(), load_all::<T, BITS, G>(memory, offset));
                let mut levels = [isa.splat(0.0); G];
                scalar::levels::<_, BITS>(isa, book, &codes, false, &mut levels);
                levels
            }
        }

        impl<const G: usize> Format<G> for $code {
            #[inline(always)]
            fn encode<T: Threads>(
                norm_squared: f32,
                mode: ScaleMode,
                effort: Effort,
                y: &[Lane<T>; G],
                _workspace: T::Memory,
                home: T::Memory,
                row: u32,
            ) -> StoredScale {
                const BITS: usize = <$code as Code>::LAYOUT.bits() as usize;
                let (isa, book) = (Warp::<T>::new(), const { &book::<$code>(32 * G) });
                let (mut codes, mut spare) = ([T::splat(0); G], [T::splat(0); G]);
                let mut stored = StoredScale::Zero;
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
                if stored != StoredScale::OutOfRange {
                    store_all::<T, BITS, G>(home, row, &codes, stored == StoredScale::Zero);
                }
                stored
            }
        }
    )* };
}

dense!(S2 S3 S4);

/// The codebook of a code that has one.
const fn book<C: Code>(dim: usize) -> Codebook {
    match Codebook::of(C::ID, dim) {
        Some(book) => book,
        None => panic!("a code without a codebook"),
    }
}

impl<const G: usize> Blocks<G> for I8 {
    const UNIT: f32 = match Self::LEVELS {
        Levels::Codes(unit) => unit,
        Levels::Values | Levels::LloydMax | Levels::Nested | Levels::Trellis(_) => panic!("codes are levels"),
    };

    #[inline(always)]
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
        load_all::<T, 8, G>(memory, offset).map(|codes| Warp::<T>::new().widen_i8(codes))
    }
}

impl<const G: usize> Format<G> for I8 {
    #[inline(always)]
    fn encode<T: Threads>(
        _norm_squared: f32,
        _mode: ScaleMode,
        _effort: Effort,
        y: &[Lane<T>; G],
        _workspace: T::Memory,
        home: T::Memory,
        row: u32,
    ) -> StoredScale {
        let (isa, mut codes) = (Warp::<T>::new(), [T::splat(0); G]);
        let stored = to_f16(isa, int8::scale(isa, y));
        if let StoredScale::Scale(scale) = stored {
            int8::quantise(isa, isa.widen_half(scale), y, &mut codes);
        }
        if stored != StoredScale::OutOfRange {
            store_all::<T, 8, G>(home, row, &codes, false);
        }
        stored
    }
}

/// Implements the planes of a trellis code through [`Trellis`].
macro_rules! planes {
    ($($code:ident)*) => { $(
        impl<const G: usize> Blocks<G> for $code {
            const UNIT: f32 = Trellis::<Self>::CODE.unit();

            #[inline(always)]
            fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
                Trellis::<Self>::read::<T, G>(memory, offset)
            }
        }

        impl<const G: usize> Format<G> for $code {
            #[inline(always)]
            fn encode<T: Threads>(
                norm_squared: f32,
                mode: ScaleMode,
                effort: Effort,
                y: &[Lane<T>; G],
                workspace: T::Memory,
                home: T::Memory,
                row: u32,
            ) -> StoredScale {
                Trellis::<Self>::encode::<T, G>(norm_squared, mode, effort, y, workspace, home, row)
            }
        }
    )* };
}

planes!(T2 T3 T4);

/// The smallest number that rounds to the infinity of f16.
const BEYOND_HALF: f32 = 65_520.0;

/// Each thread's offset in group `g` of a row of halves at `row`.
#[inline(always)]
fn half<T: Threads>(row: u32, g: usize) -> T::Of<u32> {
    T::map(T::lane(), |lane| row + 2 * (32 * g as u32 + lane))
}

impl<const G: usize> Blocks<G> for F16 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn read<T: Threads>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
        let mut y = [Lane(T::splat(0.0)); G];
        for (g, v) in y.iter_mut().enumerate() {
            v.0 = load_half::<T>(memory, half::<T>(offset, g));
        }
        y
    }
}

impl<const G: usize> Format<G> for F16 {
    /// Rounds each coordinate. There is no scale; a coordinate that does not fit is out of range.
    #[inline(always)]
    fn encode<T: Threads>(
        _norm_squared: f32,
        _mode: ScaleMode,
        _effort: Effort,
        y: &[Lane<T>; G],
        _workspace: T::Memory,
        home: T::Memory,
        row: u32,
    ) -> StoredScale {
        let mut largest = T::splat(0.0);
        for v in y {
            largest = T::zip(largest, v.0, |largest, v| f32::max(largest, v.abs()));
        }
        if T::ballot(T::map(largest, |largest| largest >= BEYOND_HALF)) != 0 {
            return StoredScale::OutOfRange;
        }
        for (g, v) in y.iter().enumerate() {
            T::store_u16(home, half::<T>(row, g), T::map(v.0, T::to_half), T::splat(true));
        }
        StoredScale::Zero
    }
}
