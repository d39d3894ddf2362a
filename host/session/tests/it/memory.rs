//! Memory does not grow with the state.

use crate::common::*;
use std::io::{Cursor, Read, Result, Seek, SeekFrom, Write};
use tqkv_session::{Mode, pack, unpack};

/// A state that exists nowhere: its headers, and rows of a period of 1 MB.
struct Endless {
    headers: Vec<u8>,
    len: u64,
    at: u64,
}

const ROWS: u64 = 1 << 20;

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let count = (out.len() as u64).min(self.len - self.at) as usize;
        for (i, out) in out[..count].iter_mut().enumerate() {
            let at = self.at + i as u64;
            *out = match self.headers.get(at as usize) {
                Some(byte) => *byte,
                // The high bytes of f16 below 2.
                None if at % 2 == 1 => (at % ROWS / 2 % 61) as u8,
                None => (at % 251) as u8,
            };
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Endless {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => self.len.saturating_add_signed(by),
            SeekFrom::Current(by) => self.at.saturating_add_signed(by),
        };
        Ok(self.at)
    }
}

/// Counts bytes.
struct Nowhere(u64);

impl Write for Nowhere {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Kilobytes that were resident at most.
#[cfg(target_os = "linux")]
pub(crate) fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_state_of_half_a_gigabyte_takes_less_than_a_tenth() {
    // One layer of MLA: 262,144 cells of 1024 values of f16.
    const CELLS: u32 = 1 << 18;
    let mut state = State::sequence_file(3);
    [1, CELLS].into_iter().for_each(|field| state.u32(field));
    (0..CELLS).for_each(|position| [position, 1, 0].into_iter().for_each(|field| state.u32(field)));
    [0, 1, F16, 2048, 0].into_iter().for_each(|field| state.u32(field));
    let len = state.bytes.len() as u64 + u64::from(CELLS) * 2048;
    let mut endless = Endless { headers: state.bytes, len, at: 0 };
    let before = peak();
    let mut packed = Vec::new();
    let mode = codecs("s2");
    pack(&mut endless, &mut Counted(&mut packed, 0), mode, level()).unwrap();
    let mut sink = Nowhere(0);
    pack(&mut endless, &mut sink, Mode::Exact, level()).unwrap();
    assert!(sink.0 < len);
    let grown = peak() - before;
    assert!(grown < 50 << 10, "{grown} kB");
    // The kept part of the pack is cut: it is read to its end, and refused there.
    let error =
        unpack(&mut &packed[..], &mut Cursor::new(Vec::new()), None, level()).unwrap_err().to_string();
    assert!(error.contains("cut within"), "{error}");
}

/// Keeps the first megabytes.
struct Counted<'a>(&'a mut Vec<u8>, u64);

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let room = (4usize << 20).saturating_sub(self.0.len()).min(bytes.len());
        self.0.extend_from_slice(&bytes[..room]);
        self.1 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
