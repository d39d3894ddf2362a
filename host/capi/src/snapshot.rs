//! Caches kept beyond their process: to files, and through functions of the program.
//!
//! What went wrong is told apart: a file or a function that failed is TQKV_IO, bytes that are no snapshot of
//! the cache are TQKV_BAD_SNAPSHOT. A function is called with the cache's lock held: the program is told not
//! to use the cache in it.

use crate::cache::TqkvCache;
use crate::error::{Failure, TqkvStatus};
use crate::pointer::Call;
use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

/// Writes all of `len` bytes, and returns 0; anything else is a failure. `user` is what was passed beside the
/// function. It must return: no exception, no longjmp.
pub type TqkvWrite = Option<unsafe extern "C" fn(user: *mut c_void, bytes: *const u8, len: usize) -> c_int>;

/// Reads up to `len` bytes, at least one, and returns how many; 0 at the end, below 0 for a failure. `user`
/// is what was passed beside the function. It must return: no exception, no longjmp.
pub type TqkvRead = Option<unsafe extern "C" fn(user: *mut c_void, bytes: *mut u8, len: usize) -> isize>;

/// A reader or a writer of which it is known whether it failed itself.
struct Watched<T> {
    inner: T,
    failed: bool,
}

impl<T> Watched<T> {
    fn new(inner: T) -> Self {
        Self { inner, failed: false }
    }

    /// The failure of a call that used it.
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

/// A function of the program, with what it gets.
struct Callback<F> {
    function: F,
    user: *mut c_void,
}

impl Write for Callback<unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_int> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the contract of `tqkv_snapshot`: the function may be called with `user`. The bytes can be
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
        // SAFETY: the contract of `tqkv_restore`: the function may be called with `user`. The bytes can be
        // written.
        let number = unsafe { (self.function)(self.user, bytes.as_mut_ptr(), bytes.len()) };
        let read = usize::try_from(number).ok().filter(|read| *read <= bytes.len());
        read.ok_or_else(|| {
            io::Error::other(format!("read returned {number}, asked for were {}", bytes.len()))
        })
    }
}

/// What a null function is.
fn null(what: &str) -> Failure {
    Failure::new(TqkvStatus::TqkvNullPointer, format!("{what} is null"))
}

/// Writes the whole state through a function, from the first byte to the last. The cache must not be used in
/// it.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `write` is null or may be called with `user`, reads no more
/// than it is told of, and returns.
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

/// Takes a snapshot over through a function, in the place of the tokens there are: the cache goes on bit for
/// bit as the one it was made of. It must have the spec of that one but for its spill folder. No byte behind
/// the snapshot is asked for. What is refused leaves the cache as it was. The cache must not be used in the
/// function.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `read` is null or may be called with `user`, writes no more
/// than it is told of, and returns.
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

/// `tqkv_snapshot` to a file, which appears whole or not at all; one that was there is replaced.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `path` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_save(cache: *const TqkvCache, path: *const c_char) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `path` text, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, path) = (call.handle("cache", cache)?, call.text("path", path)?);
        // A cache that is there can be written: only files fail.
        cache.with(|cache| cache.save(Path::new(path)).map_err(|error| Failure::from(error).of_io()))
    })
}

/// `tqkv_restore` from a file.
///
/// # Safety
/// `cache` is null or a cache that is not freed; `path` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_load(cache: *mut TqkvCache, path: *const c_char) -> TqkvStatus {
    // SAFETY: `cache` is a cache and `path` text, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (cache, path) = (call.handle("cache", cache)?, call.text("path", path)?);
        let file = File::open(path);
        let file = file.map_err(|error| Failure::argument(format!("{path}: {error}")).of_io())?;
        let mut reader = Watched::new(BufReader::new(file));
        let restored = cache.with_mut(|cache| Ok(cache.restore(&mut reader)?));
        restored.map_err(|failure| reader.blame(failure.about(path)))
    })
}
