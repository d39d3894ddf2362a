//! Snapshots of caches: to files, and through functions of the program.
//!
//! The status tells the causes apart. TQKV_IO is a failed file or function; TQKV_BAD_SNAPSHOT is bytes that
//! are not a snapshot of the cache. The functions run while the cache is locked, so the program is told not
//! to use the cache in them.

use crate::cache::TqkvCache;
use crate::error::{Failure, TqkvStatus};
use crate::pointer::Call;
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use tqkv::cache::KvCache;

/// Writes all of `len` bytes and returns 0; any other result is a failure. `user` is the pointer that was
/// passed with the function. The function must return, without exception or longjmp.
pub type TqkvWrite = Option<unsafe extern "C" fn(user: *mut c_void, bytes: *const u8, len: usize) -> c_int>;

/// Reads between 1 and `len` bytes and returns their number. Returns 0 at the end, and a negative number for
/// a failure. `user` is the pointer that was passed with the function. The function must return, without
/// exception or longjmp.
pub type TqkvRead = Option<unsafe extern "C" fn(user: *mut c_void, bytes: *mut u8, len: usize) -> isize>;

/// A reader or writer that remembers whether it failed itself.
struct Watched<T> {
    inner: T,
    failed: bool,
}

impl<T> Watched<T> {
    fn new(inner: T) -> Self {
        Self { inner, failed: false }
    }

    /// Adds the status of a failed reader or writer to a failure.
    fn blame(&self, failure: Failure) -> Failure {
        if self.failed { failure.of_io() } else { failure }
    }
}

impl<T: Read> Read for Watched<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.inner.read(bytes).inspect_err(|_| self.failed = true)
    }
}

impl<T: Write> Write for Watched<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes).inspect_err(|_| self.failed = true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush().inspect_err(|_| self.failed = true)
    }
}

/// A function of the program and its `user` pointer.
pub(crate) struct Callback<F> {
    pub(crate) function: F,
    pub(crate) user: *mut c_void,
}

impl Write for Callback<unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_int> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the contract of `tqkv_snapshot` lets the function be called with `user`. The bytes can be
        // read.
        match unsafe { (self.function)(self.user, bytes.as_ptr(), bytes.len()) } {
            0 => Ok(bytes.len()),
            number => Err(io::Error::other(format!("write returned {number}"))),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Callback<unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> isize> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        // SAFETY: the contract of `tqkv_restore` lets the function be called with `user`. The bytes can be
        // written.
        let number = unsafe { (self.function)(self.user, bytes.as_mut_ptr(), bytes.len()) };
        let read = usize::try_from(number).ok().filter(|read| *read <= bytes.len());
        read.ok_or_else(|| {
            io::Error::other(format!("read returned {number}, expected at most {}", bytes.len()))
        })
    }
}

/// The failure for a null function.
pub(crate) fn null(what: &str) -> Failure {
    Failure::new(TqkvStatus::TqkvNullPointer, format!("{what} is null"))
}

/// Writes the whole state through a function, from the first byte to the last. The function must not use the
/// cache.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `write` is null or may be called with `user`, reads no more
/// bytes than it is passed, and returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_snapshot(
    cache: *const TqkvCache,
    write: TqkvWrite,
    user: *mut c_void,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let function = write.ok_or_else(|| null("write"))?;
        let mut writer = Watched::new(Callback { function, user });
        let written = cache.with(|cache| Ok(cache.snapshot(&mut writer)?));
        written.map_err(|failure| writer.blame(failure))
    })
}

/// Replaces the tokens of a cache with a snapshot, read through a function. The cache then continues with the
/// same bits as the original. Its spec must be that of the original, except for the spill folder. No byte
/// after the snapshot is requested. If the call fails, the cache is unchanged. The function must not use the
/// cache.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `read` is null or may be called with `user`, writes no more
/// bytes than requested, and returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_restore(
    cache: *mut TqkvCache,
    read: TqkvRead,
    user: *mut c_void,
) -> TqkvStatus {
    // SAFETY: `cache` is a cache, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let cache = call.handle("cache", cache)?;
        let function = read.ok_or_else(|| null("read"))?;
        let mut reader = Watched::new(Callback { function, user });
        let restored = cache.with_mut(|cache| Ok(cache.restore(&mut reader)?));
        restored.map_err(|failure| reader.blame(failure))
    })
}

/// Writes a snapshot to a file, which appears complete or not at all. An existing file is replaced.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `path` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_save(cache: *const TqkvCache, path: *const c_char) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `path` text, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, path) = (call.handle("cache", cache)?, call.text("path", path)?);
        // A valid cache can always be written, so only the file can fail.
        cache.with(|cache| cache.save(Path::new(path)).map_err(|error| Failure::from(error).of_io()))
    })
}

/// Restores a cache from a file, as `tqkv_restore` does.
///
/// # Safety
/// `cache` is null or a cache that is not freed. `path` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_restore_from(cache: *mut TqkvCache, path: *const c_char) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `path` text, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, path) = (call.handle("cache", cache)?, call.text("path", path)?);
        from_file(path, |reader| cache.with_mut(|cache| Ok(cache.restore(reader)?)))
    })
}

/// Makes the cache that `tqkv_save` wrote, with its options but select= and max-tokens=, and no budget. On
/// failure `*cache` is null.
///
/// # Safety
/// `path` is null or ends with a zero. `cache` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_load(path: *const c_char, cache: *mut *mut TqkvCache) -> TqkvStatus {
    // SAFETY: `path` is text and `cache` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("cache", cache, || {
            let path = call.text("path", path)?;
            from_file(path, |reader| Ok(TqkvCache::new(KvCache::from_snapshot(reader)?)))
        })
    })
}

/// Reads a snapshot from a file. Failures have its path.
fn from_file<R>(
    path: &str,
    work: impl FnOnce(&mut Watched<BufReader<File>>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let file = File::open(path);
    let file = file.map_err(|error| Failure::argument(format!("{path}: {error}")).of_io())?;
    let mut reader = Watched::new(BufReader::new(file));
    work(&mut reader).map_err(|failure| reader.blame(failure.about(path)))
}
