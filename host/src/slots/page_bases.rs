//! The basis of each code of a stream ([`super::means`]). A page has one number, and one per slot where its codes have
//! several bases, as at the place where a new mean begins.

use super::bits;
use super::exact_rows::{cut, reach};
use crate::cache::life::PAGE_TOKENS;
use std::ops::Range;

/// Slots whose bases are compared at once.
const WORD: usize = 16;

#[derive(Clone, Debug)]
enum PageBasis {
    One(u8),
    Each(Box<[u8; PAGE_TOKENS]>),
}

impl Default for PageBasis {
    fn default() -> Self {
        Self::One(0)
    }
}

/// By page; pages past the end have the first basis.
#[derive(Clone, Debug, Default)]
pub(super) struct PageBases(Vec<PageBasis>);

impl PageBases {
    /// The basis of a slot.
    pub(super) fn of(&self, slot: usize) -> usize {
        match self.0.get(slot / PAGE_TOKENS) {
            None => 0,
            Some(PageBasis::One(basis)) => (*basis).into(),
            Some(PageBasis::Each(bases)) => bases[slot % PAGE_TOKENS].into(),
        }
    }

    /// The basis of all codes of a page; none if they have several.
    pub(super) fn one(&self, page: usize) -> Option<usize> {
        match self.0.get(page) {
            None => Some(0),
            Some(PageBasis::One(basis)) => Some((*basis).into()),
            Some(PageBasis::Each(_)) => None,
        }
    }

    /// The first slots of a page as runs of one basis each.
    pub(super) fn runs(&self, page: usize, slots: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let bases = match self.0.get(page) {
            Some(PageBasis::Each(bases)) => &bases[..slots],
            _ => &[],
        };
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = bases.get(start..)?;
            let &basis = rest.first()?;
            // Runs are long, so they are compared as words.
            let words = rest.as_chunks::<WORD>().0.iter().take_while(|word| **word == [basis; WORD]).count();
            let end = rest[words * WORD..].iter().position(|of| *of != basis);
            let run = start..start + end.map_or(rest.len(), |end| words * WORD + end);
            start = run.end;
            Some((run, basis.into()))
        })
    }

    /// Sets the basis of some slots of a page, one bit each, in which `others` have one already.
    pub(super) fn set(&mut self, page: usize, slots: u128, others: u128, basis: usize) {
        if self.0.len() <= page {
            if basis == 0 {
                return;
            }
            reach(&mut self.0, page);
        }
        let (basis, of) = (basis as u8, &mut self.0[page]);
        match of {
            _ if others == 0 => *of = PageBasis::One(basis),
            PageBasis::One(own) if *own == basis => {}
            PageBasis::One(own) => {
                let mut bases = Box::new([*own; PAGE_TOKENS]);
                bits::runs(slots).for_each(|run| bases[run].fill(basis));
                *of = PageBasis::Each(bases);
            }
            PageBasis::Each(bases) => bits::runs(slots).for_each(|run| bases[run].fill(basis)),
        }
    }

    /// Cuts the list to some pages, without spare memory.
    pub(super) fn cut(&mut self, pages: usize) {
        cut(&mut self.0, pages);
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        let each = self.0.iter().filter(|of| matches!(of, PageBasis::Each(_))).count();
        self.0.capacity() * size_of::<PageBasis>() + each * PAGE_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_the_basis_that_was_set_last() {
        let (mut bases, mut wanted, mut held) = (PageBases::default(), [0; 3 * PAGE_TOKENS], [0u128; 3]);
        let mut state = 1_u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (slot, basis) = ((state >> 8) as usize % wanted.len(), (state >> 28) as usize % 3);
            let (page, bit) = (slot / PAGE_TOKENS, 1 << (slot % PAGE_TOKENS));
            if state >> 20 & 15 == 0 {
                held[page] = 0;
            }
            bases.set(page, bit, held[page] & !bit, basis);
            held[page] |= bit;
            wanted[slot] = basis;
            for (page, held) in held.iter().enumerate() {
                let from = page * PAGE_TOKENS;
                let slots = (0..PAGE_TOKENS).filter(|slot| held >> slot & 1 == 1);
                for slot in slots.map(|slot| from + slot) {
                    assert_eq!(bases.of(slot), wanted[slot]);
                    assert!(bases.one(page).is_none_or(|one| one == wanted[slot]));
                }
                let runs: Vec<_> = bases.runs(page, 100).collect();
                let is_of = |(run, basis): &(Range<usize>, usize)| {
                    run.clone().all(|at| bases.of(from + at) == *basis)
                };
                assert!(runs.iter().all(is_of));
                let slots = runs.iter().flat_map(|(run, _)| run.clone());
                assert!(runs.is_empty() || slots.eq(0..100), "each slot once");
            }
        }
        bases.cut(1);
        assert_eq!(bases.of(PAGE_TOKENS), 0);
        bases.cut(0);
        assert_eq!(bases.held_bytes(), 0);
    }
}
