//! `read_bytes`: only reads memory. Its bandwidth is the ceiling for attention.

use crate::args::ReadBytes;
use crate::threads::Threads;

/// Bytes per read of a warp.
pub const RUN_BYTES: usize = 4096;

/// Reads run `warp` of every `warps` runs. Each thread writes the exclusive or of all its words, so that the
/// compiler keeps every read.
#[inline(always)]
pub fn read_bytes<T: Threads>(warp: u32, args: ReadBytes<T::Memory>) {
    if warp >= args.warps {
        return;
    }
    let mut sum = T::splat([0; 4]);
    for run in 0..args.runs {
        let number = u64::from(run) * u64::from(args.warps) + u64::from(warp);
        let place = T::at(args.memory, number * RUN_BYTES as u64);
        unroll32!(I => {
            if I < RUN_BYTES / 512 {
                let four = T::load::<4>(place, T::map(T::lane(), |lane| 512 * I as u32 + 16 * lane));
                sum = T::zip(sum, four, |[a, b, c, d], [e, f, g, h]| [a ^ e, b ^ f, c ^ g, d ^ h]);
            }
        });
    }
    let place = T::at(args.sums, 512 * u64::from(warp));
    T::store::<4>(place, T::map(T::lane(), |lane| 16 * lane), sum, T::splat(true));
}
