//! The golden blocks: stored bytes for fixed inputs, one per line.

use std::fmt::Write;
use tqkv_core::{AnyCodec, CodecId, Effort, HEAD_DIMS, Options, ScaleMode};

/// Head dims in the golden file: one for every kind of rotation, and one with a ragged last group.
const DIMS: [usize; 7] = [16, 64, 80, 96, 112, 128, 576];

/// A vector made with integer arithmetic, so that it is the same on every machine. It is bell-shaped, with
/// one large coordinate.
pub fn painted(dim: usize, salt: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(salt);
    let mut x: Vec<f32> =
        (0..dim).map(|_| (0..4).map(|_| random.i32(-255..256)).sum::<i32>() as f32 / 64.0).collect();
    x[dim / 3] *= 4.0;
    x
}

fn line(out: &mut String, id: CodecId, dim: usize, options: Options) {
    let Ok(codec) = AnyCodec::new(id, dim, options) else { return };
    let mut block = vec![0; codec.block_bytes()];
    let written = codec.encode(&painted(dim, dim as u64), &mut block).is_ok();
    let Options { seed, scale_mode, effort, .. } = options;
    let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = if written { hex } else { "refused".into() };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{} {dim} {seed} {} {} {hex}", id.name(), scale_mode.name(), effort.name());
}

/// The text of the golden file.
pub fn blocks() -> String {
    let mut out = String::from(
        "# codec head_dim seed scale_mode effort block; the vector of a head dim is f32 in little endian\n",
    );
    for dim in DIMS {
        let bytes = painted(dim, dim as u64).into_iter().flat_map(f32::to_le_bytes);
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "# vector {dim} {}", bytes.map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    for dim in DIMS.into_iter().filter(|dim| HEAD_DIMS.contains(dim)) {
        for &id in CodecId::ALL {
            line(&mut out, id, dim, Options::DEFAULT);
        }
    }
    for scale_mode in ScaleMode::ALL {
        for effort in Effort::ALL {
            for id in [
                CodecId::S2,
                CodecId::S4,
                CodecId::N3,
                CodecId::T2H,
                CodecId::T3,
                CodecId::T2S8,
                CodecId::M2,
                CodecId::M3,
            ] {
                line(&mut out, id, 128, Options::DEFAULT.seed(7).scale_mode(scale_mode).effort(effort));
            }
        }
    }
    out
}
