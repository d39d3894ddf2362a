//! How many parts the sequences of a launch of attention are split into.

use crate::GpuError;
use crate::launch::WARPS;
use crate::pages::SLOTS;

/// Parts of a sequence, at most: each is written, and read again by the merge, which waits for memory once
/// for every 16 of them at head dim 128.
const MOST: usize = 64;

/// Pages of a part, at least, where sequences have so many.
const LEAST_PAGES: usize = 4;

/// What a part costs beside its pages, in pages: its queries are rounded and its result is written. An
/// estimate.
const EDGES: usize = 1;

/// How launches of attention are cut, where that is to be measured: a cache decides it for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    parts: usize,
    warps: u32,
}

impl Cut {
    /// Parts of each sequence, 1 to 64, and warps of a block, 1, 2 or 4, which divide them.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    pub fn new(parts: usize, warps: u32) -> Result<Self, GpuError> {
        if !(1..=MOST).contains(&parts) || ![1, 2, WARPS].contains(&warps) {
            return Err(GpuError::BadSpec(format!(
                "{parts} parts in blocks of {warps} warps; accepted are 1 to {MOST} parts, and 1, 2 or {WARPS} warps"
            )));
        }
        if !parts.is_multiple_of(warps as usize) {
            return Err(GpuError::BadSpec(format!(
                "{parts} parts do not divide into blocks of {warps} warps"
            )));
        }
        Ok(Self { parts, warps })
    }

    /// What [`parts`] and [`warps_of_block`] say.
    pub(crate) fn best(resident: usize, shares: usize, longest: usize) -> Self {
        let parts = parts(resident, shares, longest);
        Self { parts, warps: warps_of_block(parts) }
    }

    /// Parts of each sequence.
    pub(crate) fn parts(self) -> usize {
        self.parts
    }

    /// Warps of a block.
    pub(crate) fn warps(self) -> u32 {
        self.warps
    }
}

/// Parts of each sequence of up to `longest` tokens, where `shares` warps serve a part of all sequences and
/// `resident` warps run on the device at once: as many as make the last warp finish first, a warp taking a
/// part's pages one after the other, and warps in turns where there are more than run at once.
fn parts(resident: usize, shares: usize, longest: usize) -> usize {
    let pages = longest.div_ceil(SLOTS).max(1);
    // Few pages: one for each warp of a block.
    let most = (pages / LEAST_PAGES).clamp(pages.min(WARPS as usize), MOST);
    let cost = |parts: usize| (shares * parts).div_ceil(resident.max(1)) * (pages.div_ceil(parts) + EDGES);
    (1..=most).min_by_key(|&parts| cost(parts)).unwrap_or(1)
}

/// Warps of a block, so that none is without a part: a block's registers are free when its last warp ends.
fn warps_of_block(parts: usize) -> u32 {
    let divides = |warps: &u32| parts.is_multiple_of(*warps as usize);
    [WARPS, WARPS / 2].into_iter().find(divides).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Warps that 132 multiprocessors run at 168 registers.
    const RESIDENT: usize = 132 * 12;

    #[test]
    fn a_full_device_runs_all_its_warps_at_once() {
        // 64 sequences of 512 pages, 8 KV heads: 1,536 of 1,584 warps, 171 pages each.
        assert_eq!(parts(RESIDENT, 8 * 64, 32_768), 3);
        // Twice the device: no split helps.
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
            assert!(message(parts, warps).ends_with("accepted are 1 to 64 parts, and 1, 2 or 4 warps"));
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
