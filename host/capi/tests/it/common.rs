//! Shared helpers of the tests: a cache that frees itself, values, and a stream that functions read and
//! write.
#![allow(dead_code, reason = "each test uses some of it")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;
use tqkv_capi::TqkvDtype::*;
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const DIM: usize = 64;
pub(crate) const TOKEN: usize = KV_HEADS * DIM;
pub(crate) const QUERY: usize = HEADS * DIM;

pub(crate) fn last_error() -> String {
    // SAFETY: the text belongs to this thread, and is copied before the next call.
    unsafe { CStr::from_ptr(tqkv_last_error()) }.to_str().unwrap().to_string()
}

/// Checks the status of a call and, unless it is TQKV_OK, the text.
#[track_caller]
pub(crate) fn refused(status: TqkvStatus, expected: TqkvStatus, text: &str) {
    assert_eq!(status, expected, "{}", last_error());
    let last = last_error();
    assert!(last.contains(text), "{last:?} does not say {text:?}");
    assert_eq!(last.lines().count(), 1);
}

/// The shape of most caches here.
pub(crate) const SHAPE: &str = "layers=2 heads=4 kv-heads=2 head-dim=64";

/// A spec of this shape with the defaults.
pub(crate) fn spec() -> CString {
    with("")
}

/// A spec of this shape with other words.
pub(crate) fn with(words: &str) -> CString {
    CString::new(format!("{SHAPE} {words}")).unwrap()
}

/// A cache that is freed when dropped.
pub(crate) struct Cache(pub(crate) *mut TqkvCache);

// SAFETY: a handle is a lock, so any thread may use it.
unsafe impl Sync for Cache {}

impl Cache {
    pub(crate) fn new(spec: &CStr) -> Self {
        let mut cache = null_mut();
        // SAFETY: the text ends with a zero, and the place can be written.
        assert_eq!(unsafe { tqkv_create(spec.as_ptr(), &raw mut cache) }, TqkvOk, "{}", last_error());
        Self(cache)
    }

    pub(crate) fn len(&self) -> usize {
        let mut len = usize::MAX;
        // SAFETY: the cache is not freed, and the place can be written.
        assert_eq!(unsafe { tqkv_len(self.0, &raw mut len) }, TqkvOk);
        len
    }

    pub(crate) fn stats(&self) -> TqkvCacheStats {
        let mut stats = std::mem::MaybeUninit::uninit();
        // SAFETY: the cache is not freed; all bytes of the struct are written.
        unsafe {
            assert_eq!(tqkv_stats(self.0, stats.as_mut_ptr()), TqkvOk);
            stats.assume_init()
        }
    }

    pub(crate) fn append(&self, layer: usize, k: &[f32], v: &[f32]) -> TqkvStatus {
        // SAFETY: the cache is not freed, and the slices have the passed lengths.
        unsafe {
            tqkv_append(self.0, layer, TqkvF32 as u32, k.as_ptr().cast(), k.len(), v.as_ptr().cast(), v.len())
        }
    }

    pub(crate) fn attend(&self, layer: usize, q: &[f32], out: &mut [f32]) -> TqkvStatus {
        // SAFETY: the cache is not freed, and the slices have the passed lengths.
        unsafe {
            let (q, values) = (q.as_ptr().cast(), q.len());
            tqkv_attend(self.0, layer, 0, q, values, 0, out.as_mut_ptr().cast(), out.len())
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: made once, and freed once.
        unsafe { tqkv_free(self.0) }
    }
}

/// Values that look random but never change. All are exact in bf16.
pub(crate) fn values(seed: usize, n: usize) -> Vec<f32> {
    let mut state = seed as u32 ^ 0x9e37_79b9;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 25) as f32 - 64.0) / 64.0
    };
    (0..n).map(|_| next()).collect()
}

/// A stream in memory, for the functions below.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    pub(crate) at: usize,
    /// Number of calls after which a function fails.
    pub(crate) calls: Option<usize>,
}

impl Stream {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), ..Self::default() }
    }

    fn fails(&mut self) -> bool {
        self.calls = self.calls.map(|calls| calls.saturating_sub(1));
        self.calls == Some(0)
    }

    pub(crate) fn user(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }
}

pub(crate) unsafe extern "C" fn write(user: *mut c_void, bytes: *const u8, len: usize) -> c_int {
    // SAFETY: `user` is the stream that was passed, and the bytes have the passed number.
    let (stream, bytes) = unsafe { (&mut *user.cast::<Stream>(), std::slice::from_raw_parts(bytes, len)) };
    stream.bytes.extend_from_slice(bytes);
    if stream.fails() { 5 } else { 0 }
}

/// Reads some bytes per call, never all that are requested.
pub(crate) unsafe extern "C" fn read(user: *mut c_void, bytes: *mut u8, len: usize) -> isize {
    // SAFETY: `user` is the stream that was passed, and the bytes have the passed number.
    let (stream, bytes) =
        unsafe { (&mut *user.cast::<Stream>(), std::slice::from_raw_parts_mut(bytes, len)) };
    let count = len.div_ceil(2).min(stream.bytes.len() - stream.at);
    bytes[..count].copy_from_slice(&stream.bytes[stream.at..][..count]);
    stream.at += count;
    if stream.fails() { -7 } else { count.cast_signed() }
}

pub(crate) fn appended(spec: &CStr, tokens: usize) -> Cache {
    let cache = Cache::new(spec);
    let (k, v) = (values(1, tokens * TOKEN), values(2, tokens * TOKEN));
    for layer in 0..2 {
        assert_eq!(cache.append(layer, &k, &v), TqkvOk, "{}", last_error());
    }
    cache
}

pub(crate) fn attended(cache: &Cache) -> Vec<f32> {
    let mut out = vec![f32::NAN; QUERY];
    assert_eq!(cache.attend(1, &values(3, QUERY), &mut out), TqkvOk, "{}", last_error());
    out
}

pub(crate) fn written(cache: &Cache) -> Vec<u8> {
    let mut stream = Stream::default();
    // SAFETY: the cache and the stream are not freed.
    assert_eq!(unsafe { tqkv_snapshot(cache.0, Some(write), stream.user()) }, TqkvOk, "{}", last_error());
    stream.bytes
}
