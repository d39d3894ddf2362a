//! Times of attention and encoding, next to f16 rows of the same shape.

use super::args::CheckArgs;
use super::bench::{self, Attended, Bandwidth};
use super::error::CheckError;
use super::row::{SpeedRow, Spread};
use super::shape::Shape;
use crate::{Device, GpuSpec};
use tqkv_core::CodecId;

/// Bits of an f16 value.
const HALF_BITS: u32 = 16;

/// The name of `s4` with as many exact tokens as a cache has by default. Their f16 rows are not counted in bytes.
const WITH_EXACT: &str = "s4+f16";

/// Measures every codec at a shape.
pub(crate) fn measure(
    device: &Device,
    shape: Shape,
    args: &CheckArgs,
    bandwidth: Bandwidth,
    each: &mut dyn FnMut(SpeedRow) -> Result<(), CheckError>,
) -> Result<(), CheckError> {
    let mut shape = shape;
    while shape.sequences() > 1 && shape.bytes(HALF_BITS, HALF_BITS) > device.memory()?.0 / 2 {
        shape = shape.halved();
    }
    let halves = bench::halves(device, &shape, args.seconds)?;
    let read_halves = shape.bytes(HALF_BITS, HALF_BITS) as f64 / bandwidth.read;
    let row = |codec, attended: &Attended, bits, encoded_vectors_per_second| {
        let (bytes, median) = (shape.bytes(bits, bits) as f64, attended.times.at(50));
        SpeedRow {
            codec,
            shape: shape.to_string(),
            sequences: shape.sequences(),
            tokens: shape.tokens(),
            num_kv_heads: shape.num_kv_heads,
            heads_per_kv_head: shape.group,
            head_dim: shape.head_dim,
            layers: attended.layers,
            runs: attended.times.runs(),
            registers: attended.resources.registers,
            local_bytes: attended.resources.local_bytes,
            attend_seconds: Spread::of(&attended.times),
            attend_bytes_per_second: bytes / median,
            copy_share: bytes / median / bandwidth.copy,
            read_share: bytes / median / bandwidth.read,
            f16_ratio: halves.times.at(50) / median,
            f16_read_ratio: read_halves / median,
            encoded_vectors_per_second,
        }
    };
    each(row("f16", &halves, HALF_BITS, None))?;
    let codes = |id, exact| bench::codes(device, &shape, id, exact, args.cut, args.seconds);
    for id in args.codecs() {
        let (attended, encoded) = codes(id, (0, 0))?;
        each(row(id.name(), &attended, id.bits(), Some(encoded)))?;
        if id == CodecId::S4 {
            let GpuSpec { sinks, hot, .. } = GpuSpec::new(1, 1, 1, shape.head_dim);
            let (attended, encoded) = codes(id, (sinks, hot))?;
            each(row(WITH_EXACT, &attended, id.bits(), Some(encoded)))?;
        }
    }
    Ok(())
}
