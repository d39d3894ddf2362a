//! How far shifts of positions have turned keys since they became codes.
//!
//! RoPE turns a key by an angle that is linear in its position, so a key that moves by n positions is the key turned by
//! n more. Its code stays as it is, and the stream notes n. A query meets the turned key as the query that is turned
//! back meets the key of the code: `<q, R(n) k> = <R(-n) q, k>`. Queries are therefore prepared once for each n that
//! occurs, the product with the mean included, because the mean is a part of the key that was encoded.
//!
//! Keys that become codes later have no turn, because their means suit the positions that they have, and because a
//! request then gets the codes that it would get in a new stream. Only a stream with [`FEW_TURNS`] turns encodes them turned
//! back by the smallest of these, so that a host which shifts after every few tokens does not fill the list.

use super::page_numbers::PageNumbers;
use crate::rope::Rope;
use std::ops::Range;
use std::sync::Arc;

/// Most turns besides none. Codes with the rarest others are encoded again.
pub(super) const MOST_TURNS: usize = 8;

/// Number of turns besides none from which on new codes get one of them.
const FEW_TURNS: usize = 5;

/// Cosine and sine of each pair, times a factor of lengths.
pub(super) type Angles = Box<[[f32; 2]]>;

/// How positions turn keys.
#[derive(Debug, PartialEq)]
pub(super) struct TurnRule {
    pub(super) rope: Rope,
    /// Size of the Hadamard transforms that the turned part of a key went through after RoPE; 0 for none.
    pub(super) mixed: usize,
}

impl TurnRule {
    /// The angles of a move by a number of positions.
    pub(super) fn angles(&self, by: i64, length: f32) -> Angles {
        let angle = |frequency: &f64| {
            let (sin, cos) = (by as f64 * frequency).sin_cos();
            [cos as f32 * length, sin as f32 * length]
        };
        self.rope.inv_freq.iter().map(angle).collect()
    }

    /// Turns a vector.
    pub(super) fn turn(&self, angles: &[[f32; 2]], x: &mut [f32]) {
        self.mix(x);
        for (i, [cos, sin]) in angles.iter().enumerate() {
            let (a, b) = self.rope.pair(i);
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
        }
        self.mix(x);
    }

    /// The Hadamard transforms, which are their own inverses.
    fn mix(&self, x: &mut [f32]) {
        if self.mixed < 2 {
            return;
        }
        let factor = 1.0 / (self.mixed as f32).sqrt();
        for part in x[self.rope.first..][..2 * self.rope.inv_freq.len()].chunks_exact_mut(self.mixed) {
            let mut half = 1;
            while half < part.len() {
                for pairs in part.chunks_exact_mut(2 * half) {
                    let (first, second) = pairs.split_at_mut(half);
                    for (a, b) in first.iter_mut().zip(second) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                half *= 2;
            }
            part.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

#[derive(Clone, Debug)]
struct Turn {
    /// Positions that keys were moved by.
    by: i64,
    forth: Angles,
    back: Angles,
}

/// The turns of a stream's codes. Turn 0 is none.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamTurns {
    /// How positions turn the keys; none before the first shift.
    rule: Option<Arc<TurnRule>>,
    /// The turns from 1 on.
    list: Vec<Turn>,
    of_codes: PageNumbers,
}

impl StreamTurns {
    /// Turns by these numbers of positions, which no code has yet.
    pub(super) fn new(rule: &Arc<TurnRule>, all: &[i64]) -> Self {
        let mut turns = Self { rule: Some(rule.clone()), ..Self::default() };
        all.iter().for_each(|by| turns.push(*by));
        turns
    }

    fn push(&mut self, by: i64) {
        if let Some(rule) = &self.rule {
            let [forth, back] = [by, -by].map(|by| rule.angles(by, 1.0));
            self.list.push(Turn { by, forth, back });
        }
    }

    /// How positions turn the keys; none before the first shift.
    pub(super) fn rule(&self) -> Option<&TurnRule> {
        self.rule.as_deref()
    }

    /// Number of turns with none.
    pub(super) fn count(&self) -> usize {
        1 + self.list.len()
    }

    /// True if the turns, if there are any, follow another rule.
    pub(super) fn are_of_other(&self, rule: &TurnRule) -> bool {
        !self.list.is_empty() && self.rule.as_deref() != Some(rule)
    }

    /// Positions of a turn.
    pub(super) fn positions(&self, turn: usize) -> i64 {
        self.other(turn).map_or(0, |turn| turn.by)
    }

    fn other(&self, turn: usize) -> Option<&Turn> {
        self.list.get(turn.checked_sub(1)?)
    }

    /// The turn of a slot's code.
    pub(super) fn of(&self, slot: usize) -> usize {
        self.of_codes.of(slot)
    }

    /// The turn of all codes of a page; none if they have several.
    pub(super) fn one(&self, page: usize) -> Option<usize> {
        self.of_codes.one(page)
    }

    /// The first slots of a page, which has several turns, as runs of one turn each.
    pub(super) fn runs(&self, page: usize, slots: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        self.of_codes.runs(page, slots)
    }

    /// Sets the turn of some slots of a page, one bit each, in which `others` have one already.
    pub(super) fn set(&mut self, page: usize, slots: u128, others: u128, turn: usize) {
        self.of_codes.set(page, slots, others, turn);
    }

    /// The turn of new codes.
    pub(super) fn of_new(&self) -> usize {
        let smallest = (1..self.count()).min_by_key(|turn| self.positions(*turn).abs());
        smallest.filter(|_| self.list.len() >= FEW_TURNS).unwrap_or(0)
    }

    /// The turn here by which `other` moves codes of its turn; made if there is room. None if codes cannot have it here.
    pub(super) fn adopt(&mut self, other: &Self, turn: usize) -> Option<usize> {
        let Some(Turn { by, .. }) = other.other(turn) else { return Some(0) };
        let rule = other.rule.as_ref()?;
        if self.are_of_other(rule) {
            return None;
        }
        if let Some(at) = self.list.iter().position(|own| own.by == *by) {
            return Some(at + 1);
        }
        (self.list.len() < MOST_TURNS).then(|| {
            self.rule = Some(rule.clone());
            self.push(*by);
            self.list.len()
        })
    }

    /// Brings a vector of a code to where shifts have moved it.
    pub(super) fn turn(&self, by: usize, x: &mut [f32]) {
        if let Some((rule, by)) = self.rule.as_deref().zip(self.other(by)) {
            rule.turn(&by.forth, x);
        }
    }

    /// Brings a query or a key to where the code is of.
    pub(super) fn turn_back(&self, by: usize, x: &mut [f32]) {
        if let Some((rule, by)) = self.rule.as_deref().zip(self.other(by)) {
            rule.turn(&by.back, x);
        }
    }

    /// Cuts the list of pages.
    pub(super) fn cut(&mut self, pages: usize) {
        self.of_codes.cut(pages);
    }

    /// Bytes held.
    pub(super) fn held_bytes(&self) -> usize {
        let angles = |turn: &Turn| size_of_val(&*turn.forth) + size_of_val(&*turn.back) + size_of::<Turn>();
        self.list.iter().map(angles).sum::<usize>() + self.of_codes.held_bytes()
    }
}
