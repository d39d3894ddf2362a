//! Tail-biting trellis codes: `t1 t2 t2h t3 t3h t4` (256 states), `t2s8` (8 states, so that microcontrollers
//! can encode it), and `m2 m3` of several widths.
//!
//! Half the squared error of a scalar codebook in the same bytes. Decoding is still one look-up per
//! coordinate:
//!
//! ```text
//! coded bits  u[t]  u[t-1] .. u[t-8]   (one ring of head_dim bits, no start state)
//!               |      |         |
//!               +--XOR of the tapped bits, three times--> parity z in 0..8
//! plain bits  j[t] -------------------------------------> level[z + 8 j]
//! ```
//!
//! The parities choose one of eight interleaved sub-codebooks, each with levels far apart. They change with
//! every coded bit. A *path* of coded bits can therefore follow the vector much more closely than independent
//! codes of the same size. The encoder finds the best path by a Viterbi search; decoding is XOR and a table.
//!
//! | file | contents |
//! | --- | --- |
//! | `code` | the description of a code, its metric rows |
//! | `tables` | the nine codes |
//! | `quarters` | widths and weights of `m2` and `m3` |
//! | `planes` | bytes: bit planes to levels and back |
//! | `viterbi` | the search, in bytes |
//! | `encode` | scale candidates, choice of plain symbols, the block |
//!
//! When not to use it: if encoding must take only nanoseconds, use the scalar codes. If a cache demotes in
//! place, use the nested codes; a trellis does not nest. The format is in SPEC.md.

mod code;
mod encode;
mod planes;
mod quarters;
pub(super) mod tables;
mod viterbi;

use code::TapMasks;
pub use code::{Code, MAX_LEVELS, MAX_MEMORY, PARITIES, Plain, Predictor, RESOLUTION};
pub use encode::{Candidate, Search, Target, Vector, choose_plain, offsets, round_target};
pub(crate) use encode::{Job, encode_all};
pub use planes::{levels, pair_parts, parities};
pub use quarters::{QUARTERS, Quarter, QuarterWeights, Quarters};
pub use viterbi::{WARM_UP, workspace_bytes};

/// A code and its metric rows.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Trellis<'a> {
    /// The code.
    pub code: Code,
    rows: &'a [[u8; PARITIES]],
    taps: &'a TapMasks,
    quarters: Option<&'a Quarters>,
}

impl<'a> Trellis<'a> {
    /// A code whose rows and taps are made in the caller's memory.
    ///
    /// # Panics
    /// `rows` does not hold [`Code::row_count`] rows.
    pub fn new(code: Code, rows: &'a mut [[u8; PARITIES]], taps: &'a mut TapMasks) -> Self {
        assert!(rows.len() == code.row_count(), "row_count rows");
        code.fill_rows(rows);
        *taps = code.tap_masks();
        Self::of_parts(code, rows, taps)
    }

    /// A code with rows that [`Code::fill_rows`] filled, and [`Code::tap_masks`].
    const fn of_parts(code: Code, rows: &'a [[u8; PARITIES]], taps: &'a TapMasks) -> Self {
        Self { code, rows, taps, quarters: None }
    }

    /// A code of quarters. `code` has the levels of the first one.
    const fn of_quarters(code: Code, quarters: &'a Quarters, taps: &'a TapMasks) -> Self {
        Self { code, rows: quarters[0].rows, taps, quarters: Some(quarters) }
    }

    /// The quarters of a code of several widths.
    pub const fn quarters(&self) -> Option<&'a Quarters> {
        self.quarters
    }

    /// All metric rows.
    pub const fn rows(&self) -> &'a [[u8; PARITIES]] {
        self.rows
    }

    /// The rows of one target.
    #[inline(always)]
    pub fn rows_of(&self, target: i16) -> &'a [[u8; PARITIES]] {
        let stride = self.code.rows_per_target();
        let first = (i32::from(target) + self.code.limit()).max(0) as usize * stride;
        self.rows.get(first..first + stride).unwrap_or(&[])
    }
}
