//! Files that appear whole or not at all.
//!
//! The bytes go to a temporary file in the target's own folder, which is synced and renamed by
//! [`AtomicFile::commit`]; a value dropped before that removes it. A signal drops nothing, so a program that handles
//! one calls [`remove_unfinished`] first. Not for appending to a file that exists. [`super::Writer::create`] writes
//! to one.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

/// Temporary files that are being written, all of this process.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of paths is whole after every statement, so a panic elsewhere does not spoil it.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives no [`AtomicFile`] of the process is begun, committed or dropped: other threads wait.
#[derive(Debug)]
pub struct Removed {
    _files: MutexGuard<'static, Vec<PathBuf>>,
}

/// Removes what has been written of files that are not committed, for a process about to end by a signal.
///
/// Call it from an ordinary thread, as it takes a lock, and keep the result until the process ends.
#[must_use = "files may be begun again once it is dropped"]
pub fn remove_unfinished() -> Removed {
    let mut files = unfinished();
    for path in files.drain(..) {
        // Nothing is left to do for one that cannot be removed.
        let _ = fs::remove_file(path);
    }
    Removed { _files: files }
}

/// What becomes of a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the new one is an error of kind `AlreadyExists`.
    Refuse,
    /// The new one takes its place and its permissions.
    Replace,
}

/// A file being written beside its target.
#[derive(Debug)]
pub struct AtomicFile {
    // Dropped in this order: removed, then taken off the list.
    temporary: NamedTempFile,
    listed: Listed,
    target: PathBuf,
    existing: Existing,
}

/// An entry of [`UNFINISHED`].
#[derive(Debug)]
struct Listed(PathBuf);

impl Drop for Listed {
    fn drop(&mut self) {
        unfinished().retain(|path| *path != self.0);
    }
}

impl AtomicFile {
    /// Starts a file that will be `path` once committed; a symbolic link to a regular file is followed.
    ///
    /// # Errors
    /// `AlreadyExists` as [`Existing`] says; `InvalidInput` where `path` is no regular file (a folder, a device) or
    /// a link that leads nowhere; otherwise those of creating a file in its folder.
    pub fn create(path: &Path, existing: Existing) -> io::Result<Self> {
        let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(_) if path.is_symlink() => return invalid("is a link that leads to no file"),
            Err(_) => path.to_path_buf(),
        };
        let old = fs::metadata(&target).ok();
        if old.as_ref().is_some_and(|old| !old.is_file()) {
            return invalid("exists and is not a regular file");
        }
        if old.is_some() && existing == Existing::Refuse {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists"));
        }
        if target.file_name().is_none() {
            return invalid("names no file");
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tqkv-").suffix(".part");
        #[cfg(unix)]
        if old.is_none() {
            // What the umask leaves of it, as for any new file; until it replaces one, a file is the owner's alone.
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        }
        let folder = folder(&target)?;
        // Under the lock, so that a signal finds the file on the list or not made yet.
        let mut files = unfinished();
        let temporary = builder.tempfile_in(folder)?;
        let listed = Listed(temporary.path().to_path_buf());
        files.push(listed.0.clone());
        drop(files);
        Ok(Self { temporary, listed, target, existing })
    }

    /// Syncs the bytes to the disk and renames the file into place.
    ///
    /// # Errors
    /// `AlreadyExists` where a file that is not to be replaced has come meanwhile, and those of syncing and
    /// renaming; the temporary file is removed then.
    pub fn commit(self) -> io::Result<()> {
        let Self { temporary, listed, target, existing } = self;
        if let Ok(old) = fs::metadata(&target) {
            temporary.as_file().set_permissions(old.permissions())?;
        }
        temporary.as_file().sync_all()?;
        // Under the lock: with a signal the file is there whole, or not at all.
        let files = unfinished();
        let renamed = match existing {
            Existing::Refuse => temporary.persist_noclobber(&target),
            Existing::Replace => temporary.persist(&target),
        };
        drop(files);
        renamed.map_err(|failed| failed.error)?;
        drop(listed);
        // The rename itself lasts through a power cut only once the folder is on the disk.
        #[cfg(unix)]
        File::open(folder(&target)?)?.sync_all()?;
        Ok(())
    }
}

/// The folder that holds `path`, or the reason why there is none.
fn folder(path: &Path) -> io::Result<&Path> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    if parent.is_dir() {
        return Ok(parent);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not an existing folder", parent.display())))
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.temporary.as_file_mut().seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_dropped_file_leaves_nothing_and_the_old_one_intact() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path, Existing::Replace).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(names(folder.path()).len(), 2, "the temporary is beside it");
        drop(file);
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn commit_replaces_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path, Existing::Replace).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn folders_devices_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let create = |path: &Path| AtomicFile::create(path, Existing::Replace);
        assert!(create(folder.path()).is_err());
        assert!(create(&folder.path().join("no/out")).is_err());
        assert!(create(Path::new("/")).is_err());
        #[cfg(unix)]
        assert!(create(Path::new("/dev/null")).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn a_link_keeps_pointing_at_the_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, b"old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut file = AtomicFile::create(&link, Existing::Replace).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
    }

    #[test]
    #[cfg(unix)]
    fn a_link_to_nothing_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("gone"), &link).unwrap();
        for existing in [Existing::Refuse, Existing::Replace] {
            let error = AtomicFile::create(&link, existing).unwrap_err();
            assert!(error.to_string().contains("leads to no file"), "{error}");
        }
        assert!(link.is_symlink());
    }

    #[test]
    fn a_file_that_may_not_be_replaced_stays_even_if_it_comes_late() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut early = AtomicFile::create(&path, Existing::Refuse).unwrap();
        early.write_all(b"new").unwrap();
        fs::write(&path, b"old").unwrap();
        let refused = [AtomicFile::create(&path, Existing::Refuse).unwrap_err(), early.commit().unwrap_err()];
        assert!(refused.iter().all(|error| error.kind() == io::ErrorKind::AlreadyExists), "{refused:?}");
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    #[cfg(unix)]
    fn permissions_are_those_of_the_file_that_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for mode in [0o600, 0o640, 0o604] {
            fs::write(&path, b"old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let file = AtomicFile::create(&path, Existing::Replace).unwrap();
            let part = file.temporary.as_file().metadata().unwrap().permissions().mode();
            assert_eq!(part & 0o077, 0, "{part:o}: nobody else reads the part");
            file.commit().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }
}
