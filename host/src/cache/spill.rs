//! The file of the cold tier. Pages are written once and read back in full, and free ranges are reused.
//!
//! Pages are copied, not mapped. If the disk is full, or another program changes the file, the result is an
//! error and not a signal or a wrong value. The file has no name and vanishes with the last cache that uses
//! it. It needs a Unix system for reads at an offset.

use super::meter::{Event, count};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tqkv_simd::page::Line;

/// An unnamed file. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct SpillFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    file: File,
    /// The process that created it. After fork(2), a child shares the file but has its own copy of the free
    /// ranges.
    process: u32,
    room: Mutex<Room>,
    #[cfg(test)]
    faults: super::tests::Faults,
}

/// The used and free ranges of the file.
#[derive(Debug, Default)]
struct Room {
    /// Start and length of each free range before `end`. Adjacent ranges are merged.
    free: BTreeMap<u64, u64>,
    end: u64,
}

/// Lines in the file. Copies share them, and dropping the last copy frees the range.
#[derive(Clone, Debug)]
pub(super) struct Spilled(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    file: SpillFile,
    start: u64,
    lines: usize,
    crc: u32,
}

impl SpillFile {
    /// Creates a file in `folder`, and unlinks it at once.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        if !cfg!(unix) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a spill file needs a Unix system"));
        }
        let file = tempfile::tempfile_in(folder)?;
        Ok(Self::of(file, std::process::id()))
    }

    fn of(file: File, process: u32) -> Self {
        Self(Arc::new(Shared {
            file,
            process,
            room: Mutex::default(),
            #[cfg(test)]
            faults: Default::default(),
        }))
    }

    /// True if this process created the file, so that it alone manages the ranges.
    fn is_own(&self) -> bool {
        self.0.process == std::process::id()
    }

    /// Writes lines to a free range.
    pub(super) fn write(&self, lines: &[Line]) -> io::Result<Spilled> {
        if !self.is_own() {
            return Err(io::Error::other(
                "the spill file belongs to the process that this one is a child of",
            ));
        }
        let bytes: &[u8] = bytemuck::cast_slice(lines);
        let start = self.room().take(bytes.len() as u64);
        let slot = Slot { file: self.clone(), start, lines: lines.len(), crc: crc32fast::hash(bytes) };
        // On failure, dropping the slot frees its range.
        check_limit(start + bytes.len() as u64)?;
        #[cfg(test)]
        self.0.faults.check()?;
        write_at(&self.0.file, bytes, start)?;
        count(Event::PageSpilled, 1);
        Ok(Spilled(Arc::new(slot)))
    }

    #[cfg(test)]
    pub(super) fn faults(&self) -> &super::tests::Faults {
        &self.0.faults
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spilled {
    /// Number of lines.
    pub(super) fn len(&self) -> usize {
        self.0.lines
    }

    /// Reads the lines back.
    pub(super) fn read(&self, lines: &mut Vec<Line>) -> io::Result<()> {
        let slot = &*self.0;
        lines.resize(slot.lines, Line::ZERO);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(lines);
        #[cfg(test)]
        slot.file.0.faults.check()?;
        read_at(&slot.file.0.file, bytes, slot.start)?;
        if crc32fast::hash(bytes) == slot.crc {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a page of the spill file was overwritten"))
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Ranges of the parent process stay used. The lock may be held for ever by a thread that does not
        // exist in the child.
        if !self.file.is_own() {
            return;
        }
        let mut room = self.file.room();
        let end = room.end;
        room.give_back(self.start, (self.lines * size_of::<Line>()) as u64);
        if room.end < end {
            // If the file cannot be shortened, it only takes more disk space.
            let _ = self.file.0.file.set_len(room.end);
        }
    }
}

impl Room {
    /// Takes the first free range that is long enough, or one at the end.
    fn take(&mut self, len: u64) -> u64 {
        let found = self.free.iter().find(|(_, free)| **free >= len).map(|(&start, &free)| (start, free));
        let Some((start, free)) = found else {
            let start = self.end;
            self.end += len;
            return start;
        };
        self.free.remove(&start);
        if free > len {
            self.free.insert(start + len, free - len);
        }
        start
    }

    fn give_back(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &free)) = self.free.range(..start).next_back()
            && before + free == start
        {
            self.free.remove(&before);
            (start, len) = (before, len + free);
        }
        if let Some(free) = self.free.remove(&(start + len)) {
            len += free;
        }
        if start + len == self.end {
            self.end = start;
        } else {
            self.free.insert(start, len);
        }
    }
}

/// Refuses what the limit on file sizes (`ulimit -f`) forbids, because the system would kill the process.
#[cfg(unix)]
fn check_limit(end: u64) -> io::Result<()> {
    use rustix::process::{Resource, getrlimit};
    match getrlimit(Resource::Fsize).current {
        Some(limit) if end > limit => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("the spill file would pass the limit of {limit} bytes on file sizes (ulimit -f)"),
        )),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn check_limit(_: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn write_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(value: u8, lines: usize) -> Vec<Line> {
        vec![bytemuck::cast::<[u8; 64], Line>([value; 64]); lines]
    }

    /// Models a child of fork(2): the same file with its own memory.
    #[test]
    fn another_process_neither_shortens_nor_writes_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = SpillFile::create(folder.path()).unwrap();
        let written = file.write(&page(3, 4)).unwrap();
        let of_child = SpillFile::of(file.0.file.try_clone().unwrap(), file.0.process ^ 1);
        let copied = |slot: &Slot| Slot {
            file: of_child.clone(),
            start: slot.start,
            lines: slot.lines,
            crc: slot.crc,
        };
        let copy = Spilled(Arc::new(copied(&written.0)));
        let mut lines = Vec::new();
        copy.read(&mut lines).unwrap();
        assert_eq!(lines, page(3, 4), "it reads what was there");
        assert!(of_child.write(&page(5, 1)).unwrap_err().to_string().contains("is a child of"));
        // A lock of another thread stays locked in a child.
        let held = of_child.room();
        drop(copy);
        drop(held);
        assert_eq!(file.0.file.metadata().unwrap().len(), 4 * 64);
        written.read(&mut lines).unwrap();
        drop(written);
        assert_eq!(file.0.file.metadata().unwrap().len(), 0);
    }

    #[test]
    fn room_is_used_again_and_the_file_shrinks() {
        let folder = tempfile::tempdir().unwrap();
        let file = SpillFile::create(folder.path()).unwrap();
        let length = || file.0.file.metadata().unwrap().len();
        let mut slots: Vec<Spilled> = (0..6).map(|i| file.write(&page(i, 3)).unwrap()).collect();
        assert_eq!(length(), 6 * 3 * 64);
        slots.remove(1);
        slots.remove(1);
        slots.push(file.write(&page(9, 2)).unwrap());
        slots.push(file.write(&page(10, 4)).unwrap());
        assert_eq!(length(), 6 * 3 * 64, "both fit where two pages were");
        let mut lines = Vec::new();
        for (slot, value) in slots.iter().zip([0, 3, 4, 5, 9, 10]) {
            slot.read(&mut lines).unwrap();
            assert_eq!(lines, page(value, slot.len()));
        }
        slots.truncate(1);
        assert_eq!(length(), 3 * 64);
        file.0.file.set_len(64).unwrap();
        assert_eq!(slots[0].read(&mut lines).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        write_at(&file.0.file, &[7; 192], 0).unwrap();
        assert!(slots[0].read(&mut lines).unwrap_err().to_string().contains("overwritten"));
        slots.clear();
        assert_eq!(length(), 0);
    }
}
