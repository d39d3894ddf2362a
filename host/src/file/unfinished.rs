//! Temporary files next to their targets, and their removal when the process ends.
//!
//! A temporary file or folder is named `.tqkv-HASH-SLOT.part`, with a hash of the target's name. So the next
//! writer of that name finds the temporary of a killed process. A running process holds a lock on its
//! temporaries; unlocked ones are removed. A signal drops nothing, so a program that handles one calls
//! [`remove_unfinished`].

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile, TempDir};

/// Number of concurrent writers of one name whose temporaries can be found later. Further ones get random
/// names.
const SLOTS: usize = 16;

/// How often a temporary is created again because another writer mistook it for an abandoned one.
const TRIES: usize = 100;

/// Temporary files and folders that this process is writing.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Locks the list. Until it is unlocked, this process begins, commits and drops no temporary.
pub(super) fn list() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of paths is complete after every statement, so a panic elsewhere does not spoil it.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A guard: while it exists, no [`super::AtomicFile`] and no [`super::folder::AtomicFolder`] of the process
/// is begun, committed or dropped. Other threads wait.
#[derive(Debug)]
pub struct Removed {
    _files: MutexGuard<'static, Vec<PathBuf>>,
}

/// Removes all files and folders that are not committed. For a process that a signal is about to end.
///
/// Call it from an ordinary thread, because it takes a lock. Keep the result until the process ends.
#[must_use = "files may be begun again once it is dropped"]
pub fn remove_unfinished() -> Removed {
    let mut paths = list();
    for path in paths.drain(..) {
        remove(&path);
    }
    Removed { _files: paths }
}

/// Removes a temporary. An error is ignored, because nothing more can be done.
fn remove(path: &Path) {
    if fs::remove_file(path).is_ok() {
        return;
    }
    // Other threads may still create files in the folder.
    for _ in 0..TRIES {
        if fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
    }
}

/// An entry of the list, and the lock that marks the temporary as in use.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    _lock: Option<File>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        list().retain(|path| *path != self.path);
    }
}

impl Unfinished {
    /// Removes the temporaries that killed processes left for `target`, and makes a new one in its folder
    /// with `make`.
    pub(super) fn begin<T: Temporary>(
        target: &Path,
        make: impl Fn(&mut Builder<'_, '_>, &Path) -> io::Result<T>,
    ) -> io::Result<(T, Self)> {
        let folder = folder(target)?;
        let name = target.file_name().unwrap_or_default();
        let prefix = format!(".tqkv-{:08x}-", crc32fast::hash(name.as_encoded_bytes()));
        for slot in 0..SLOTS {
            remove_what_is_left(&folder.join(format!("{prefix}{slot}.part")));
        }
        let mut taken = 0;
        for _ in 0..TRIES {
            let in_slot = format!("{prefix}{taken}");
            let mut builder = Builder::new();
            if taken < SLOTS {
                builder.prefix(&in_slot).rand_bytes(0);
            } else {
                builder.prefix(&prefix);
            }
            builder.suffix(".part");
            // Holds the lock, so that a signal finds the temporary either on the list or not yet made.
            let mut paths = list();
            let made = match make(&mut builder, folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && taken < SLOTS => {
                    taken += 1;
                    continue;
                }
                made => made?,
            };
            let path = made.as_ref().to_path_buf();
            paths.push(path.clone());
            drop(paths);
            match hold(&made) {
                Some(lock) => return Ok((made, Self { path, _lock: lock })),
                None => made.leave(),
            }
            drop(Self { path, _lock: None });
        }
        Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "other processes write a file of this name again and again",
        ))
    }
}

/// A file or a folder that is removed with its name when it is dropped.
pub(super) trait Temporary: AsRef<Path> {
    /// A handle that can be locked: of the file itself, or of the folder that has the name now.
    fn handle(&self) -> io::Result<File>;

    /// Drops it and keeps what has the name, which may be the temporary of another writer by now.
    fn leave(self);
}

impl Temporary for NamedTempFile {
    fn handle(&self) -> io::Result<File> {
        self.as_file().try_clone()
    }

    fn leave(mut self) {
        self.disable_cleanup(true);
    }
}

impl Temporary for TempDir {
    fn handle(&self) -> io::Result<File> {
        File::open(self.path())
    }

    fn leave(mut self) {
        self.disable_cleanup(true);
    }
}

/// Locks a temporary of this process. Returns `None` if another writer took it for an abandoned one and
/// removes it, and `Some(None)` if it cannot be locked.
fn hold(made: &impl Temporary) -> Option<Option<File>> {
    let file = match made.handle() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(_) => return Some(None),
        Ok(file) => file,
    };
    match file.try_lock() {
        Ok(()) => leads_to(made.as_ref(), &file).then_some(Some(file)),
        Err(fs::TryLockError::WouldBlock) => None,
        Err(fs::TryLockError::Error(_)) => Some(None),
    }
}

/// True if a name leads to an open file or folder.
#[cfg(unix)]
fn leads_to(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let open = file.metadata().map(id);
    fs::symlink_metadata(path).map(id).is_ok_and(|now| open.is_ok_and(|open| now == open))
}

#[cfg(not(unix))]
fn leads_to(path: &Path, _: &File) -> bool {
    path.exists()
}

/// Removes a temporary of this user whose process has ended.
#[cfg(unix)]
fn remove_what_is_left(path: &Path) {
    use rustix::fs::{Mode, OFlags};
    use std::os::unix::fs::MetadataExt;
    // These flags follow no link and do not wait for a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(File::from) else { return };
    let Ok(found) = file.metadata() else { return };
    let own = found.uid() == rustix::process::geteuid().as_raw();
    // A temporary that was opened here may be committed since, and a new one may have its name. A name that
    // still leads to the locked file keeps leading to it: only the holder of the lock removes it.
    if own && file.try_lock().is_ok() && leads_to(path, &file) {
        remove(path);
    }
}

/// Removes a temporary whose process has ended. An open file cannot be removed here.
#[cfg(not(unix))]
fn remove_what_is_left(path: &Path) {
    let _ = fs::remove_file(path);
}

/// The folder that holds `path`, or the reason why there is none.
pub(super) fn folder(path: &Path) -> io::Result<&Path> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    if parent.is_dir() {
        return Ok(parent);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not an existing folder", parent.display())))
}

/// Syncs the folder of `path`, so that the names in it survive a power cut.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(folder(path)?)?.sync_all()?;
    #[cfg(not(unix))]
    folder(path)?;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn begin(target: &Path) -> (NamedTempFile, Unfinished) {
        Unfinished::begin(target, |builder, folder| builder.tempfile_in(folder)).unwrap()
    }

    /// Makes a temporary that looks like one of a killed process.
    fn leave(target: &Path) -> PathBuf {
        let (file, unfinished) = begin(target);
        let path = file.path().to_path_buf();
        std::mem::forget(file.into_temp_path());
        drop(unfinished);
        path
    }

    #[test]
    fn the_next_writer_of_a_name_removes_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (target, other) = (folder.path().join("out"), folder.path().join("other"));
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let [left, of_other] = [&target, &other].map(|target| leave(target));
        assert!(left.exists() && of_other.exists() && count() == 2);
        let (first, held) = begin(&target);
        // A temporary that is being written stays.
        let (second, other_held) = begin(&target);
        assert!(first.path().exists() && second.path().exists() && first.path() != second.path());
        assert_eq!(count(), 3);
        drop((first, held, second, other_held));
        assert_eq!((count(), of_other.exists()), (1, true), "a file of another name is not looked for");
        drop(begin(&other));
        assert_eq!(count(), 0);
    }

    #[test]
    fn what_is_left_of_a_folder_goes_with_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let make = || Unfinished::begin(&target, |builder, folder| builder.tempdir_in(folder)).unwrap();
        let (left, held) = make();
        let left = left.keep();
        fs::write(left.join("file"), b"text").unwrap();
        drop(held);
        let (new, _held) = make();
        assert_eq!(fs::read_dir(new.path()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn many_writers_of_a_name_get_a_file_each() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let all: Vec<_> = (0..2 * SLOTS).map(|_| begin(&target)).collect();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), all.len());
    }

    #[test]
    fn links_and_pipes_in_the_place_of_a_temporary_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (target, precious) = (folder.path().join("out"), folder.path().join("precious"));
        fs::write(&precious, b"old").unwrap();
        let slot = leave(&target);
        fs::remove_file(&slot).unwrap();
        std::os::unix::fs::symlink(&precious, &slot).unwrap();
        let (file, _held) = begin(&target);
        assert!(slot.is_symlink() && file.path() != slot);
        assert_eq!(fs::read(&precious).unwrap(), b"old");
    }

    #[test]
    fn a_name_that_another_writer_has_by_now_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let other = std::cell::OnceCell::new();
        let (file, _held) = Unfinished::begin(&folder.path().join("out"), |builder, folder| {
            let made = builder.tempfile_in(folder)?;
            if other.get().is_none() {
                // The other one takes it for an abandoned one, and makes its own.
                fs::remove_file(made.path())?;
                let new = File::create_new(made.path())?;
                new.lock()?;
                other.set((made.path().to_path_buf(), new)).unwrap();
            }
            Ok(made)
        })
        .unwrap();
        let (path, _lock) = other.get().unwrap();
        assert!(path.exists() && file.path().exists() && file.path() != path);
    }

    #[test]
    fn threads_that_write_one_name_do_not_take_each_others_files() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (file, _held) = begin(&target);
                        assert!(file.path().exists());
                        file.persist(&target).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
