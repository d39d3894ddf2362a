//! Chooses the number of parts into which a launch of attention splits each sequence.

use crate::GpuError;
use crate::launch::WARPS;
use crate::pages::SLOTS;

/// Most parts of a sequence. Each part is written, and the merge reads it again. At head dim 128 the merge
/// waits for memory once per 16 parts.
const MOST: usize = 64;

/// Least pages per part, for sequences that have at least this number.
const LEAST_PAGES: usize = 4;

/// The cost of a part beyond its pages, in pages: its queries are rounded and its result is written. This is
/// an estimate.
const EDGES: usize = 1;

/// The split of a launch of attention. A cache chooses it; measurements can set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    parts: usize,
    warps: u32,
}

impl Cut {
    /// Sets 1 to 64 parts per sequence, and 1, 2 or 4 warps per block. The warps must divide the parts.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    pub fn new(parts: usize, warps: u32) -> Result<Self, GpuError> {
        if !(1..=MOST).contains(&parts) || ![1, 2, WARPS].contains(&warps) {
            return Err(GpuError::BadSpec(format!(
                "{parts} parts in blocks of {warps} warps; expected 1 to {MOST} parts, and 1, 2 or {WARPS} warps"
            )));
        }
        if !parts.is_multiple_of(warps as usize) {
            return Err(GpuError::BadSpec(format!(
                "{parts} parts do not divide into blocks of {warps} warps"
            )));
        }
        Ok(Self { parts, warps })
    }

    /// The cut by [`parts`] and [`warps_of_block`].
    pub(crate) fn best(resident: usize, shares: usize, longest: usize) -> Self {
        let parts = parts(resident, shares, longest);
        Self { parts, warps: warps_of_block(parts) }
    }

    /// Parts per sequence.
    pub(crate) fn parts(self) -> usize {
        self.parts
    }

    /// Warps per block.
    pub(crate) fn warps(self) -> u32 {
        self.warps
    }
}

/// The number of parts per sequence with which the last warp finishes first. Sequences have up to `longest`
/// tokens. For each part, `shares` warps serve all sequences, and `resident` warps run on the device at once.
/// A warp takes the pages of its part one after the other. If there are more warps than run at once, they run
/// in turns.
fn parts(resident: usize, shares: usize, longest: usize) -> usize {
    let pages = longest.div_ceil(SLOTS).max(1);
    // With few pages, each warp of a block gets at least one.
    let most = (pages / LEAST_PAGES).clamp(pages.min(WARPS as usize), MOST);
    let cost = |parts: usize| (shares * parts).div_ceil(resident.max(1)) * (pages.div_ceil(parts) + EDGES);
    (1..=most).min_by_key(|&parts| cost(parts)).unwrap_or(1)
}

/// Warps per block. They divide the parts, since a block's registers are only freed when its last warp ends.
fn warps_of_block(parts: usize) -> u32 {
    let divides = |warps: &u32| parts.is_multiple_of(*warps as usize);
    [WARPS, WARPS / 2].into_iter().find(divides).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Warps that run on 132 multiprocessors at 168 registers per thread.
    const RESIDENT: usize = 132 * 12;

    #[test]
    fn a_full_device_runs_all_its_warps_at_once() {
        // 64 sequences of 512 pages and 8 KV heads: 1,536 of 1,584 warps, with 171 pages each.
        assert_eq!(parts(RESIDENT, 8 * 64, 32_768), 3);
        // At twice the device's warps, no split helps.
        assert_eq!(parts(RESIDENT, 2 * RESIDENT, 32_768), 1);
        assert_eq!(parts(RESIDENT, 1_000_000, 32_768), 1);
        for shares in 1..2_000 {
            let parts = parts(RESIDENT, shares, 32_768);
            let turns = (shares * parts).div_ceil(RESIDENT) * 512_usize.div_ceil(parts);
            let ideal = (shares * 512) as f64 / RESIDENT as f64;
            assert!(
                shares < 24 || turns as f64 <= 1.06 * ideal + 4.0,
                "{shares}: {parts} parts, {turns} {ideal}"
            );
        }
    }

    #[test]
    fn one_sequence_is_split_into_as_many_parts_as_are_merged_well() {
        assert_eq!(parts(RESIDENT, 8, 32_768), 64);
        assert_eq!(parts(RESIDENT, 8, 8_192), 32, "four pages each");
        assert_eq!(parts(RESIDENT, 8, 100), 2, "a page each");
        assert_eq!(parts(RESIDENT, 8, 64 * 9), 3, "nine pages, three each, as four parts would have");
        assert_eq!(parts(RESIDENT, 8, 0), 1, "no tokens still write their zeros");
        assert_eq!(parts(0, 0, 0), 1);
    }

    #[test]
    fn a_cut_leaves_no_warp_without_a_part() {
        for (parts, warps) in [(1, 1), (6, 2), (64, 4)] {
            assert_eq!(Cut::new(parts, warps), Ok(Cut { parts, warps }));
        }
        let message = |parts, warps| Cut::new(parts, warps).unwrap_err().to_string();
        assert_eq!(message(6, 4), "6 parts do not divide into blocks of 4 warps");
        for (parts, warps) in [(0, 1), (65, 1), (9, 3), (8, 8)] {
            assert!(message(parts, warps).ends_with("expected 1 to 64 parts, and 1, 2 or 4 warps"));
        }
    }

    #[test]
    fn no_warp_of_a_block_is_without_a_part() {
        for parts in 1..=MOST {
            let warps = warps_of_block(parts) as usize;
            assert!(parts.is_multiple_of(warps) && warps <= WARPS as usize, "{parts}");
        }
        assert_eq!([1, 2, 3, 4, 6, 64].map(warps_of_block), [1, 2, 1, 4, 2, 4]);
    }
}
