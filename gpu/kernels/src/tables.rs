//! The levels of a codec as attention takes them: signed bytes, and what 1 is worth.

use crate::threads::Threads;
use tqkv_core::AnyCodec;
use tqkv_core::code::Levels;

/// Words of [`tables`].
pub const TABLE_WORDS: usize = 9;

/// The levels of a codec: 32 signed bytes, over and over where there are fewer, so that the bits above a code
/// are of no account in a look-up, and then the bits of the unit. Of 64 levels the upper 32 are the lower
/// ones from the end, negated. Codes that are their own levels have no bytes.
pub fn tables(codec: &AnyCodec) -> [u32; TABLE_WORDS] {
    let levels = match codec.id().levels() {
        Levels::LloydMax | Levels::Nested => codec.codebook().map_or(&[][..], |book| book.bytes()),
        Levels::Trellis(trellis) => &trellis.code.levels[..trellis.code.level_count()],
        Levels::Codes(_) | Levels::Values => &[],
    };
    let mut words = [0; TABLE_WORDS];
    for (i, &level) in (0..32).zip(levels.iter().cycle()) {
        words[i / 4] |= u32::from(level as u8) << (8 * (i % 4));
    }
    words[8] = codec.unit().to_bits();
    words
}

/// One level in each thread, as a number.
#[inline(always)]
pub(crate) fn level<T: Threads>(tables: T::Memory) -> T::Of<f32> {
    let word = T::load::<1>(tables, T::map(T::lane(), |lane| lane & !3));
    T::zip(word, T::lane(), |[word], lane| f32::from((word >> (8 * (lane % 4))) as u8 as i8))
}

/// What a level of 1 is worth.
#[inline(always)]
pub(crate) fn unit<T: Threads>(tables: T::Memory) -> f32 {
    f32::from_bits(T::read(tables, 4 * 8))
}

/// A thread's codes on the way to tensor cores: as many words as the widest code takes.
pub(crate) type Words = [u32; 16];
