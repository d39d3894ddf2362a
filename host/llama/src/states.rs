//! Saved states whose rows are codes (`state=codes` in `TQKV_KV`).
//!
//! llama.cpp saves the rows of a layer in runs of cells, and gives the bytes back in runs of other cells that may be divided
//! otherwise. A run is packed into its own bytes where it fits ([`SlotStore::pack`]). Packed rows that come back in
//! parts wait until the last part is there. Rows of the declared type may lie between them, as from a stock llama.cpp.
//!
//! The host does not ask whether rows could be read. Those that cannot be are refused: a query that sees one makes its
//! graph fail, so that the host reports an error instead of a text from noise.

use crate::declared::Declared;
use crate::said;
use std::ops::Range;
use tqkv::unstable::slots::{SlotStore, packed_rows};

/// What a tensor of the cache got back.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    /// Packed rows of which parts came, and the rows that they are for.
    bytes: Vec<u8>,
    rows: Vec<usize>,
    /// True once rows were refused.
    has_refused: bool,
}

impl Restored {
    /// Writes complete rows from row `first` on, packed or of the declared type.
    pub(crate) fn write(&mut self, store: &mut SlotStore, declared: &Declared, first: usize, bytes: &[u8]) {
        let row_bytes = declared.bytes(store.width()).unwrap_or(0).max(1);
        let row = |at: usize| &bytes[at * row_bytes..(at + 1) * row_bytes];
        let count = bytes.len() / row_bytes;
        let mut plain = 0..0;
        for at in 0..count {
            let is_start = packed_rows(row(at)).is_some();
            // Another state begins where the host gave up one that is cut short.
            if is_start || at == 0 && self.rows.contains(&first) {
                self.settle(store);
            }
            if !is_start && self.rows.is_empty() {
                plain.end = at + 1;
                continue;
            }
            self.write_plain(store, declared, first, plain, bytes);
            plain = at + 1..at + 1;
            self.bytes.extend_from_slice(row(at));
            self.rows.push(first + at);
            if packed_rows(&self.bytes).is_some_and(|rows| rows == self.rows.len()) {
                self.unpack(store);
            }
        }
        self.write_plain(store, declared, first, plain, bytes);
    }

    /// Writes some of the rows as those of the declared type.
    fn write_plain(
        &self,
        store: &mut SlotStore,
        declared: &Declared,
        first: usize,
        rows: Range<usize>,
        bytes: &[u8],
    ) {
        if !rows.is_empty() {
            let row_bytes = declared.bytes(store.width()).unwrap_or(0);
            let part = &bytes[rows.start * row_bytes..rows.end * row_bytes];
            declared.write_bytes(store, (first + rows.start) * row_bytes, part);
        }
    }

    fn unpack(&mut self, store: &mut SlotStore) {
        let (bytes, rows) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.rows));
        if let Err(error) = store.unpack(&rows, &bytes) {
            self.refuse(store, &rows, &error.to_string());
        }
    }

    fn refuse(&mut self, store: &mut SlotStore, rows: &[usize], why: &str) {
        if !self.has_refused {
            said::print(&format!(
                "{} rows of a saved state are refused, and texts that see them: {why}",
                rows.len()
            ));
        }
        self.has_refused = true;
        store.refuse(rows);
    }

    /// Refuses rows of which parts are missing. Before anything else is done with the rows.
    pub(crate) fn settle(&mut self, store: &mut SlotStore) {
        if !self.rows.is_empty() {
            let rows = std::mem::take(&mut self.rows);
            self.bytes = Vec::new();
            self.refuse(store, &rows, "a part of them is missing");
        }
    }

    /// True if a result over these rows may be of ones that were refused.
    pub(crate) fn may_spoil(&self, out: &[f32]) -> bool {
        self.has_refused && out.iter().any(|x| !x.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use tqkv::CodecId;
    use tqkv::cache::CacheSpec;
    use tqkv::unstable::slots::StoreSide;

    const WIDTH: usize = 128;
    const SLOTS: usize = 700;
    const ROW: usize = 2 * WIDTH;

    fn store(id: CodecId) -> SlotStore {
        let mut store =
            SlotStore::new(StoreSide::Keys, &CacheSpec::new(1, 1, 1, 64).hot(16), WIDTH, SLOTS, 1);
        assert!(store.divide(64, id));
        store
    }

    fn filled() -> SlotStore {
        let (mut store, mut bits) = (store(CodecId::S4), 1u32);
        for row in 0..SLOTS {
            let mut value = || {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f16::from_f32((bits >> 16) as f32 / 32768.0 - 0.7)
            };
            store.write(row, &(0..WIDTH).map(|_| value()).collect::<Vec<_>>());
            store.cool();
        }
        store
    }

    fn rows(store: &SlotStore) -> Vec<u16> {
        let mut rows = vec![f16::ZERO; SLOTS * WIDTH];
        store.read(0, &mut rows);
        rows.iter().map(|x| x.to_bits()).collect()
    }

    /// A state of three runs, of which the first is of rows of the type.
    fn state(store: &SlotStore, declared: &Declared) -> Vec<u8> {
        let mut state = vec![0; SLOTS * ROW];
        declared.read_bytes(store, 0, &mut state[..4 * ROW]);
        assert!(store.pack(4, 296, &mut state[4 * ROW..300 * ROW]));
        assert!(store.pack(300, 400, &mut state[300 * ROW..]));
        state
    }

    #[test]
    fn parts_of_any_length_make_the_rows_again() {
        let (saved, declared) = (filled(), Declared::of(1).expect("f16"));
        let state = state(&saved, &declared);
        for step in [1, 3, 299, 300, 301, SLOTS] {
            let (mut back, mut restored) = (store(CodecId::S4), Restored::default());
            for (at, part) in state.chunks(step * ROW).enumerate() {
                restored.write(&mut back, &declared, at * step, part);
            }
            restored.settle(&mut back);
            assert!(!restored.has_refused && rows(&saved) == rows(&back), "parts of {step} rows");
        }
    }

    #[test]
    fn what_cannot_be_read_spoils_results_and_the_next_state_does_not() {
        let (saved, declared) = (filled(), Declared::of(1).expect("f16"));
        let state = state(&saved, &declared);
        let is_number = |rows: &[u16]| rows.iter().all(|x| f16::from_bits(*x).is_finite());
        // A state that ends in the middle, and one of another codec.
        let (mut back, mut restored) = (store(CodecId::S4), Restored::default());
        restored.write(&mut back, &declared, 0, &state[..200 * ROW]);
        assert!(!restored.may_spoil(&[f32::NAN]));
        restored.settle(&mut back);
        assert!(restored.may_spoil(&[1.0, f32::NAN]) && !restored.may_spoil(&[1.0]));
        let held = rows(&back);
        assert!(
            is_number(&held[..4 * WIDTH])
                && held[4 * WIDTH..200 * WIDTH].iter().all(|x| f16::from_bits(*x).is_nan())
        );
        let (mut other, mut of_other) = (store(CodecId::T2), Restored::default());
        of_other.write(&mut other, &declared, 0, &state);
        assert!(of_other.has_refused && !is_number(&rows(&other)));
        // States that begin where another one broke off: one with codes, and one of rows of the type.
        restored.write(&mut back, &declared, 0, &state[..200 * ROW]);
        restored.write(&mut back, &declared, 4, &state[4 * ROW..]);
        assert!(rows(&saved)[4 * WIDTH..] == rows(&back)[4 * WIDTH..]);
        let mut plain = vec![0; 50 * ROW];
        declared.read_bytes(&saved, 4 * ROW, &mut plain);
        restored.write(&mut back, &declared, 4, &state[4 * ROW..200 * ROW]);
        restored.write(&mut back, &declared, 4, &plain);
        restored.settle(&mut back);
        let (wanted, found) = (rows(&saved), rows(&back));
        assert!(wanted[4 * WIDTH..54 * WIDTH] == found[4 * WIDTH..54 * WIDTH] && !is_number(&found));
    }
}
