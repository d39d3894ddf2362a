//! Exact tokens of an engine in random lives of blocks, whose tokens are numbers.

use std::collections::HashMap;
use tqkv_core::units::{NONE, Sequences, UNIT, Units, Window};
use tqkv_tests::inputs::Gaussian;

/// Units and tokens of a block, and blocks of a sequence.
const A_BLOCK: u32 = 2;
const BLOCK: usize = (A_BLOCK * UNIT) as usize;
const ENTRIES: usize = 8;

#[derive(Clone)]
struct Sequence {
    blocks: Vec<usize>,
    length: usize,
}

/// An engine whose blocks are given to others when a sequence has left, and shared by sequences that begin alike.
struct Engine {
    random: Gaussian,
    window: Window,
    owner: Vec<u32>,
    used: Vec<u32>,
    /// The number of the token in each slot, and in each place of the rows.
    slots: HashMap<usize, usize>,
    rows: Vec<usize>,
    sequences: Vec<Sequence>,
    /// The last number that was given to a token.
    number: usize,
}

impl Engine {
    fn new(seed: u64, window: Window, rows: usize) -> Self {
        Self {
            random: Gaussian::new(seed),
            window,
            owner: vec![NONE; rows],
            used: vec![0; rows],
            slots: HashMap::new(),
            rows: vec![usize::MAX; rows * UNIT as usize + 2],
            sequences: vec![],
            number: 0,
        }
    }

    fn units(&mut self) -> Units<'_> {
        Units { owner: &mut self.owner, used: &mut self.used, window: self.window, a_block: A_BLOCK }
    }

    fn slot(sequence: &Sequence, token: usize) -> usize {
        sequence.blocks[token / BLOCK] * BLOCK + token % BLOCK
    }

    /// A step of some new tokens for each sequence. Returns the exact tokens that were seen.
    fn step(&mut self, step: u32) -> usize {
        self.sequences.retain(|_| self.random.below(6) > 0);
        if self.sequences.len() < 5 {
            let mut next = Sequence { blocks: vec![], length: 0 };
            // Blocks of another sequence that are full, perhaps since this step.
            if let Some(other) = self.sequences.first().filter(|_| self.random.below(2) == 0) {
                next.blocks = other.blocks[..other.length / BLOCK].to_vec();
                next.length = next.blocks.len() * BLOCK;
            }
            self.sequences.push(next);
        }
        let used: Vec<usize> = self.sequences.iter().flat_map(|of| of.blocks.clone()).collect();
        let mut free = (0..60).filter(|block| !used.contains(block)).collect::<Vec<_>>().into_iter();
        let (mut slots, mut table, mut lengths, mut queries) = (vec![], vec![], vec![], vec![]);
        for sequence in &mut self.sequences {
            let room = ENTRIES * BLOCK - sequence.length;
            let new = usize::min([1, 1, 5, 90][self.random.below(4)], room);
            for token in sequence.length..sequence.length + new {
                if token / BLOCK == sequence.blocks.len() {
                    sequence.blocks.extend(free.next());
                }
                self.number += 1;
                slots.push(Self::slot(sequence, token) as i64);
                self.slots.insert(Self::slot(sequence, token), self.number);
            }
            sequence.length += new;
            table.extend((0..ENTRIES).map(|at| sequence.blocks.get(at).map_or(-7, |block| *block as i32)));
            lengths.push(sequence.length as i32);
            queries.push(new as i32);
        }
        let of = Sequences { table: &table, lengths: &lengths };
        self.units().give(step, &of, &queries);
        let mut kept = vec![0; slots.len() + 3];
        self.units().keep(&slots, &mut kept);
        assert_eq!(kept[slots.len()..], [self.units().zero() + 1; 3]);
        for (slot, place) in slots.iter().zip(kept) {
            self.rows[place as usize] = self.slots[&(*slot as usize)];
        }
        self.check(&of)
    }

    /// Each sequence sees its own tokens, each once.
    fn check(&mut self, of: &Sequences<'_>) -> usize {
        let (count, width) = (of.lengths.len(), (self.window.columns() * UNIT) as usize);
        let zero = self.units().zero();
        let mut seen = 0;
        for window in [None, Some(20)] {
            let (mut places, mut starts, mut ends) = (vec![0; count * width], vec![0; count], vec![0; count]);
            self.units().see(of, window, &mut places, &mut starts, &mut ends);
            for (i, sequence) in self.sequences.iter().enumerate() {
                let oldest = sequence.length.saturating_sub(window.unwrap_or(u32::MAX) as usize);
                let codes = starts[i] as usize..ends[i] as usize;
                let exact = (oldest..sequence.length).filter(|token| !codes.contains(token));
                let mut expected: Vec<_> = exact.map(|at| self.slots[&Self::slot(sequence, at)]).collect();
                let shown = places[i * width..][..width].iter().filter(|place| **place != zero);
                let mut shown: Vec<_> = shown.map(|place| self.rows[*place as usize]).collect();
                expected.sort_unstable();
                shown.sort_unstable();
                assert_eq!(shown, expected, "{window:?} {} {codes:?}", sequence.length);
                seen += shown.len();
            }
        }
        let mut of_all = [vec![0; count * width], vec![0; count * width]];
        let [places, tokens] = &mut of_all;
        self.units().earlier(of, places, tokens);
        for (i, (place, token)) in places.iter().zip(tokens).enumerate() {
            assert_eq!(*token < 0, *place == zero);
            if *token >= 0 {
                let slot = Self::slot(&self.sequences[i / width], *token as usize);
                assert_eq!(self.rows[*place as usize], self.slots[&slot]);
            }
        }
        seen
    }
}

#[test]
fn a_sequence_sees_its_own_tokens_exactly() {
    let windows = [(1, 2, 40), (1, 2, 4), (0, 2, 30), (3, 0, 30), (3, 1, 7), (2, 5, 60)];
    for (seed, (first, newest, rows)) in (0..).zip(windows) {
        let mut engine = Engine::new(seed, Window { first, newest }, rows);
        let seen: usize = (1..200).map(|step| engine.step(step)).sum();
        assert!(seen > if rows < 30 { 500 } else { 5000 }, "{first} {newest} {rows}: {seen}");
    }
}

#[test]
fn rows_go_to_the_units_of_the_step_and_the_first_units_come_first() {
    let window = Window { first: 1, newest: 2 };
    let (mut owner, mut used) = ([NONE; 3], [0; 3]);
    let mut units = Units { owner: &mut owner, used: &mut used, window, a_block: 4 };
    // Two prompts of five units each, which begin in blocks 5 and 1.
    let of = Sequences { table: &[5, 6, 1, 2], lengths: &[80, 80] };
    units.give(1, &of, &[80, 80]);
    assert_eq!(units.owner, [20, 4, 23]);
    // The first goes on alone, and takes a row that it does not use.
    let of = Sequences { table: &[5, 6], lengths: &[81] };
    units.give(2, &of, &[1]);
    assert_eq!(units.owner, [20, 25, 23]);
}
