//! Plain streaming read: what this machine gives a thread, as the yardstick of the baselines.

use tqkv_simd::page::Line;

/// Lines of a call: 1 MiB.
const CALL: usize = 1 << 14;
/// Places that are read in turns.
const STREAMS: usize = 4;
/// Lines that are asked for ahead in each stream. Four streams and 2 KiB read 17.5 GB/s where one
/// stream with 8 KiB reads 15.7 and one without prefetch 12.7 (Sapphire Rapids, virtual).
const AHEAD: usize = 32;

/// Bytes of a call.
pub(super) const CALL_BYTES: usize = CALL * 64;

/// A pool of `calls` calls, and the call that reads one of them.
pub(super) fn reader(calls: usize) -> Box<dyn FnMut(usize) + Send> {
    let pool = vec![Line([1; 64]); CALL * calls];
    Box::new(move |at| {
        std::hint::black_box(checksum(&pool[at * CALL..(at + 1) * CALL]));
    })
}

/// Sum of all dwords. Memory is so much slower that the widest registers would not make it faster.
fn checksum(lines: &[Line]) -> u32 {
    let (streams, _) = lines.split_at(lines.len() / STREAMS * STREAMS);
    let length = (streams.len() / STREAMS).max(1);
    let mut sums = [[0u32; 16]; 4];
    for i in (0..length).step_by(sums.len()) {
        for stream in streams.chunks_exact(length) {
            let ahead = stream.get(i + AHEAD..i + AHEAD + sums.len()).unwrap_or_default();
            ahead.iter().for_each(prefetch);
            for (sum, line) in sums.iter_mut().zip(&stream[i..]) {
                for (lane, dword) in sum.iter_mut().zip(line.0.as_chunks::<4>().0) {
                    *lane = lane.wrapping_add(u32::from_ne_bytes(*dword));
                }
            }
        }
    }
    sums.as_flattened().iter().fold(0, |a, &b| a.wrapping_add(b))
}

/// Asks for a line to be brought near.
#[inline(always)]
fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads no memory the program can see.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.0.as_ptr().cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{line}]",
            line = in(reg) line.0.as_ptr(),
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
