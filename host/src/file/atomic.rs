//! Files that appear complete or not at all.
//!
//! The bytes go to a temporary file in the folder of the target. [`AtomicFile::commit`] syncs it and renames
//! it. A value that is dropped before that removes it. A signal drops nothing, so a program that handles one
//! calls [`super::remove_unfinished`] first. A killed process leaves the temporary file, and the next writer
//! of that name removes it. Not for appending to an existing file. [`super::Writer::create`] writes to an
//! atomic file.

use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::links;
use super::unfinished::{Unfinished, list, sync_folder_of};

/// The treatment of a file that already exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the call fails with an error of kind `AlreadyExists`.
    Refuse,
    /// It is replaced, and its permissions are kept.
    Replace,
}

/// A file that is written next to its target.
#[derive(Debug)]
pub struct AtomicFile {
    // Dropped in this order: first the file is removed, then its entry in the list.
    temporary: NamedTempFile,
    unfinished: Unfinished,
    target: PathBuf,
    existing: Existing,
}

impl AtomicFile {
    /// Starts a file that becomes `path` on commit. Symbolic links to regular files are followed. The
    /// exception is a link of another user in a sticky folder where everybody may write, such as `/tmp`. A
    /// new file is readable by its owner only (mode 0600), because keys and values reveal the text.
    ///
    /// # Errors
    /// * `AlreadyExists`, as [`Existing`] says.
    /// * `InvalidInput` if `path` is not a regular file (a folder, a device), or is a link that leads nowhere
    ///   or belongs to another user.
    /// * Errors of creating a file in the folder.
    pub fn create(path: impl AsRef<Path>, existing: Existing) -> io::Result<Self> {
        Self::begin(path.as_ref(), existing, 0o600)
    }

    /// Starts a file that holds no text of a user. A new file has the permissions that the umask leaves. See
    /// [`AtomicFile::create`].
    ///
    /// # Errors
    /// Those of [`AtomicFile::create`].
    pub fn create_shared(path: impl AsRef<Path>, existing: Existing) -> io::Result<Self> {
        Self::begin(path.as_ref(), existing, 0o666)
    }

    fn begin(path: &Path, existing: Existing, mode: u32) -> io::Result<Self> {
        let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let target = links::target(path)?;
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
        // A file is readable by its owner only until it replaces another one.
        let mode = if old.is_some() { 0o600 } else { mode };
        let (temporary, unfinished) = Unfinished::begin(&target, |builder, folder| {
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
            builder.tempfile_in(folder)
        })?;
        #[cfg(not(unix))]
        let _ = mode;
        Ok(Self { temporary, unfinished, target, existing })
    }

    /// Syncs the bytes to the disk and renames the file into place.
    ///
    /// # Errors
    /// `AlreadyExists` if a file that must not be replaced has appeared meanwhile, and errors of syncing and
    /// renaming. The temporary file is removed then.
    pub fn commit(self) -> io::Result<()> {
        let Self { temporary, unfinished, target, existing } = self;
        if let Ok(old) = fs::metadata(&target) {
            temporary.as_file().set_permissions(old.permissions())?;
        }
        temporary.as_file().sync_all()?;
        // Holds the lock, so that a signal finds either the complete file or none.
        let paths = list();
        let renamed = match existing {
            Existing::Refuse => temporary.persist_noclobber(&target),
            Existing::Replace => temporary.persist(&target),
        };
        drop(paths);
        renamed.map_err(|failed| failed.error)?;
        drop(unfinished);
        // A rename survives a power cut only once the folder is on the disk.
        sync_folder_of(&target)
    }
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
    fn a_new_file_is_its_owners_alone_unless_it_is_shared() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
        fs::write(folder.path().join("any"), b"").unwrap();
        let create = |name: &str, how: fn(&Path, Existing) -> io::Result<AtomicFile>| {
            how(&folder.path().join(name), Existing::Refuse).unwrap().commit().unwrap();
        };
        create("private", |path, existing| AtomicFile::create(path, existing));
        create("shared", |path, existing| AtomicFile::create_shared(path, existing));
        assert_eq!((mode("private"), mode("shared")), (0o600, mode("any")));
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
