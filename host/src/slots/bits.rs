//! Sets of the slots of a page, one bit per slot.

use crate::cache::life::PAGE_TOKENS;
use std::ops::Range;

/// The first `count` slots.
pub(super) fn first(count: usize) -> u128 {
    if count < PAGE_TOKENS { (1 << count) - 1 } else { u128::MAX }
}

/// The runs of slots of a set.
pub(super) fn runs(mut bits: u128) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let start = bits.trailing_zeros() as usize;
        let end = start + (bits >> start).trailing_ones() as usize;
        bits &= !first(end);
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_single_slots() {
        for bits in [0, 1, u128::MAX, 0b1011_0110, 1 << 127 | 5, first(127), !first(32), 0b11 << 126] {
            let slots: Vec<usize> = runs(bits).flatten().collect();
            let single: Vec<usize> = (0..PAGE_TOKENS).filter(|slot| bits >> slot & 1 == 1).collect();
            assert_eq!(slots, single);
            assert!(runs(bits).zip(runs(bits).skip(1)).all(|(run, next)| run.end < next.start));
        }
    }
}
