//! A number for each code of a stream: its basis ([`super::means`]), or its turn ([`super::turns`]). A page has one
//! number, and one per slot where its codes have several, as at the place where a new mean begins.

use super::bits;
use super::exact_rows::{cut, reach};
use crate::cache::life::PAGE_TOKENS;
use std::ops::Range;

/// Slots whose numbers are compared at once.
const WORD: usize = 16;

#[derive(Clone, Debug)]
enum PageNumber {
    One(u8),
    Each(Box<[u8; PAGE_TOKENS]>),
}

impl Default for PageNumber {
    fn default() -> Self {
        Self::One(0)
    }
}

/// By page; pages past the end have number 0.
#[derive(Clone, Debug, Default)]
pub(super) struct PageNumbers(Vec<PageNumber>);

impl PageNumbers {
    /// The number of a slot.
    pub(super) fn of(&self, slot: usize) -> usize {
        match self.0.get(slot / PAGE_TOKENS) {
            None => 0,
            Some(PageNumber::One(number)) => (*number).into(),
            Some(PageNumber::Each(numbers)) => numbers[slot % PAGE_TOKENS].into(),
        }
    }

    /// The number of all codes of a page; none if they have several.
    pub(super) fn one(&self, page: usize) -> Option<usize> {
        match self.0.get(page) {
            None => Some(0),
            Some(PageNumber::One(number)) => Some((*number).into()),
            Some(PageNumber::Each(_)) => None,
        }
    }

    /// The first slots of a page as runs of one number each.
    pub(super) fn runs(&self, page: usize, slots: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let numbers = match self.0.get(page) {
            Some(PageNumber::Each(numbers)) => &numbers[..slots],
            _ => &[],
        };
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = numbers.get(start..)?;
            let &number = rest.first()?;
            // Runs are long, so they are compared as words.
            let words = rest.as_chunks::<WORD>().0.iter().take_while(|word| **word == [number; WORD]).count();
            let end = rest[words * WORD..].iter().position(|of| *of != number);
            let run = start..start + end.map_or(rest.len(), |end| words * WORD + end);
            start = run.end;
            Some((run, number.into()))
        })
    }

    /// Sets the number of some slots of a page, one bit each, in which `others` have one already.
    pub(super) fn set(&mut self, page: usize, slots: u128, others: u128, number: usize) {
        if self.0.len() <= page {
            if number == 0 {
                return;
            }
            reach(&mut self.0, page);
        }
        let (number, of) = (number as u8, &mut self.0[page]);
        match of {
            _ if others == 0 => *of = PageNumber::One(number),
            PageNumber::One(own) if *own == number => {}
            PageNumber::One(own) => {
                let mut numbers = Box::new([*own; PAGE_TOKENS]);
                bits::runs(slots).for_each(|run| numbers[run].fill(number));
                *of = PageNumber::Each(numbers);
            }
            PageNumber::Each(numbers) => bits::runs(slots).for_each(|run| numbers[run].fill(number)),
        }
    }

    /// Cuts the list to some pages, without spare memory.
    pub(super) fn cut(&mut self, pages: usize) {
        cut(&mut self.0, pages);
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        let each = self.0.iter().filter(|of| matches!(of, PageNumber::Each(_))).count();
        self.0.capacity() * size_of::<PageNumber>() + each * PAGE_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_the_number_that_was_set_last() {
        let (mut numbers, mut wanted, mut held) = (PageNumbers::default(), [0; 3 * PAGE_TOKENS], [0u128; 3]);
        let mut state = 1_u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (slot, number) = ((state >> 8) as usize % wanted.len(), (state >> 28) as usize % 3);
            let (page, bit) = (slot / PAGE_TOKENS, 1 << (slot % PAGE_TOKENS));
            if state >> 20 & 15 == 0 {
                held[page] = 0;
            }
            numbers.set(page, bit, held[page] & !bit, number);
            held[page] |= bit;
            wanted[slot] = number;
            for (page, held) in held.iter().enumerate() {
                let from = page * PAGE_TOKENS;
                let slots = (0..PAGE_TOKENS).filter(|slot| held >> slot & 1 == 1);
                for slot in slots.map(|slot| from + slot) {
                    assert_eq!(numbers.of(slot), wanted[slot]);
                    assert!(numbers.one(page).is_none_or(|one| one == wanted[slot]));
                }
                let runs: Vec<_> = numbers.runs(page, 100).collect();
                let is_of = |(run, number): &(Range<usize>, usize)| {
                    run.clone().all(|at| numbers.of(from + at) == *number)
                };
                assert!(runs.iter().all(is_of));
                let slots = runs.iter().flat_map(|(run, _)| run.clone());
                assert!(runs.is_empty() || slots.eq(0..100), "each slot once");
            }
        }
        numbers.cut(1);
        assert_eq!(numbers.of(PAGE_TOKENS), 0);
        numbers.cut(0);
        assert_eq!(numbers.held_bytes(), 0);
    }
}
