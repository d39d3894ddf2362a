//! Files that appear whole or not at all.
//!
//! The bytes go to a temporary file in the target's own folder, which is synced and renamed by
//! [`AtomicFile::commit`]; a value dropped before that removes it. Not for appending to a file that
//! exists. [`super::Writer::create`] writes to one.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file being written beside its target.
#[derive(Debug)]
pub struct AtomicFile {
    temporary: NamedTempFile,
    target: PathBuf,
}

impl AtomicFile {
    /// Starts a file that will be `path` once committed; an existing regular file is replaced then,
    /// and a symbolic link to one is followed.
    ///
    /// # Errors
    /// `InvalidInput` where `path` exists and is no regular file (a folder, a device), otherwise
    /// those of creating a file in its folder.
    pub fn create(path: &Path) -> io::Result<Self> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if fs::metadata(&target).is_ok_and(|m| !m.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "exists and is not a regular file"));
        }
        if target.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "names no file"));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tqkv-").suffix(".part");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let temporary = builder.tempfile_in(folder(&target)?)?;
        Ok(Self { temporary, target })
    }

    /// Syncs the bytes to the disk and renames the file into place.
    ///
    /// # Errors
    /// Those of syncing and renaming; the temporary file is removed then.
    pub fn commit(self) -> io::Result<()> {
        self.temporary.as_file().sync_all()?;
        self.temporary.persist(&self.target).map_err(|failed| failed.error)?;
        // The rename itself lasts through a power cut only once the folder is on the disk.
        #[cfg(unix)]
        File::open(folder(&self.target)?)?.sync_all()?;
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
        let mut file = AtomicFile::create(&path).unwrap();
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
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn folders_devices_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(AtomicFile::create(folder.path()).is_err());
        assert!(AtomicFile::create(&folder.path().join("no/out")).is_err());
        assert!(AtomicFile::create(Path::new("/")).is_err());
        #[cfg(unix)]
        assert!(AtomicFile::create(Path::new("/dev/null")).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn a_link_keeps_pointing_at_the_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, b"old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut file = AtomicFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
    }
}
