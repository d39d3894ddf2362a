//! `give_units`, `keep_units`, `see_units`: which exact tokens of an engine are in which rows, from tables and lengths on
//! the device.
//!
//! The rule and its numbers are those of [`tqkv_core::units`]. A thread has a sequence, or a token, and looks through the
//! list of rows together with the other threads, because the list has some hundred entries.

use crate::args::{GiveUnits, KeepUnits, SeeUnits};
use crate::threads::{Threads, divide, first, uniform};
use tqkv_core::units::{Found, NONE, UNIT, Window, unit_of};

/// The units in the rows.
#[derive(Clone, Copy)]
struct Owners<T: Threads> {
    units: T::Memory,
    count: u32,
}

impl<T: Threads> Owners<T> {
    /// The row of each unit, or [`NONE`].
    #[inline(always)]
    fn rows(self, unit: T::Of<u32>) -> T::Of<u32> {
        let (mut rows, mut first) = (T::splat(NONE), 0);
        while first < self.count {
            // Loads do not wait for each other. Beyond the end they are of the last row.
            let row = [0, 1, 2, 3].map(|i| u32::min(first + i, self.count - 1));
            let owner = row.map(|row| T::read(self.units, 4 * row));
            rows = T::zip(rows, unit, |held, unit| {
                let of = |i: usize| if owner[i] == unit && unit != NONE { row[i] } else { NONE };
                held.min(of(0)).min(of(1)).min(of(2)).min(of(3))
            });
            first += 4;
        }
        rows
    }
}

/// The sequences of a step, one for each thread.
#[derive(Clone, Copy)]
struct Sequences<T: Threads> {
    table: T::Memory,
    /// Entries from the blocks of a sequence to those of the next.
    stride: u32,
    /// The index of the last entry.
    last_entry: u32,
    /// Units of a block.
    a_block: u32,
    lengths: T::Memory,
    count: u32,
    window: Window,
}

impl<T: Threads> Sequences<T> {
    /// The number of each thread's sequence. Threads without one have the last.
    #[inline(always)]
    fn of(self, first: u32) -> T::Of<u32> {
        T::map(T::lane(), |lane| u32::min(first + lane, self.count - 1))
    }

    /// The tokens of each thread's sequence.
    #[inline(always)]
    fn lengths(self, first: u32) -> T::Of<u32> {
        self.numbers(self.lengths, first)
    }

    /// A number of each thread's sequence, 0 for a thread without one, and if it is below 0.
    #[inline(always)]
    fn numbers(self, numbers: T::Memory, first: u32) -> T::Of<u32> {
        let numbers = T::load::<1>(numbers, T::map(self.of(first), |sequence| 4 * sequence));
        T::zip(T::lane(), numbers, |lane, [number]| {
            if first + lane < self.count { number.cast_signed().max(0).cast_unsigned() } else { 0 }
        })
    }

    /// The first token of the unit that each sequence wants in a column, and the unit, or [`NONE`].
    #[inline(always)]
    fn wanted(self, first: u32, lengths: T::Of<u32>, column: u32) -> T::Of<(u32, u32)> {
        let token = T::map(lengths, |length| self.window.token(length, column).unwrap_or(NONE));
        let at = T::zip(self.of(first), token, |sequence, token| {
            let entry = if token == NONE { 0 } else { divide(token / UNIT, self.a_block).0 };
            4 * u32::min(sequence * self.stride + entry, self.last_entry)
        });
        T::zip(token, T::load::<1>(self.table, at), |token, [block]| {
            (token, if token == NONE { NONE } else { unit_of(block, self.a_block, token) })
        })
    }
}

/// The sequences of a kernel's arguments.
macro_rules! sequences {
    ($threads:ident, $args:ident) => {
        Sequences::<$threads> {
            table: $args.table,
            stride: $args.stride,
            last_entry: $args.last_entry,
            a_block: $args.a_block,
            lengths: $args.lengths,
            count: $args.sequences,
            window: Window { first: $args.first, newest: $args.newest },
        }
    };
}

/// Begins a step: a unit whose first token is new gets a row. Only warp 0 works.
#[inline(always)]
pub fn give_units<T: Threads>(warp: u32, args: GiveUnits<T::Memory>) {
    if warp > 0 || args.sequences == 0 || args.rows == 0 {
        return;
    }
    let GiveUnits { owners, used, step, .. } = args;
    let sequences = sequences!(T, args);
    let window = sequences.window;
    let mut first_sequence = 0;
    while first_sequence < args.sequences {
        let lengths = sequences.lengths(first_sequence);
        let mut column = 0;
        while column < window.columns() {
            let unit = T::map(sequences.wanted(first_sequence, lengths, column), |(_, unit)| unit);
            stamp::<T>(unit, &args);
            column += 1;
        }
        first_sequence += 32;
    }
    T::sync();
    let mut column = 0;
    while column < window.columns() {
        let mut first_sequence = 0;
        while first_sequence < args.sequences {
            let lengths = sequences.lengths(first_sequence);
            let queries = sequences.numbers(args.queries, first_sequence);
            let wanted = sequences.wanted(first_sequence, lengths, column);
            let before = T::zip(lengths, queries, u32::saturating_sub);
            let unit =
                T::zip(wanted, before, |(token, unit), before| if token >= before { unit } else { NONE });
            let mut begins = T::ballot(T::map(unit, |unit| unit != NONE));
            while begins != 0 {
                let unit = uniform::<T>(T::shuffle(unit, T::splat(begins.trailing_zeros())));
                if !give::<T>(unit, owners, used, step, args.rows) {
                    return;
                }
                begins &= begins - 1;
            }
            first_sequence += 32;
        }
        column += 1;
    }
}

/// Writes the step to the rows of units. A thread has a row, so that no two write to one place.
#[inline(always)]
fn stamp<T: Threads>(unit: T::Of<u32>, args: &GiveUnits<T::Memory>) {
    let mut row = 0;
    while row < args.rows {
        let of = T::map(T::lane(), |lane| row + lane);
        let owner = T::load::<1>(args.owners, T::map(of, |of| 4 * u32::min(of, args.rows - 1)));
        let mut is_used = T::splat(false);
        let mut i = 0;
        while i < 32 {
            let unit = T::shuffle(unit, T::splat(i));
            let same = T::zip(unit, owner, |unit, [owner]| unit == owner && unit != NONE);
            is_used = T::zip(is_used, same, |is_used, same| is_used | same);
            i += 1;
        }
        let active = T::zip(of, is_used, |of, is_used| is_used && of < args.rows);
        T::store(args.used, T::map(of, |of| 4 * of), T::splat([args.step]), active);
        row += 32;
    }
}

/// Gives a row to a unit that has none: the row that was not used for the longest time, and of several the first.
/// Returns false if this step uses all rows.
#[inline(always)]
fn give<T: Threads>(unit: u32, owners: T::Memory, used: T::Memory, step: u32, rows: u32) -> bool {
    // The age of a row, and how far it is from the end of the list: the largest is taken.
    let mut oldest = T::splat((0, 0));
    let mut has_row = 0;
    let mut row = 0;
    while row < rows {
        let of = T::map(T::lane(), |lane| row + lane);
        let at = T::map(of, |of| 4 * u32::min(of, rows - 1));
        let [owner, used] = [T::load::<1>(owners, at), T::load::<1>(used, at)];
        has_row |= T::ballot(T::map(owner, |[owner]| owner == unit));
        let age = T::zip(
            of,
            used,
            |of, [used]| if of < rows { (step.wrapping_sub(used), rows - of) } else { (0, 0) },
        );
        oldest = T::zip(oldest, age, Ord::max);
        row += 32;
    }
    if has_row != 0 {
        return true;
    }
    let mut mask = 16;
    while mask > 0 {
        let [age, from_end] = [T::map(oldest, |(age, _)| age), T::map(oldest, |(_, from_end)| from_end)];
        let other = T::zip(T::shuffle_xor(age, mask), T::shuffle_xor(from_end, mask), |age, from_end| {
            (age, from_end)
        });
        oldest = T::zip(oldest, other, Ord::max);
        mask /= 2;
    }
    let age = uniform::<T>(T::map(oldest, |(age, _)| age));
    if age == 0 {
        return false;
    }
    let row = rows - uniform::<T>(T::map(oldest, |(_, from_end)| from_end));
    // All threads have read the lists, and read them again for the next unit.
    T::sync();
    T::store(owners, T::splat(4 * row), T::splat([unit]), first::<T>());
    T::store(used, T::splat(4 * row), T::splat([step]), first::<T>());
    T::sync();
    true
}

/// The places of tokens `32 warp ..` of a step, by their slots.
#[inline(always)]
pub fn keep_units<T: Threads>(warp: u32, args: KeepUnits<T::Memory>) {
    let token = T::map(T::lane(), |lane| 32 * warp + lane);
    if 32 * warp >= args.tokens {
        return;
    }
    let mut slot = T::splat([NONE; 2]);
    // Without slots nothing may be read of them.
    if args.slots_len > 0 {
        slot = T::load::<2>(args.slots, T::map(token, |token| 8 * u32::min(token, args.slots_len - 1)));
    }
    let unit = T::zip(token, slot, |token, [low, high]| {
        let slot = u64::from(low) | u64::from(high) << 32;
        let unit = slot / u64::from(UNIT);
        if token < args.slots_len && unit < u64::from(NONE) { unit as u32 } else { NONE }
    });
    let row = Owners::<T> { units: args.owners, count: args.rows }.rows(unit);
    let place = T::zip(
        row,
        slot,
        |row, [low, _]| if row == NONE { UNIT * args.rows + 1 } else { UNIT * row + low % UNIT },
    );
    let at = T::map(token, |token| 8 * token);
    T::store(args.kept, at, T::map(place, |place| [place, 0]), T::map(token, |token| token < args.tokens));
}

/// What the newest tokens of sequences `32 warp ..` see exactly, and from where to where they see codes. With `all` it is
/// the places of all exact tokens, and their numbers.
#[inline(always)]
pub fn see_units<T: Threads>(warp: u32, args: SeeUnits<T::Memory>) {
    let first = 32 * warp;
    if first >= args.sequences {
        return;
    }
    let sequences = sequences!(T, args);
    let window = sequences.window;
    let owners = Owners::<T> { units: args.owners, count: args.rows };
    let lengths = sequences.lengths(first);
    let oldest = T::map(lengths, |length| length.saturating_sub(args.window));
    let rows = |column: u32| {
        let wanted = sequences.wanted(first, lengths, column);
        T::zip(wanted, owners.rows(T::map(wanted, |(_, unit)| unit)), |(token, _), row| (token, row))
    };
    let mut runs = T::splat(Found::default());
    let mut column = 0;
    while column < window.columns() {
        runs = T::zip(runs, rows(column), |runs, (_, row)| runs.and(window, column, row != NONE));
        column += 1;
    }
    let active = T::map(T::lane(), |lane| first + lane < args.sequences);
    let sequence = sequences.of(first);
    if args.all == 0 {
        let codes = T::zip(
            T::zip(lengths, runs, |length, runs| (length, runs)),
            oldest,
            |(length, runs): (u32, Found), oldest| runs.codes(length, oldest),
        );
        let at = T::map(sequence, |sequence| 4 * sequence);
        T::store(args.starts, at, T::map(codes, |[start, _]| [start]), active);
        T::store(args.ends, at, T::map(codes, |[_, end]| [end]), active);
    }
    let mut column = 0;
    while column < window.columns() {
        let of = T::zip(rows(column), runs, |(token, row), runs| {
            (token, if args.all != 0 || runs.shows(window, column) { row } else { NONE })
        });
        let seen = T::zip(lengths, oldest, |length, oldest| (length, if args.all != 0 { 0 } else { oldest }));
        let mut i = 0;
        while i < UNIT {
            let token = T::zip(of, seen, |(token, row), (length, oldest): (u32, u32)| {
                let token = token.wrapping_add(i);
                (row != NONE && token < length && token >= oldest, row, token)
            });
            let at = T::map(sequence, |sequence| 8 * ((sequence * window.columns() + column) * UNIT + i));
            let place = T::map(token, |(is_held, row, _)| {
                [if is_held { UNIT * row + i } else { UNIT * args.rows }, 0]
            });
            T::store(args.places, at, place, active);
            if args.all != 0 {
                let number =
                    T::map(token, |(is_held, _, token)| if is_held { [token, 0] } else { [u32::MAX; 2] });
                T::store(args.numbers, at, number, active);
            }
            i += 1;
        }
        column += 1;
    }
}
