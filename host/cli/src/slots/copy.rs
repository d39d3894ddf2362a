//! Copies of states: unpacked for a restore, and removed after it.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::SystemTime;

use tempfile::NamedTempFile;
use tqkv_session::{Layout, SessionError};

use super::busy::Taken;
use super::folder::{Folder, Stamp, Stoppable};
use super::name::{ASIDE, COPY, PACK, copy_time};
use crate::input::open_regular;
use crate::output::note;

/// A copy under the name of its state. Dropping it removes the file, and gives the name back.
#[derive(Debug)]
pub(super) struct Copy {
    folder: Arc<Folder>,
    taken: Taken,
}

impl Drop for Copy {
    fn drop(&mut self) {
        let name = &self.taken.name;
        if let Err(error) = self.folder.take_back(name) {
            note(format_args!("{name}: {error}"));
        }
    }
}

impl Folder {
    /// Returns true if a restore needs the pack: it is there, and no complete state is.
    pub(super) fn is_packed(&self, name: &str) -> Result<bool, SessionError> {
        if !fs::exists(self.at(name, PACK))? {
            return Ok(false);
        }
        let state = self.at(name, "");
        match fs::symlink_metadata(&state) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error.into()),
            // llama-server refuses links and folders itself.
            Ok(meta) if !meta.is_file() => Ok(false),
            Ok(_) => match Layout::read(&mut open_regular(&state)?) {
                Ok(_) => Ok(false),
                Err(SessionError::Io(error)) => Err(error.into()),
                Err(_) => Ok(true),
            },
        }
    }

    /// Unpacks a state to its name. A part of a state that has the name lies aside until the copy goes.
    pub(super) fn give(self: &Arc<Self>, taken: Taken) -> Result<Copy, SessionError> {
        let name = taken.name.clone();
        let [state, pack, aside] = ["", PACK, ASIDE].map(|ending| self.at(&name, ending));
        let from = open_regular(&pack)?;
        let builder = &mut tempfile::Builder::new();
        let target = builder.prefix(".tqkv-").suffix(COPY).tempfile_in(&self.path)?;
        let mut target = BufWriter::new(CopyFile(target));
        tqkv_session::unpack(
            &mut BufReader::new(Stoppable(from)),
            &mut target,
            self.codes.basis,
            self.codes.level,
        )?;
        let CopyFile(target) = target.into_inner().map_err(io::IntoInnerError::into_error)?;
        target.as_file().set_modified(copy_time())?;
        // From here on, whatever fails puts the part back.
        let copy = Copy { folder: Arc::clone(self), taken };
        if state.exists() {
            fs::rename(&state, &aside)?;
        }
        match target.persist_noclobber(&state) {
            // The file that came meanwhile is newer.
            Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => return Ok(copy),
            other => drop(other.map_err(|failed| failed.error)?),
        }
        // The order of forgetting. A folder that keeps no times forgets in the order of packing.
        let _ =
            File::options().append(true).open(&pack).and_then(|pack| pack.set_modified(SystemTime::now()));
        Ok(copy)
    }

    /// Removes a copy whose pack is there, and puts back what lies aside. The caller has the name.
    pub(super) fn take_back(&self, name: &str) -> io::Result<()> {
        let [state, pack, aside] = ["", PACK, ASIDE].map(|ending| self.at(name, ending));
        let is_copy = Stamp::of(&state).is_ok_and(|stamp| stamp.written == copy_time());
        if is_copy && pack.exists() {
            fs::remove_file(&state)?;
        }
        if !aside.exists() {
            return Ok(());
        }
        // A new state of that name makes the old one void. Else it may be newer than its pack.
        if state.exists() { fs::remove_file(aside) } else { fs::rename(aside, state) }
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
