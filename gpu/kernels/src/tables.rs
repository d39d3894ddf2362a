//! The levels of a codec as attention takes them: signed bytes, and the value of 1.

use crate::threads::Threads;
use tqkv_core::AnyCodec;
use tqkv_core::unstable::Levels;

/// Words of the result of [`tables`].
pub const TABLE_WORDS: usize = 9;

/// The levels of a codec: 32 signed bytes, then the bits of the unit. A codec with fewer levels repeats them,
/// so that a look-up can ignore the bits above a code. A codec with 64 levels keeps the lower 32. The upper
/// 32 are the same in reverse, negated. Codes that are their own levels have no bytes, and nor have those without
/// kernels.
pub fn tables(codec: &AnyCodec) -> [u32; TABLE_WORDS] {
    let levels = match codec.id().levels() {
        Levels::LloydMax => codec.codebook().map_or(&[][..], |book| book.bytes()),
        Levels::Trellis(trellis) => &trellis.code.levels[..trellis.code.level_count()],
        Levels::Codes(_) | Levels::Values | Levels::Nested => &[],
    };
    let mut words = [0; TABLE_WORDS];
    for (i, &level) in (0..32).zip(levels.iter().cycle()) {
        words[i / 4] |= u32::from(level as u8) << (8 * (i % 4));
    }
    words[8] = codec.unit().to_bits();
    words
}

/// One level per thread, as a number.
#[inline(always)]
pub(crate) fn level<T: Threads>(tables: T::Memory) -> T::Of<f32> {
    let word = T::load::<1>(tables, T::map(T::lane(), |lane| lane & !3));
    T::zip(word, T::lane(), |[word], lane| f32::from((word >> (8 * (lane % 4))) as u8 as i8))
}

/// The value of a level of 1.
#[inline(always)]
pub(crate) fn unit<T: Threads>(tables: T::Memory) -> f32 {
    f32::from_bits(T::read(tables, 4 * 8))
}

/// A thread's codes before they go to tensor cores. The widest code takes this number of words.
pub(crate) type Words = [u32; 16];
