//! The accesses of a warp's threads between two barriers. On a GPU, a write is not ordered with another
//! thread's access of the same byte. The lock step of this machine must not hide that. Shuffles and votes do
//! not order memory. Warps of a launch are not ordered either, so no two may write a byte.

use std::collections::HashMap;

/// Accesses since the last barrier, by buffer and byte.
#[derive(Default)]
pub(crate) struct Races {
    touched: HashMap<(usize, usize), Touched>,
}

/// Writes of a launch, by buffer and byte: the first warp that wrote it, and the value.
#[derive(Default)]
pub(crate) struct Writes {
    warp: usize,
    of_byte: HashMap<(usize, usize), (usize, u8)>,
}

impl Writes {
    /// The next writes are those of another warp.
    pub(crate) fn next_warp(&mut self) {
        self.warp += 1;
    }

    /// Records that the warp writes some bytes of a buffer. Stops the test if an earlier warp has written
    /// another value. Equal values are in order: encoders share the word that says if a vector was refused.
    pub(crate) fn write(&mut self, buffer: usize, offset: usize, word: &[u8], text: &str) {
        for (at, &value) in (offset..).zip(word) {
            let (warp, written) = self.of_byte.entry((buffer, at)).or_insert((self.warp, value));
            if *warp == self.warp {
                *written = value;
            }
            assert!(*written == value, "{text}: another warp wrote another value here");
        }
    }
}

#[derive(Default)]
struct Touched {
    writer: Option<usize>,
    reader: Option<Reader>,
}

#[derive(Clone, Copy, PartialEq)]
enum Reader {
    One(usize),
    Several,
}

impl Races {
    /// All memory accesses before this are done.
    pub(crate) fn barrier(&mut self) {
        self.touched.clear();
    }

    /// Records that a thread reads some bytes of a buffer. Stops the test if another thread has written one.
    pub(crate) fn read(&mut self, lane: usize, buffer: usize, bytes: std::ops::Range<usize>, text: &str) {
        for byte in bytes {
            let touched = self.touched.entry((buffer, byte)).or_default();
            touched.check_writer(lane, text);
            let is_shared = touched.is_read_by_others(lane);
            touched.reader = Some(if is_shared { Reader::Several } else { Reader::One(lane) });
        }
    }

    /// Records that a thread writes some bytes of a buffer. Stops the test if another thread has read or
    /// written one.
    pub(crate) fn write(&mut self, lane: usize, buffer: usize, bytes: std::ops::Range<usize>, text: &str) {
        for byte in bytes {
            let touched = self.touched.entry((buffer, byte)).or_default();
            touched.check_writer(lane, text);
            assert!(!touched.is_read_by_others(lane), "{text}: no barrier since another thread read this");
            touched.writer = Some(lane);
        }
    }
}

impl Touched {
    fn check_writer(&self, lane: usize, text: &str) {
        let is_own = self.writer.is_none_or(|writer| writer == lane);
        assert!(is_own, "{text}: no barrier since another thread wrote this");
    }

    fn is_read_by_others(&self, lane: usize) -> bool {
        self.reader.is_some_and(|reader| reader != Reader::One(lane))
    }
}
