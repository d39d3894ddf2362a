//! If the system refuses memory, calls return TQKV_NO_MEMORY and change nothing. The process has little
//! memory left.
// A separate binary, because it starts itself as a process with a memory limit.
#![allow(missing_docs, reason = "a test crate")]
#![cfg(target_os = "linux")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::{CStr, CString, c_void};
use std::process::Command;
use std::ptr::null_mut;
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

const NAME: &str = "in_want_of_memory";
const HEADS: usize = 2;
const DIM: usize = 128;
const TOKEN: usize = HEADS * DIM;
/// Tokens in the cache before the limit is set, and tokens of a call that is refused.
const BEFORE: usize = 20_000;
const MANY: usize = 60_000;
/// Memory left to the process: less than any call below asks for, and more than the rest of the process
/// needs.
const LEFT: u64 = 3 << 20;

/// Bytes that the process has mapped.
fn mapped() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn create(layers: usize) -> Result<*mut TqkvCache, TqkvStatus> {
    let spec = CString::new(format!("layers={layers} heads={HEADS} head-dim={DIM}")).unwrap();
    let mut cache = null_mut();
    // SAFETY: the text ends with a zero, and the place can be written.
    let status = unsafe { tqkv_create(spec.as_ptr(), &raw mut cache) };
    if status == TqkvOk { Ok(cache) } else { Err(status) }
}

fn length(cache: *const TqkvCache) -> usize {
    let mut len = 0;
    // SAFETY: the cache is not freed, and the place can be written.
    assert_eq!(unsafe { tqkv_len(cache, &raw mut len) }, TqkvOk);
    len
}

/// Runs as its own process.
#[test]
#[ignore = "run by the other test"]
fn in_want_of_memory() {
    assert_eq!(tqkv_set_threads(1), TqkvOk);
    let cache = create(1).unwrap();
    let (x, mut out) = (vec![0.5_f32; MANY * TOKEN], vec![0.0_f32; MANY * TOKEN]);
    let half = vec![0x3800_u16; MANY * TOKEN];
    let (p, h, o) = (x.as_ptr().cast::<c_void>(), half.as_ptr().cast::<c_void>(), out.as_mut_ptr().cast());
    let append = |tokens: usize| {
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        unsafe { tqkv_append(cache, 0, 0, p, tokens * TOKEN, p, tokens * TOKEN) }
    };
    // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
    let attend = || unsafe { tqkv_attend(cache, 0, 1, h, TOKEN, 2, o, TOKEN) };
    assert_eq!(append(BEFORE), TqkvOk);
    assert_eq!(attend(), TqkvOk);
    let (mut slots, mut mask) = (null_mut(), null_mut());
    let spec = c"layers=1 heads=2 head-dim=128";
    // SAFETY: the text ends with a zero, and the places can be written.
    unsafe {
        assert_eq!(tqkv_slots_create(spec.as_ptr(), 1 << 20, 1, &raw mut slots), TqkvOk);
        assert_eq!(tqkv_mask_create(slots, 0, &raw mut mask), TqkvOk);
    }
    // SAFETY: the mask is not freed, and the pointer has as many slots.
    let see = || unsafe { tqkv_mask_causal(mask, [0, 1, 2, 3].as_ptr(), 4, 4) };
    let hard = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(mapped() + LEFT), maximum: hard }).unwrap();

    let n = MANY * TOKEN;
    // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
    let calls: [(&str, TqkvStatus); 6] = unsafe {
        [
            ("append", append(MANY)),
            ("prefill", tqkv_prefill(cache, 0, 0, p, n, 0, p, n, p, n, 0, o, n)),
            ("prefill of f16", tqkv_prefill(cache, 0, 1, h, n, 1, h, n, h, n, 0, o, n)),
            ("keys", tqkv_keys(cache, 0, 0, 0, BEFORE, 0, o, BEFORE * DIM)),
            ("mask", see()),
            ("create", create(30_000).err().unwrap_or(TqkvOk)),
        ]
    };
    for (what, status) in calls {
        assert_eq!(status, TqkvNoMemory, "{what}");
    }
    // SAFETY: the text of this thread.
    let text = unsafe { CStr::from_ptr(tqkv_last_error()) }.to_str().unwrap();
    assert!(text.starts_with("no memory: the system cannot provide ") && text.ends_with(" bytes"), "{text}");
    assert_eq!(length(cache), BEFORE);
    assert_eq!((append(1), attend()), (TqkvOk, TqkvOk), "small calls go on");

    setrlimit(Resource::As, Rlimit { current: hard, maximum: hard }).unwrap();
    assert_eq!((append(MANY), attend(), see()), (TqkvOk, TqkvOk, TqkvOk));
    assert_eq!(length(cache), BEFORE + 1 + MANY);
    // SAFETY: made above, and freed once.
    unsafe {
        tqkv_free(cache);
        tqkv_slots_free(slots);
        tqkv_mask_free(mask);
    }
}

#[test]
fn memory_that_the_system_refuses_is_a_status() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", NAME, "--nocapture", "--test-threads=1"])
        // Otherwise the arena of a thread would be mapped before the limit is set.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&text));
}
