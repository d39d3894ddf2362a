//! Plain streaming read: the bandwidth of a thread on this machine, to judge the baselines.

use tqkv_simd::page::{Line, ask_for};

/// Lines per call: 1 MiB.
const CALL: usize = 1 << 14;
/// Streams that are read in alternation.
const STREAMS: usize = 4;
/// Lines that are prefetched ahead in each stream. Four streams with 2 KiB read 17.5 GB/s. One stream with 8
/// KiB reads 15.7, and one without prefetch 12.7 (Sapphire Rapids, virtual).
const AHEAD: usize = 32;

/// Bytes per call.
pub(super) const CALL_BYTES: usize = CALL * 64;

/// Makes a pool of `calls` calls, and the closure that reads one of them.
pub(super) fn reader(calls: usize) -> Box<dyn FnMut(usize) + Send> {
    let pool = vec![Line([1; 64]); CALL * calls];
    Box::new(move |at| {
        std::hint::black_box(checksum(&pool[at * CALL..(at + 1) * CALL]));
    })
}

/// Lines of a stream that are read in sequence.
const RUN: usize = 4;

/// The sum of all dwords, lane by lane. With the narrowest registers this takes four additions per line,
/// which is little compared with memory.
fn checksum(lines: &[Line]) -> u32 {
    let (streams, _) = lines.split_at(lines.len() / STREAMS * STREAMS);
    let length = (streams.len() / STREAMS).max(1);
    let mut sums = [0u32; 16];
    for i in (0..length).step_by(RUN) {
        for stream in streams.chunks_exact(length) {
            let ahead = stream.get(i + AHEAD..i + AHEAD + RUN).unwrap_or_default();
            ahead.iter().for_each(ask_for);
            for line in stream.iter().skip(i).take(RUN) {
                for (sum, dword) in sums.iter_mut().zip(line.0.as_chunks::<4>().0) {
                    *sum = sum.wrapping_add(u32::from_ne_bytes(*dword));
                }
            }
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}
