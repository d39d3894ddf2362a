//! Where the levels of a code come from.

use super::trellis::Trellis;

/// Where the levels of a code come from.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Levels {
    /// No levels: the block holds values.
    Values,
    /// The code itself is the level, as a signed number, in this unit.
    Codes(f32),
    /// The Lloyd-Max codebook of the head dim.
    LloydMax,
    /// The nested codebook of the head dim: dropping the low bit of a code gives the code of the next
    /// narrower codec.
    Nested,
    /// The levels of a trellis.
    Trellis(&'static Trellis<'static>),
}
