//! Times of attention and encoding, next to f16 rows of the same shape.

use crate::args::CheckArgs;
use crate::bench::{self, Bandwidth, Shape, Times};
use crate::error::CheckError;
use crate::row::{Speed, Spread};
use tqkv_gpu::Device;

/// Bits of an f16 value.
const HALF_BITS: u32 = 16;

/// Measures every codec at a shape.
pub(crate) fn measure(
    device: &Device,
    shape: Shape,
    args: &CheckArgs,
    bandwidth: Bandwidth,
    each: &mut dyn FnMut(Speed) -> Result<(), CheckError>,
) -> Result<(), CheckError> {
    let mut shape = shape;
    while shape.sequences > 1 && shape.bytes(HALF_BITS, HALF_BITS) > device.memory()?.0 / 2 {
        shape.sequences /= 2;
    }
    let halves = bench::halves(device, shape, args.seconds)?;
    let row = |codec, times: &Times, bits, encoded_vectors_per_second| {
        let (bytes, median) = (shape.bytes(bits, bits), times.at(50));
        Speed {
            codec,
            sequences: shape.sequences,
            tokens: shape.tokens,
            num_kv_heads: shape.num_kv_heads,
            heads_per_kv_head: shape.group,
            head_dim: shape.head_dim,
            runs: times.runs(),
            attend_seconds: Spread::of(times),
            attend_bytes_per_second: bytes as f64 / median,
            copy_share: bytes as f64 / median / bandwidth.copy,
            read_share: bytes as f64 / median / bandwidth.read,
            f16_ratio: halves.at(50) / median,
            encoded_vectors_per_second,
        }
    };
    each(row("f16", &halves, HALF_BITS, None))?;
    for id in args.codecs() {
        let measured = bench::codes(device, shape, id, id, args.cut, args.seconds)?;
        each(row(id.name(), &measured.attend, id.bits(), Some(measured.encoded_per_second)))?;
    }
    Ok(())
}
