//! Values: lines of one code byte of several tokens, so that one dot product sums over tokens.
//!
//! A line is 16 dwords. A dword holds one code byte (at 3 bits one byte column of three lines) of four
//! tokens. `positions` consecutive dwords belong to the same tokens; it is the largest number from 2 to 16
//! that divides the row. If it is below 16, the line continues with the next four tokens. Only trellis codes
//! pad some head dims.
//!
//! `sums` reads what this file writes.

use super::columns::WOVEN_POSITIONS;
use super::plan::{MAX_WORDS, Plan};
use super::weights::RUN;
use super::{Line, MAX_SLOTS, SLOT_STEP, bytes, bytes_mut};
use tqkv_core::AnyCodec;

/// The layout of pages of values of one codec.
#[derive(Clone, Copy, Debug)]
pub struct ValuePages {
    pub(super) plan: Plan,
    pub(super) slots: usize,
    /// Dwords of a line that belong to the same four tokens: 2, 4, 8 or 16.
    pub(super) positions: usize,
    // Computed once (with the sizes below), because a division takes long compared with a page.
    /// Tokens per line.
    line_tokens: usize,
    /// Runs of `positions` code bytes per row.
    columns: usize,
    /// Columns of a run of coordinates with one scale.
    pub(super) run_columns: usize,
    /// Lines (or line triples) per column.
    pub(super) groups: usize,
    /// Lines of a column that hold the tokens of one [`RUN`].
    pub(super) run_lines: usize,
    /// Lines of scales; each run has the scales of all tokens.
    pub(super) scale_lines: usize,
    lines: usize,
}

/// The most dwords of a line that belong to the same four tokens.
const WIDE: usize = 16;

impl ValuePages {
    /// Pages of `slots` tokens of `codec`. `slots` is a multiple of [`SLOT_STEP`] and at most [`MAX_SLOTS`].
    /// Returns `None` for other numbers, or if the codec has no page kernels, as [`super::KeyPages::new`]
    /// does.
    pub fn new(codec: &AnyCodec, slots: usize) -> Option<Self> {
        let fits = slots.is_multiple_of(SLOT_STEP) && (1..=MAX_SLOTS).contains(&slots);
        let plan = Plan::new(codec).filter(|_| fits)?;
        let row = plan.dim / plan.fields();
        let positions =
            if plan.is_woven() { WOVEN_POSITIONS } else { 1 << row.trailing_zeros().min(WIDE.ilog2()) };
        let columns = if plan.is_woven() { plan.units() } else { row / positions };
        let (line_tokens, scale_lines) = (64 / positions, slots * plan.runs / 32);
        let groups = slots / line_tokens;
        let body = if plan.is_woven() { plan.word_count() } else { columns * plan.depth() };
        let lines = scale_lines + body * groups;
        let (run_columns, run_lines) = (columns / plan.runs.max(1), RUN / line_tokens * plan.depth());
        Some(Self {
            plan,
            slots,
            positions,
            line_tokens,
            columns,
            run_columns,
            groups,
            run_lines,
            scale_lines,
            lines,
        })
    }

    /// Tokens of a page.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Lines of a page.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// The position of byte 0 of column 0 of a slot in its line.
    fn lane(&self, slot: usize) -> usize {
        let token = slot % self.line_tokens;
        token / 4 * self.positions * 4 + token % 4
    }

    /// Calls `visit` for each code byte of a slot that is not woven. The arguments are its index in the bytes
    /// of the page's body, and its index in those of the words. It runs for every token that is stored, so it
    /// avoids divisions.
    #[inline(always)]
    fn for_each_byte(&self, slot: usize, mut visit: impl FnMut(usize, usize)) {
        let (groups, depth, positions) = (self.groups, self.plan.depth(), self.positions);
        let (group, lane) = (slot / self.line_tokens, self.lane(slot));
        for column in 0..self.columns {
            for k in 0..depth {
                let at = ((column * groups + group) * depth + k) * 64 + lane;
                for p in 0..positions {
                    let i = column * positions + p;
                    visit(at + 4 * p, (i / 4 * depth + k) * 4 + i % 4);
                }
            }
        }
    }

    /// Index of the first byte of word `w` of a slot of a trellis code, in the bytes of the page's body. The
    /// other bytes follow, one dword apart. Lines of a unit (or of two units that share lines) are adjacent.
    fn word_at(&self, slot: usize, w: usize) -> usize {
        let depth = self.plan.depth();
        let (first, k) = (w / depth * depth, w % depth);
        let depth = depth.min(self.plan.word_count() - first);
        let line = first * self.groups + slot / self.line_tokens * depth + k;
        line * 64 + self.lane(slot)
    }

    /// Writes a block (as stored) to a slot.
    ///
    /// # Panics
    /// The memory is shorter than [`ValuePages::lines`], the slot is not below [`ValuePages::slots`], or the
    /// block has another length.
    pub fn write(&self, page: &mut [Line], slot: usize, block: &[u8]) {
        assert!(
            slot < self.slots && block.len() == self.plan.block_bytes,
            "the slot or the block does not fit the page"
        );
        let (head, body) = page[..self.lines].split_at_mut(self.scale_lines);
        let head = bytes_mut(head).as_flattened_mut().as_chunks_mut::<2>().0;
        let body = bytes_mut(body).as_flattened_mut();
        self.plan.with_words(block, |scales, words| {
            for (r, scale) in scales.iter().enumerate() {
                head[r * self.slots + slot] = scale.to_ne_bytes();
            }
            self.write_words(body, slot, words);
        });
    }

    /// Writes the dwords of a slot to the bytes of a page's body.
    #[inline(always)]
    fn write_words(&self, body: &mut [u8], slot: usize, words: &[[u8; 4]]) {
        if self.plan.is_woven() {
            for (w, word) in words.iter().enumerate() {
                let bytes = body[self.word_at(slot, w)..].iter_mut().step_by(4);
                bytes.zip(word).for_each(|(to, &byte)| *to = byte);
            }
        } else if self.positions == WIDE && self.plan.depth() == 1 {
            let at = (slot / self.line_tokens) * 64 + self.lane(slot);
            let columns = body[at..].chunks_mut(self.groups * 64);
            for (column, codes) in columns.zip(words.as_flattened().as_chunks::<WIDE>().0) {
                let Some(line) = column.first_chunk_mut::<{ 4 * WIDE - 3 }>() else { return };
                for (p, code) in codes.iter().enumerate() {
                    line[4 * p] = *code;
                }
            }
        } else {
            let codes = words.as_flattened();
            self.for_each_byte(slot, |at, code| body[at] = codes[code]);
        }
    }

    /// Reads a block back, as it was written.
    ///
    /// # Panics
    /// The same conditions as [`ValuePages::write`].
    pub fn read(&self, page: &[Line], slot: usize, block: &mut [u8]) {
        assert!(
            slot < self.slots && block.len() == self.plan.block_bytes,
            "the slot or the block does not fit the page"
        );
        let (mut scales, mut words) = ([0; 32], [[0; 4]; MAX_WORDS]);
        let (head, body) = page[..self.lines].split_at(self.scale_lines);
        let head = bytes(head).as_flattened().as_chunks::<2>().0;
        for (r, scale) in scales[..self.plan.runs].iter_mut().enumerate() {
            *scale = u16::from_ne_bytes(head[r * self.slots + slot]);
        }
        let body = bytes(body).as_flattened();
        if self.plan.is_woven() {
            for (w, word) in words[..self.plan.word_count()].iter_mut().enumerate() {
                let bytes = body[self.word_at(slot, w)..].iter().step_by(4);
                word.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte);
            }
        } else {
            let codes = words.as_flattened_mut();
            self.for_each_byte(slot, |at, code| codes[code] = body[at]);
        }
        self.plan.block(&scales, &words, block);
    }

    /// Returns true if two pages are better summed [together](ValuePages::accumulate_parts) for `heads`
    /// heads. It is false if the heads wait for memory, which is used better when pages come one by one.
    ///
    /// Levels of planes cost more than memory does. Two bits per value are read in almost no time. Four bits
    /// are read sooner than two heads are summed, eight bits hardly sooner than eight heads are.
    pub fn joins(&self, heads: usize) -> bool {
        let bits = 8 * self.plan.block_bytes / self.plan.dim;
        self.plan.is_woven() || bits < 3 || (bits < 8 && heads > 1)
    }
}
