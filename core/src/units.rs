//! Exact tokens of an engine with blocks: units of [`UNIT`] tokens, at the beginning and at the end of each sequence.
//!
//! The engine holds rows for a number of units next to its codes. A unit is known by its place in the blocks, so
//! sequences with a common prefix share its units, and nothing needs to know which sequence a block belongs to.
//! [`Units`] says which unit is in which row. The kernels of GPUs use the same [`Window`] and [`Found`], and give the
//! same numbers.
//!
//! A cache that owns its tokens follows [`crate::life`] instead.

/// Tokens of a unit.
pub const UNIT: u32 = 16;

/// No unit, or a row without one.
pub const NONE: u32 = u32::MAX;

/// Most units of a sequence at either end, so that 32 bits count their tokens.
pub const MOST: u32 = 1 << 24;

/// The units that a sequence wants, each in a column: its first ones, then its newest ones, oldest first. Of the last
/// unit there may be only one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Units at the beginning.
    pub first: u32,
    /// Units at the end.
    pub newest: u32,
}

impl Window {
    /// True if there are at most [`MOST`] units at either end.
    pub const fn is_valid(self) -> bool {
        self.first <= MOST && self.newest <= MOST
    }

    /// Units of a sequence.
    #[inline(always)]
    pub const fn columns(self) -> u32 {
        self.first + self.newest
    }

    /// The first token of the unit that a sequence of `length` tokens wants in a column. One that would be wanted twice
    /// is one of the first.
    #[inline(always)]
    pub fn token(self, length: u32, column: u32) -> Option<u32> {
        let last = length.checked_sub(1)? / UNIT;
        if column < self.first {
            return (column <= last).then_some(UNIT * column);
        }
        let unit = last.checked_sub(self.columns() - 1 - column)?;
        (unit >= self.first).then_some(UNIT * unit)
    }
}

/// The units of a block of so many tokens. None if they are no multiple of [`UNIT`].
pub fn units_of_block(tokens: u32) -> Option<u32> {
    (tokens > 0 && tokens.is_multiple_of(UNIT)).then_some(tokens / UNIT)
}

/// The number of the unit that holds a token of a block of `a_block` units.
#[inline(always)]
pub fn unit_of(block: u32, a_block: u32, token: u32) -> u32 {
    let inside = (token / UNIT).checked_rem(a_block).unwrap_or(0);
    block.wrapping_mul(a_block).wrapping_add(inside)
}

/// Units of a sequence that have rows, and that leave one run of codes between them: the first ones up to the first
/// that has none, and the newest ones after the last that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    first: u32,
    newest: u32,
}

impl Found {
    /// These, and what the next column has. Columns come in their order.
    #[inline(always)]
    pub fn and(self, window: Window, column: u32, is_found: bool) -> Self {
        if column >= window.first {
            return Self { newest: if is_found { self.newest + 1 } else { 0 }, ..self };
        }
        Self { first: self.first + u32::from(is_found && self.first == column), ..self }
    }

    /// The first token that is attended as a code, and the one after the last, for a query that sees the tokens from
    /// `oldest` on. The run is empty if the first one is not before the other.
    #[inline(always)]
    pub fn codes(self, length: u32, oldest: u32) -> [u32; 2] {
        let end = if self.newest > 0 {
            (length.saturating_sub(1) / UNIT + 1).saturating_sub(self.newest) * UNIT
        } else {
            length
        };
        [u32::max(UNIT * self.first, oldest), end]
    }

    /// True if the unit of a column is attended as it was computed.
    #[inline(always)]
    pub fn shows(self, window: Window, column: u32) -> bool {
        if column < window.first { column < self.first } else { column >= window.columns() - self.newest }
    }
}

/// The sequences of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// The blocks of each, `[sequences, entries]`.
    pub table: &'a [i32],
    /// Tokens of each, those of this step included.
    pub lengths: &'a [i32],
}

impl Sequences<'_> {
    fn length(&self, sequence: usize) -> u32 {
        u32::try_from(self.lengths[sequence]).unwrap_or(0)
    }

    /// The block that holds a token. One beyond the table is in the last block.
    fn block(&self, sequence: usize, token: u32, a_block: u32) -> u32 {
        let entries = self.table.len() / self.lengths.len();
        let entry = (token / UNIT).checked_div(a_block).unwrap_or(0) as usize;
        let at = sequence * entries + entry.min(entries.saturating_sub(1));
        self.table.get(at).map_or(0, |block| block.cast_unsigned())
    }
}

/// Which unit is in which row. The number of a row times [`UNIT`] is the place of its first token. After the places of
/// all rows there is one that stays zero, and one for tokens that no row holds.
///
/// # Panics
/// Calls panic if a slice is shorter than its documentation says. No number in one makes them panic.
#[derive(Debug)]
pub struct Units<'a> {
    /// The unit in each row, or [`NONE`].
    pub owner: &'a mut [u32],
    /// The step in which each row was used last. A step has a number that is one more than that of the step before.
    pub used: &'a mut [u32],
    /// The units that each sequence wants, which are [valid](Window::is_valid).
    pub window: Window,
    /// [Units of a block](units_of_block).
    pub a_block: u32,
}

impl Units<'_> {
    /// The place that stays zero.
    pub fn zero(&self) -> i64 {
        self.owner.len() as i64 * i64::from(UNIT)
    }

    /// The row of a unit.
    fn row(&self, unit: u32) -> Option<usize> {
        self.owner.iter().position(|&owner| owner == unit).filter(|_| unit != NONE)
    }

    /// The first token of the unit that a sequence wants in a column, and the unit.
    fn wanted(&self, of: &Sequences<'_>, sequence: usize, column: u32) -> Option<(u32, u32)> {
        let token = self.window.token(of.length(sequence), column)?;
        Some((token, unit_of(of.block(sequence, token, self.a_block), self.a_block, token)))
    }

    /// Begins step `step`, in which the last `queries` tokens of each sequence are new: a unit whose first token is
    /// new gets a row, the one that was not used for the longest time. Rows that this step uses are not taken. First
    /// units come before others, because sequences attend most to them.
    pub fn give(&mut self, step: u32, of: &Sequences<'_>, queries: &[i32]) {
        let columns = 0..self.window.columns();
        for column in columns.clone() {
            for sequence in 0..of.lengths.len() {
                let row = self.wanted(of, sequence, column).and_then(|(_, unit)| self.row(unit));
                if let Some(row) = row {
                    self.used[row] = step;
                }
            }
        }
        for column in columns {
            for (sequence, &queries) in (0..of.lengths.len()).zip(queries) {
                let Some((token, unit)) = self.wanted(of, sequence, column) else { continue };
                let new = u32::try_from(queries).unwrap_or(0);
                if token < of.length(sequence).saturating_sub(new) || self.row(unit).is_some() {
                    continue;
                }
                let ages = self.used.iter().map(|used| step.wrapping_sub(*used));
                let Some(oldest) = ages.clone().max().filter(|age| *age > 0) else { return };
                let Some(row) = ages.clone().position(|age| age == oldest) else { return };
                (self.owner[row], self.used[row]) = (unit, step);
            }
        }
    }

    /// The place of each token of the step, by its slot: the number of its block times the tokens of a block, plus its
    /// place there.
    pub fn keep(&self, slots: &[i64], kept: &mut [i64]) {
        kept.fill(self.zero() + 1);
        let mut last = (NONE, None);
        for (kept, &slot) in kept.iter_mut().zip(slots) {
            let unit = u32::try_from(slot.div_euclid(i64::from(UNIT))).unwrap_or(NONE);
            // Slots of a prompt follow each other.
            if unit != last.0 {
                last = (unit, self.row(unit));
            }
            if let (_, Some(row)) = last {
                *kept = row as i64 * i64::from(UNIT) + slot % i64::from(UNIT);
            }
        }
    }

    /// What the newest token of each sequence sees, or as many tokens up to it as a layer has in its window: the places
    /// of exact tokens, `[sequences, columns * UNIT]`, and the codes from `starts` up to `ends`.
    pub fn see(
        &self,
        of: &Sequences<'_>,
        window: Option<u32>,
        places: &mut [i64],
        starts: &mut [i32],
        ends: &mut [i32],
    ) {
        let width = (self.window.columns() * UNIT) as usize;
        for sequence in 0..of.lengths.len() {
            let length = of.length(sequence);
            let oldest = window.map_or(0, |window| length.saturating_sub(window));
            let found = |column| self.wanted(of, sequence, column).and_then(|(_, unit)| self.row(unit));
            let columns = 0..self.window.columns();
            let runs = columns.fold(Found::default(), |runs, column| {
                runs.and(self.window, column, found(column).is_some())
            });
            [starts[sequence], ends[sequence]] = runs.codes(length, oldest).map(u32::cast_signed);
            let places = &mut places[sequence * width..][..width];
            self.place(of, sequence, places, |column, token| {
                runs.shows(self.window, column) && token >= oldest
            });
        }
    }

    /// The places of all exact tokens of each sequence, `[sequences, columns * UNIT]`, and their numbers. A token without
    /// a place has the number -1.
    pub fn earlier(&self, of: &Sequences<'_>, places: &mut [i64], tokens: &mut [i64]) {
        let width = (self.window.columns() * UNIT) as usize;
        for sequence in 0..of.lengths.len() {
            let places = &mut places[sequence * width..][..width];
            self.place(of, sequence, places, |_, _| true);
            for (i, (token, place)) in tokens[sequence * width..].iter_mut().zip(places).enumerate() {
                let first = self.window.token(of.length(sequence), i as u32 / UNIT).unwrap_or(0);
                *token =
                    if *place == self.zero() { -1 } else { i64::from(first) + i as i64 % i64::from(UNIT) };
            }
        }
    }

    /// The place of each token of a sequence's columns that has one and that `shows` accepts.
    fn place(
        &self,
        of: &Sequences<'_>,
        sequence: usize,
        places: &mut [i64],
        shows: impl Fn(u32, u32) -> bool,
    ) {
        places.fill(self.zero());
        for (column, places) in (0..).zip(places.chunks_exact_mut(UNIT as usize)) {
            let Some((first, unit)) = self.wanted(of, sequence, column) else { continue };
            let Some(row) = self.row(unit) else { continue };
            for (i, place) in (0..UNIT).zip(places) {
                if first + i < of.length(sequence) && shows(column, first + i) {
                    *place = row as i64 * i64::from(UNIT) + i64::from(i);
                }
            }
        }
    }
}
