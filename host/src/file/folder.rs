//! Folders that appear complete or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::unfinished::{Unfinished, list, sync_folder_of};

/// A folder of files that is written next to its target, like [`super::AtomicFile`]. Dropping it without a
/// commit removes it. Folders within it are not supported.
#[derive(Debug)]
pub struct AtomicFolder {
    // Dropped in this order: first the folder is removed, then its entry in the list.
    temporary: TempDir,
    unfinished: Unfinished,
    target: PathBuf,
}

impl AtomicFolder {
    /// Starts a folder that becomes `path` on commit.
    ///
    /// # Errors
    /// `AlreadyExists` if the path exists, and errors of creating a folder next to it.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        if path.symlink_metadata().is_ok() {
            return Err(exists());
        }
        if path.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "names no folder"));
        }
        let (temporary, unfinished) = Unfinished::begin(path, |builder, folder| {
            // The umask applies, like for any new folder.
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
            builder.tempdir_in(folder)
        })?;
        Ok(Self { temporary, unfinished, target: path.to_path_buf() })
    }

    /// The folder for files until the commit.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Syncs the files to the disk and renames the folder into place.
    ///
    /// # Errors
    /// `AlreadyExists` if the path has appeared meanwhile, and errors of syncing and renaming. Nothing stays
    /// then.
    pub fn commit(self) -> io::Result<()> {
        let Self { temporary, unfinished, target } = self;
        for entry in fs::read_dir(temporary.path())? {
            File::options().read(true).write(cfg!(windows)).open(entry?.path())?.sync_all()?;
        }
        // Syncs the names of the files.
        sync_folder_of(&temporary.path().join("file"))?;
        // Holds the lock, so that a signal finds either the complete folder or none.
        let paths = list();
        rename_new(temporary.path(), &target)?;
        // The temporary folder no longer has this name.
        let _ = temporary.keep();
        drop(paths);
        drop(unfinished);
        sync_folder_of(&target)
    }
}

fn exists() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "exists")
}

/// Renames a folder, and never replaces another one.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The file system or the kernel does not support this flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            renamed => return renamed.map_err(io::Error::from),
        }
    }
    // A plain rename would replace an empty folder.
    if to.symlink_metadata().is_ok() {
        return Err(exists());
    }
    fs::rename(from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn a_folder_is_there_with_its_files_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let begin = || {
            let new = AtomicFolder::create(&path).unwrap();
            fs::write(new.path().join("a"), b"text").unwrap();
            new
        };
        drop(begin());
        assert_eq!(names(folder.path()), [""; 0]);
        begin().commit().unwrap();
        assert_eq!((names(folder.path()), names(&path)), (vec!["out".to_owned()], vec!["a".to_owned()]));
    }

    #[test]
    fn what_is_there_stays_even_if_it_comes_late() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let late = AtomicFolder::create(&path).unwrap();
        fs::create_dir(&path).unwrap();
        for error in [late.commit().unwrap_err(), AtomicFolder::create(&path).unwrap_err()] {
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        }
        assert_eq!((names(folder.path()), names(&path)), (vec!["out".to_owned()], vec![]));
        assert!(AtomicFolder::create(Path::new("/")).is_err());
    }
}
