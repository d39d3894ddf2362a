//! The files of a slot folder, and every change of them.
//!
//! | name | what it is |
//! | --- | --- |
//! | `NAME` | a state as llama-server wrote it; the newest of its name |
//! | `NAME` of the year 2000 | a copy that was unpacked for a restore |
//! | `NAME.tqs` | its pack; its time is that of the last use |
//! | `NAME.tqkv-done` | a state that is packed, on its way out; a part of one, while a copy has its name |
//! | `.tqkv-*` | files that are being written |
//!
//! A killed process leaves a state, its pack, or both. [`Folder::open`] cleans up after it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use tqkv::file::{AtomicFile, Existing};
use tqkv_session::{Layout, Mode, SessionError, Sizes, StorageCodec};
use tqkv_simd::Level;

use super::busy::{Busy, Taken};
use super::name::{self, ASIDE, COPY, PACK, copy_time};
use crate::input::open_regular;
use crate::signals;

/// Time between two tries to take a name that a call uses.
const TRY: Duration = Duration::from_millis(20);

/// How states are packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackCodes {
    /// Mode of states with a cache that is understood. Others are kept without loss.
    pub(crate) mode: Mode<'static>,
    /// The basis of packs that name one.
    pub(crate) basis: Option<&'static StorageCodec>,
    pub(crate) level: Level,
}

/// Length and time of a file: what changes when it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    pub(super) written: SystemTime,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
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

/// A slot folder that this process keeps.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(super) path: PathBuf,
    pub(super) codes: PackCodes,
    busy: Arc<Busy>,
    /// States that a call has saved.
    saved: Mutex<HashSet<String>>,
    /// A lock on the folder, where the system has one.
    _lock: Option<File>,
}

impl Folder {
    /// Takes the folder, and cleans up what a killed process left.
    ///
    /// # Errors
    /// `ResourceBusy` if another process keeps it. Errors of reading and renaming.
    pub(crate) fn open(path: &Path, codes: PackCodes) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "is not valid: expected a folder"));
        }
        // Systems without locks of folders go on without.
        let lock = File::open(path).ok();
        if let Some(Err(fs::TryLockError::WouldBlock)) = lock.as_ref().map(File::try_lock) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another `session serve` keeps it"));
        }
        let folder =
            Self { path: path.to_owned(), codes, busy: Arc::default(), saved: Mutex::default(), _lock: lock };
        folder.clean_up()?;
        Ok(folder)
    }

    /// Takes a name for a call; waits for others.
    pub(super) async fn take(&self, name: &str) -> Taken {
        self.busy.take(name).await
    }

    /// Takes a name as soon as no call uses it, unless a signal ends the command.
    fn take_now(&self, name: &str) -> Option<Taken> {
        loop {
            match self.busy.try_take(name) {
                None if !signals::interrupted() => thread::sleep(TRY),
                taken => return taken,
            }
        }
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
        // The set is complete after every statement.
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
        for name in self.names(ASIDE)? {
            self.take_back(&name)?;
        }
        for name in self.names(COPY)? {
            fs::remove_file(self.at(&name, COPY))?;
        }
        Ok(())
    }

    /// The path of a name with an ending.
    pub(super) fn at(&self, name: &str, ending: &str) -> PathBuf {
        self.path.join(format!("{name}{ending}"))
    }

    /// Files that may be states, with their stamps. Removes copies that no call uses.
    pub(super) fn states(&self) -> io::Result<Vec<(String, Stamp)>> {
        let mut states = Vec::new();
        for name in self.names("")? {
            if name::is_reserved(&name) {
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

    /// Returns whether a file is a complete state of a sequence, and whether all of it is understood.
    pub(super) fn is_understood(&self, name: &str) -> Result<bool, SessionError> {
        let layout = Layout::read(&mut open_regular(&self.at(name, ""))?)?;
        Ok(layout.unread_bytes == 0 && !layout.caches.is_empty())
    }

    /// Packs a state and removes it. The pack is on the disk before the state goes.
    pub(super) fn pack(&self, name: &str) -> Result<Packing, SessionError> {
        if let Some(fault) = name::fault(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, fault).into());
        }
        let (state, pack) = (self.at(name, ""), self.at(name, PACK));
        let before = Stamp::of(&state)?;
        if before.written == copy_time() {
            return Ok(Packing::Changed);
        }
        let mut file = Stoppable(open_regular(&state)?);
        let PackCodes { mut mode, level, .. } = self.codes;
        if Layout::read(&mut file)?.caches.is_empty() {
            mode = Mode::Exact;
        }
        let mut target = BufWriter::new(AtomicFile::create(&pack, Existing::Replace)?);
        let sizes = tqkv_session::pack(&mut file, &mut target, mode, level)?;
        if Stamp::of(&state).ok() != Some(before) {
            return Ok(Packing::Changed);
        }
        target.into_inner().map_err(io::IntoInnerError::into_error)?.commit()?;
        let Some(_taken) = self.take_now(name) else { return Ok(Packing::Changed) };
        Ok(if self.remove_if(name, before)? { Packing::Done(sizes) } else { Packing::Changed })
    }

    /// Removes a state unless it changed. The rename comes first: nobody opens the file by its name after it,
    /// and who opened it before has changed the stamp.
    fn remove_if(&self, name: &str, stamp: Stamp) -> io::Result<bool> {
        let (state, done) = (self.at(name, ""), self.at(name, ASIDE));
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

/// A file whose reading ends where a signal ends the command, so that a long state does not hold it up.
pub(super) struct Stoppable(pub(super) File);

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
