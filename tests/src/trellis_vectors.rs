//! Golden blocks of the trellis codecs: which vectors are encoded how.

use serde::{Deserialize, Serialize};
use tqkv_core::{AnyCodec, CodecId, Effort, Family, Options, ScaleMode};

/// One golden block.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoldenBlock {
    /// Codec name.
    pub codec: String,
    /// Head dim.
    pub dim: usize,
    /// Effort name.
    pub effort: String,
    /// Scale mode name.
    pub scale_mode: String,
    /// Which [`vector`].
    pub vector: u64,
    /// The block's bytes.
    pub block: String,
}

/// Vector `number`: sums of four uniform integers, so that it is exact on every machine.
pub fn vector(number: u64, dim: usize) -> Vec<f32> {
    let mut state = number;
    let mut draw = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 48) as i32 - 32768
    };
    (0..dim).map(|_| (draw() + draw() + draw() + draw()) as f32 / 4096.0).collect()
}

/// All golden blocks, encoded now.
pub fn golden_blocks() -> Vec<GoldenBlock> {
    let mut blocks = Vec::new();
    let ids = CodecId::ALL.iter().filter(|id| id.family() == Family::Trellis);
    for (c, &id) in ids.enumerate() {
        for (d, dim) in [16, 48, 64, 80, 128, 256, 576].into_iter().enumerate() {
            for effort in Effort::ALL {
                let scale_mode = ScaleMode::ALL[(c + d) % 4];
                let number = (c * 100 + d) as u64;
                let codec = AnyCodec::new(id, dim, Options { seed: 42, scale_mode, effort });
                let codec = codec.expect("trellis codecs support every head dim");
                let mut block = vec![0; codec.block_bytes()];
                codec.encode(&vector(number, dim), &mut block).expect("a finite vector");
                blocks.push(GoldenBlock {
                    codec: id.name().to_string(),
                    dim,
                    effort: effort.name().to_string(),
                    scale_mode: scale_mode.name().to_string(),
                    vector: number,
                    block: block.iter().map(|byte| format!("{byte:02x}")).collect(),
                });
            }
        }
    }
    blocks
}
