//! Where a text tells what it asks for at its end.

use super::super::window::{Depth, Window};
use super::material::Part;
use fastrand::Rng;

/// Tokens of the first page, from which a cache learns the map of keys.
const FIRST_PAGE: usize = 128;

/// Running text between the last thing told and the first question: the tokens that most caches keep exact.
const GAP: usize = 64;

/// Something that is told, and what asks for it.
pub(super) struct Item {
    pub(super) told: Vec<u32>,
    pub(super) asked: Vec<Part>,
}

/// Things to tell, in any number.
pub(super) struct Items {
    /// Comes before the first thing that a depth tells if they stand together, as the rows of a table do.
    /// Without it they are scattered.
    pub(super) heading: Option<Vec<u32>>,
    /// Comes before the questions.
    pub(super) opening: Vec<u32>,
    pub(super) all: Vec<Item>,
}

impl Items {
    /// A window as long as `beginning` and `running` together: the running text with as many of the things as fit,
    /// about as many at each depth, and then their questions in another order. `None` if not even one of each
    /// depth fits.
    pub(super) fn lay(self, (beginning, running): (&[u32], &[u32]), random: &mut Rng) -> Option<Window> {
        let begin = beginning.len();
        let context = begin + running.len();
        let depths =
            (Depth::ALL.len()..=self.all.len()).rev().find_map(|count| self.places(count, begin, context))?;
        let mut running = running.iter().copied();
        let mut tokens = beginning.to_vec();
        let mut asked = Vec::new();
        let mut items = self.all.into_iter();
        for (depth, Place { end, count }) in Depth::ALL.into_iter().zip(depths) {
            let items: Vec<_> = items.by_ref().take(count).collect();
            let heading = self.heading.as_deref().unwrap_or_default();
            let told = items.iter().map(|item| item.told.len()).sum::<usize>() + heading.len();
            let between = end - tokens.len() - told;
            let mut cuts: Vec<_> = items.iter().map(|_| random.usize(..=between)).collect();
            cuts.sort_unstable();
            if self.heading.is_some() {
                let at = cuts[0];
                cuts.fill(at);
            }
            let mut passed = 0;
            for (i, (item, cut)) in items.into_iter().zip(cuts).enumerate() {
                tokens.extend(running.by_ref().take(cut - passed));
                passed = cut;
                tokens.extend(if i == 0 { heading } else { &[] });
                tokens.extend(item.told);
                asked.push((depth, item.asked));
            }
            tokens.extend(running.by_ref().take(end - tokens.len()));
        }
        random.shuffle(&mut asked);
        let questions = self.opening.len() + asked.iter().map(|(_, parts)| length(parts)).sum::<usize>();
        tokens.extend(running.take(context - tokens.len() - questions));
        let mut window = Window::before_questions(tokens);
        window.tokens.extend(self.opening);
        for (depth, parts) in asked {
            for part in parts {
                if part.is_scored {
                    window.depths.push(depth);
                }
                window.ask(part);
            }
        }
        Some(window)
    }

    /// Where each depth ends, and how many of the first `count` things it tells. `None` if they do not fit.
    fn places(&self, count: usize, begin: usize, context: usize) -> Option<[Place; 3]> {
        let items = &self.all[..count];
        let heading = self.heading.as_ref().map_or(0, Vec::len);
        let told = |items: &[Item]| heading + items.iter().map(|item| item.told.len()).sum::<usize>();
        let questions = self.opening.len() + items.iter().map(|item| length(&item.asked)).sum::<usize>();
        if questions > context * 3 / 8 {
            return None;
        }
        let end = (context - questions).checked_sub(GAP)?;
        let middle = (FIRST_PAGE + end + GAP) / 2;
        let first = (1..=count / 3).rev().find(|&first| begin + told(&items[..first]) <= FIRST_PAGE)?;
        let second = first + (count - first) / 2;
        let fits =
            FIRST_PAGE + told(&items[first..second]) <= middle && middle + told(&items[second..]) <= end;
        fits.then_some([
            Place { end: FIRST_PAGE, count: first },
            Place { end: middle, count: second - first },
            Place { end, count: count - second },
        ])
    }
}

/// Where a depth ends, and how many things it tells.
struct Place {
    end: usize,
    count: usize,
}

fn length(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.tokens.len()).sum()
}
