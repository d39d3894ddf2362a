//! Exact tokens of an engine: the kernels give the numbers of the core, in random lives of blocks.

use crate::warp::{Buffer, Emulated};
use tqkv_core::units::{NONE, Sequences, UNIT, Units, Window};
use tqkv_gpu_kernels::args::{GiveUnits, KeepUnits, SeeUnits};
use tqkv_gpu_kernels::units::{give_units, keep_units, see_units};
use tqkv_tests::inputs::Gaussian;

/// Units of a block, and blocks of a sequence.
const A_BLOCK: u32 = 4;
const ENTRIES: usize = 6;

/// Rows of units of the core, and the same on the device.
struct Both {
    window: Window,
    owner: Vec<u32>,
    used: Vec<u32>,
}

/// A step: sequences, new tokens of each, and the slots of these.
struct Step {
    table: Vec<i32>,
    lengths: Vec<i32>,
    queries: Vec<i32>,
    slots: Vec<i64>,
}

fn of_i32(numbers: &[i32]) -> Buffer {
    Buffer::from_u32(&numbers.iter().map(|number| number.cast_unsigned()).collect::<Vec<_>>())
}

fn i64s(buffer: &Buffer) -> Vec<i64> {
    buffer.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
}

fn i32s(buffer: &Buffer) -> Vec<i32> {
    buffer.words().iter().map(|word| word.cast_signed()).collect()
}

/// Runs all warps of a launch, and one that has no work.
fn warps(count: usize, kernel: impl Fn(u32)) {
    (0..=count.div_ceil(32) as u32).for_each(kernel);
}

impl Both {
    fn core(&mut self) -> Units<'_> {
        let Self { window, owner, used } = self;
        Units { owner, used, window: *window, a_block: A_BLOCK }
    }

    fn give(&mut self, number: u32, step: &Step) {
        let (owners, used) = (Buffer::from_u32(&self.owner), Buffer::from_u32(&self.used));
        let [table, lengths, queries] = [&step.table, &step.lengths, &step.queries].map(|of| of_i32(of));
        let args = GiveUnits {
            owners: owners.place(),
            rows: self.owner.len() as u32,
            used: used.place(),
            step: number,
            table: table.place(),
            stride: ENTRIES as u32,
            last_entry: step.table.len() as u32 - 1,
            a_block: A_BLOCK,
            lengths: lengths.place(),
            queries: queries.place(),
            sequences: step.lengths.len() as u32,
            first: self.window.first,
            newest: self.window.newest,
        };
        warps(32, |warp| give_units::<Emulated<'_>>(warp, args));
        let of = Sequences { table: &step.table, lengths: &step.lengths };
        self.core().give(number, &of, &step.queries);
        assert_eq!(owners.words(), self.owner);
        assert_eq!(used.words(), self.used);
    }

    fn keep(&mut self, slots: &[i64], tokens: usize) -> Vec<i64> {
        let owners = Buffer::from_u32(&self.owner);
        let given = Buffer::from_bytes(&slots.iter().flat_map(|slot| slot.to_le_bytes()).collect::<Vec<_>>());
        let kept = Buffer::garbage(8 * tokens);
        let args = KeepUnits {
            owners: owners.place(),
            rows: self.owner.len() as u32,
            slots: given.place(),
            slots_len: slots.len() as u32,
            kept: kept.place(),
            tokens: tokens as u32,
        };
        warps(tokens, |warp| keep_units::<Emulated<'_>>(warp, args));
        let mut expected = vec![0; tokens];
        self.core().keep(slots, &mut expected);
        assert_eq!(i64s(&kept), expected);
        expected
    }

    /// What the newest tokens see, or all exact tokens.
    fn see(&mut self, step: &Step, window: Option<u32>, all: bool) {
        let (owners, count) = (Buffer::from_u32(&self.owner), step.lengths.len());
        let places = count * (self.window.columns() * UNIT) as usize;
        let [table, lengths] = [&step.table, &step.lengths].map(|of| of_i32(of));
        // What a call does not write has no memory.
        let [there, here] = [if all { places } else { 0 }, if all { 0 } else { count }];
        let [seen, numbers] = [places, there].map(|len| Buffer::garbage(8 * len));
        let [starts, ends] = [here; 2].map(|len| Buffer::garbage(4 * len));
        let args = SeeUnits {
            owners: owners.place(),
            rows: self.owner.len() as u32,
            table: table.place(),
            stride: ENTRIES as u32,
            last_entry: step.table.len() as u32 - 1,
            a_block: A_BLOCK,
            lengths: lengths.place(),
            sequences: count as u32,
            first: self.window.first,
            newest: self.window.newest,
            window: window.unwrap_or(u32::MAX),
            all: u32::from(all),
            places: seen.place(),
            numbers: numbers.place(),
            starts: starts.place(),
            ends: ends.place(),
        };
        warps(count, |warp| see_units::<Emulated<'_>>(warp, args));
        let of = Sequences { table: &step.table, lengths: &step.lengths };
        let mut expected = [vec![0; places], vec![0; there]];
        let mut runs = [vec![0; count], vec![0; count]];
        let ([places, tokens], [from, to]) = (&mut expected, &mut runs);
        match all {
            true => self.core().earlier(&of, places, tokens),
            false => self.core().see(&of, window, places, from, to),
        }
        assert_eq!([i64s(&seen), i64s(&numbers)], expected);
        if !all {
            assert_eq!([i32s(&starts), i32s(&ends)], runs);
        }
    }
}

/// Random sequences, some of which share blocks, and some of which are padding.
fn step(random: &mut Gaussian, count: usize) -> Step {
    let mut step = Step { table: vec![], lengths: vec![], queries: vec![], slots: vec![] };
    for sequence in 0..count {
        let mut blocks: Vec<i32> = (0..ENTRIES).map(|_| random.below(30) as i32).collect();
        if sequence > 0 && random.below(2) == 0 {
            blocks[..2].copy_from_slice(&step.table[..2]);
        }
        let length = random.below(ENTRIES * 64 + 1) as i32;
        let queries = i32::min(length, [1, 1, 40, 200][random.below(4)]);
        for token in length - queries..length {
            step.slots.push(i64::from(blocks[token as usize / 64]) * 64 + i64::from(token) % 64);
        }
        step.table.extend(blocks);
        step.lengths.push(if random.below(9) == 0 { -1 } else { length });
        step.queries.push(queries);
    }
    step.slots.extend([-1, i64::MIN, i64::MAX, 1 << 40]);
    step
}

#[test]
fn kernels_and_core_give_the_same_rows_and_places() {
    let windows = [(1, 2), (2, 3), (0, 2), (3, 0), (1, 5)].map(|(first, newest)| Window { first, newest });
    let (mut kept, mut spare) = (0, 0);
    for (seed, (window, rows)) in (0..).zip(windows.into_iter().zip([40, 6, 1, 9, 100])) {
        let mut random = Gaussian::new(seed);
        let mut both = Both { window, owner: vec![NONE; rows], used: vec![0; rows] };
        for number in 1..30 {
            let count = [1, 3, 8, 40][random.below(4)];
            let step = step(&mut random, count);
            both.give(number, &step);
            let places = both.keep(&step.slots, step.slots.len() + random.below(70));
            let held = places.iter().filter(|&&place| place < (rows as u32 * UNIT).into()).count();
            (kept, spare) = (kept + held, spare + places.len() - held);
            for (window, all) in [(None, false), (Some(70), false), (Some(5), false), (None, true)] {
                both.see(&step, window, all);
            }
            both.keep(&[], 40);
        }
    }
    assert!(kept > 1000 && spare > 1000, "{kept} {spare}");
}

#[test]
fn steps_may_wrap_around() {
    let window = Window { first: 1, newest: 2 };
    let mut both = Both { window, owner: vec![NONE; 5], used: vec![u32::MAX - 3; 5] };
    let mut random = Gaussian::new(3);
    for number in (u32::MAX - 2..=u32::MAX).chain(0..6) {
        both.give(number, &step(&mut random, 2));
    }
    assert!(both.owner.iter().all(|&owner| owner != NONE));
}
