//! The files of a slot folder, and every change of them.
//!
//! | name | what it is |
//! | --- | --- |
//! | `NAME` | a state as llama-server wrote it; the newest of its name |
//! | `NAME` of the year 2000 | a copy that was unpacked for a restore |
//! | `NAME.tqs` | its pack; its time is that of the last use |
//! | `NAME.tqkv-done` | a state that is packed, on its way out |
//! | `.tqkv-*` | files that are being written |
//!
//! A killed process leaves a state, its pack, or both. [`Folder::open`] cleans up behind it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;
use tqkv::file::{AtomicFile, Existing};
use tqkv_session::{Layout, Mode, SessionError, Sizes, StorageCodec};
use tqkv_simd::Level;

use super::busy::{Busy, Taken};
use crate::signals;

const PACK: &str = ".tqs";
const DONE: &str = ".tqkv-done";
const COPY: &str = ".tqkv-copy";

/// How states are packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codes<'a> {
    /// Mode of states with a cache that is understood. Others are kept without loss.
    pub(crate) mode: Mode<'a>,
    /// The basis of packs that name one.
    pub(crate) basis: Option<&'a StorageCodec>,
    pub(crate) level: Level,
}

/// Length and time of a file: what changes when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    pub(super) written: SystemTime,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(path)?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { bytes: meta.len(), written: meta.modified()? })
    }
}

/// The end of an attempt to pack a state.
#[derive(Debug)]
pub(super) enum Packing {
    /// The pack is there and the state is gone.
    Done(Sizes),
    /// The state changed meanwhile: it is packed later.
    Changed,
}

/// How a name is ready for a restore.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// A state that was never packed, or nothing.
    AsItIs,
    /// A copy, unpacked now.
    Copy,
}

/// A slot folder that this process keeps.
#[derive(Debug)]
pub(crate) struct Folder<'a> {
    path: PathBuf,
    codes: Codes<'a>,
    busy: Busy,
    /// States that a call has saved.
    saved: Mutex<HashSet<String>>,
    /// A lock on the folder, where the system has one.
    _lock: Option<File>,
}

impl<'a> Folder<'a> {
    /// Takes the folder, and cleans up what a killed process left.
    ///
    /// # Errors
    /// `ResourceBusy` if another process keeps it. Errors of reading and renaming.
    pub(crate) fn open(path: &Path, codes: Codes<'a>) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "is not valid: expected a folder"));
        }
        // Systems without locks of folders go on without.
        let lock = File::open(path).ok();
        if let Some(Err(fs::TryLockError::WouldBlock)) = lock.as_ref().map(File::try_lock) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another `session serve` keeps it"));
        }
        let folder = Self {
            path: path.to_owned(),
            codes,
            busy: Busy::default(),
            saved: Mutex::default(),
            _lock: lock,
        };
        folder.clean_up()?;
        Ok(folder)
    }

    /// Takes a name for a call; waits for others.
    pub(super) fn take(&self, name: &str) -> Taken<'_> {
        self.busy.take(name)
    }

    /// A call has written a state to its end.
    pub(super) fn saved(&self, name: &str) {
        self.saves().insert(name.to_owned());
    }

    /// Returns true once after a save.
    pub(super) fn is_saved(&self, name: &str) -> bool {
        self.saves().remove(name)
    }

    fn saves(&self) -> MutexGuard<'_, HashSet<String>> {
        // The set is whole after every statement.
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of the regular files with an ending, without that ending.
    fn names(&self, ending: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Names that are no text come from none of llama-server's calls.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = name.strip_suffix(ending).filter(|name| !name.is_empty());
            if let Some(name) = name
                && entry.file_type().is_ok_and(|kind| kind.is_file())
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn clean_up(&self) -> io::Result<()> {
        for name in self.names(DONE)? {
            let (state, done) = (self.at(&name, ""), self.at(&name, DONE));
            // A new state of that name makes the old one void. Else it may be newer than its pack.
            if state.exists() { fs::remove_file(done)? } else { fs::rename(done, state)? }
        }
        for name in self.names(COPY)? {
            fs::remove_file(self.at(&name, COPY))?;
        }
        Ok(())
    }

    /// The path of a name with an ending.
    fn at(&self, name: &str, ending: &str) -> PathBuf {
        self.path.join(format!("{name}{ending}"))
    }

    /// Files that may be states, with their stamps. Removes copies that no call uses.
    pub(super) fn states(&self) -> io::Result<Vec<(String, Stamp)>> {
        let mut states = Vec::new();
        for name in self.names("")? {
            if is_reserved(&name) {
                continue;
            }
            // A file that is gone by now is nothing to pack.
            let Ok(stamp) = Stamp::of(&self.at(&name, "")) else { continue };
            if stamp.written != copy_time() {
                states.push((name, stamp));
            } else if let Some(_taken) = self.busy.try_take(&name) {
                self.take_back(&name)?;
            }
        }
        Ok(states)
    }

    /// Returns whether a file is a whole state of a sequence, and whether all of it is understood.
    pub(super) fn is_understood(&self, name: &str) -> Result<bool, SessionError> {
        let layout = Layout::read(&mut File::open(self.at(name, ""))?)?;
        Ok(layout.unread_bytes == 0 && !layout.caches.is_empty())
    }

    /// Packs a state and removes it. The pack is on the disk before the state goes.
    pub(super) fn pack(&self, name: &str) -> Result<Packing, SessionError> {
        let (state, pack) = (self.at(name, ""), self.at(name, PACK));
        let before = Stamp::of(&state)?;
        let mut file = Stoppable(File::open(&state)?);
        let Codes { mut mode, level, .. } = self.codes;
        if Layout::read(&mut file)?.caches.is_empty() {
            mode = Mode::Exact;
        }
        let mut target = BufWriter::new(AtomicFile::create(&pack, Existing::Replace)?);
        let sizes = tqkv_session::pack(&mut file, &mut target, mode, level)?;
        if Stamp::of(&state).ok() != Some(before) {
            return Ok(Packing::Changed);
        }
        target.into_inner().map_err(io::IntoInnerError::into_error)?.commit()?;
        let _taken = self.busy.take(name);
        Ok(if self.remove_if(name, before)? { Packing::Done(sizes) } else { Packing::Changed })
    }

    /// Removes a state unless it changed. The rename comes first: nobody opens the file by its name after it,
    /// and who opened it before has changed the stamp.
    fn remove_if(&self, name: &str, stamp: Stamp) -> io::Result<bool> {
        let (state, done) = (self.at(name, ""), self.at(name, DONE));
        match fs::rename(&state, &done) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            other => other?,
        }
        if Stamp::of(&done)? == stamp {
            fs::remove_file(&done)?;
            return Ok(true);
        }
        // A newer file of that name stays; this one is void then.
        if let Err(error) = fs::hard_link(&done, &state)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            fs::rename(&done, &state)?;
            return Ok(false);
        }
        fs::remove_file(&done)?;
        Ok(false)
    }

    /// Makes a state ready to be read under its name. The caller has taken the name.
    pub(super) fn give(&self, name: &str) -> Result<Given, SessionError> {
        let (state, pack) = (self.at(name, ""), self.at(name, PACK));
        if state.exists() || !pack.exists() {
            return Ok(Given::AsItIs);
        }
        let from = File::open(&pack)?;
        let builder = &mut tempfile::Builder::new();
        let copy = builder.prefix(".tqkv-").suffix(COPY).tempfile_in(&self.path)?;
        let mut target = BufWriter::new(CopyFile(copy));
        tqkv_session::unpack(&mut BufReader::new(&from), &mut target, self.codes.basis, self.codes.level)?;
        let CopyFile(copy) = target.into_inner().map_err(io::IntoInnerError::into_error)?;
        copy.as_file().set_modified(copy_time())?;
        match copy.persist_noclobber(&state) {
            Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => return Ok(Given::AsItIs),
            other => drop(other.map_err(|failed| failed.error)?),
        }
        // The order of forgetting. A folder that keeps no times forgets in the order of packing.
        let _ =
            File::options().append(true).open(&pack).and_then(|pack| pack.set_modified(SystemTime::now()));
        Ok(Given::Copy)
    }

    /// Removes a copy whose pack is there. The caller has taken the name.
    pub(super) fn take_back(&self, name: &str) -> io::Result<()> {
        let state = self.at(name, "");
        let is_copy = Stamp::of(&state).is_ok_and(|stamp| stamp.written == copy_time());
        if is_copy && self.at(name, PACK).exists() { fs::remove_file(state) } else { Ok(()) }
    }

    /// Removes the packs that were used longest ago, until the others have `limit` bytes at most. The last
    /// used one stays. Returns the names.
    pub(super) fn forget(&self, limit: u64) -> io::Result<Vec<String>> {
        let mut packs: Vec<(Stamp, String)> = Vec::new();
        for name in self.names(PACK)? {
            let Ok(stamp) = Stamp::of(&self.at(&name, PACK)) else { continue };
            packs.push((stamp, name));
        }
        packs.sort_by(|a, b| (a.0.written, &a.1).cmp(&(b.0.written, &b.1)));
        let mut bytes: u64 = packs.iter().map(|(stamp, _)| stamp.bytes).sum();
        packs.pop();
        let mut forgotten = Vec::new();
        for (stamp, name) in packs {
            if bytes <= limit {
                break;
            }
            // A pack that a call uses stays until the next time.
            if let Some(_taken) = self.busy.try_take(&name) {
                fs::remove_file(self.at(&name, PACK))?;
                bytes -= stamp.bytes;
                forgotten.push(name);
            }
        }
        Ok(forgotten)
    }

    /// Number and bytes of the packs.
    pub(crate) fn packs(&self) -> io::Result<(usize, u64)> {
        let names = self.names(PACK)?;
        let stamps = names.iter().filter_map(|name| Stamp::of(&self.at(name, PACK)).ok());
        Ok(stamps.fold((0, 0), |(count, bytes), stamp| (count + 1, bytes + stamp.bytes)))
    }
}

/// Returns true for names that are none of a state in the folder.
pub(super) fn is_reserved(name: &str) -> bool {
    let is_path = name.is_empty() || name.contains(['/', '\\', '\0']);
    is_path || name.starts_with('.') || name.ends_with(PACK) || name.contains(".tqkv-")
}

/// The time of a copy: no engine has written a state in the year 2000.
fn copy_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_800)
}

/// A state whose reading ends where a signal ends the command, so that a long pack does not hold it up.
struct Stoppable(File);

impl Read for Stoppable {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if signals::interrupted() {
            return Err(io::Error::other("a signal ended the command"));
        }
        self.0.read(bytes)
    }
}

impl Seek for Stoppable {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// A temporary file as a target.
struct CopyFile(NamedTempFile);

impl Write for CopyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_file_mut().flush()
    }
}

impl Seek for CopyFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.as_file_mut().seek(to)
    }
}
