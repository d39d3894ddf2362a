//! The numbers in rows of keys and values: ggml's types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::{Level, codec};

/// A type of ggml that a KV cache of llama.cpp may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// `GGML_TYPE_F32`.
    F32,
    /// `GGML_TYPE_F16`.
    F16,
    /// `GGML_TYPE_BF16`.
    Bf16,
    /// `GGML_TYPE_Q8_0`.
    Q8_0,
    /// `GGML_TYPE_Q4_0`.
    Q4_0,
    /// `GGML_TYPE_Q4_1`, which stays as it is.
    Q4_1,
    /// `GGML_TYPE_Q5_0`, which stays as it is.
    Q5_0,
    /// `GGML_TYPE_Q5_1`, which stays as it is.
    Q5_1,
    /// `GGML_TYPE_IQ4_NL`, which stays as it is.
    Iq4Nl,
}

use Numbers::{Bf16, F16, F32, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

/// Type, number in ggml, name, values per block, bytes per block.
const TYPES: [(Numbers, u32, &str, u64, u64); 9] = [
    (F32, 0, "f32", 1, 4),
    (F16, 1, "f16", 1, 2),
    (Q4_0, 2, "q4_0", 32, 18),
    (Q4_1, 3, "q4_1", 32, 20),
    (Q5_0, 6, "q5_0", 32, 22),
    (Q5_1, 7, "q5_1", 32, 24),
    (Q8_0, 8, "q8_0", 32, 34),
    (Iq4Nl, 20, "iq4_nl", 32, 18),
    (Bf16, 30, "bf16", 1, 2),
];

impl Numbers {
    pub(crate) fn from_ggml(number: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    fn row(self) -> (Self, u32, &'static str, u64, u64) {
        TYPES.into_iter().find(|row| row.0 == self).unwrap_or(TYPES[0])
    }

    pub(crate) fn ggml(self) -> u32 {
        self.row().1
    }

    /// The name that llama.cpp's options have for it.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Bytes of `values` numbers; `None` where they are no whole number of blocks, or too many.
    pub fn bytes(self, values: u64) -> Option<u64> {
        let (.., block, bytes) = self.row();
        values.is_multiple_of(block).then(|| (values / block).checked_mul(bytes)).flatten()
    }

    /// Numbers in `row_bytes` bytes; `None` where they are no whole number of blocks, or too many.
    pub fn values(self, row_bytes: u64) -> Option<u64> {
        let (.., block, bytes) = self.row();
        row_bytes.is_multiple_of(bytes).then(|| (row_bytes / bytes).checked_mul(block)).flatten()
    }

    /// True if rows of it can be coded.
    pub fn is_coded(self) -> bool {
        matches!(self, F32 | F16 | Bf16 | Q8_0 | Q4_0)
    }

    /// Bytes of one number whose bytes are compressed plane by plane: 1 where there are no planes.
    pub(crate) fn plane_bytes(self) -> u8 {
        match self {
            F32 => 4,
            F16 | Bf16 => 2,
            _ => 1,
        }
    }
}

/// Turns rows into f32 and back. A quantised type is a codec of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cast {
    numbers: Numbers,
    blocks: Option<AnyCodec>,
}

impl Cast {
    /// `None` for types that are not coded, or heads that are no whole number of the type's blocks.
    pub(crate) fn new(numbers: Numbers, head_dim: usize) -> Option<Self> {
        let id = match numbers {
            F32 | F16 | Bf16 => return Some(Self { numbers, blocks: None }),
            Q8_0 => CodecId::Q8_0,
            Q4_0 => CodecId::Q4_0,
            Q4_1 | Q5_0 | Q5_1 | Iq4Nl => return None,
        };
        let blocks = AnyCodec::new(id, head_dim, Options::DEFAULT).ok()?;
        Some(Self { numbers, blocks: Some(blocks) })
    }

    /// Rows as f32; NaN where a block cannot be decoded.
    pub(crate) fn to_f32(self, level: Level, bytes: &[u8], out: &mut [f32]) {
        match (self.numbers, &self.blocks) {
            (_, Some(blocks)) => {
                if codec::decode(level, blocks, bytes, out).is_err() {
                    out.fill(f32::NAN);
                }
            }
            (F32, _) => each(bytes, out, f32::from_le_bytes),
            (Bf16, _) => each(bytes, out, |raw| bf16::from_le_bytes(raw).to_f32()),
            _ => halves_to_f32(bytes, out),
        }
    }

    /// The bytes of f32 values: to nearest, within the type's finite range. False where they do not fit.
    pub(crate) fn to_bytes(self, level: Level, values: &[f32], out: &mut [u8]) -> bool {
        match (self.numbers, &self.blocks) {
            (_, Some(blocks)) => return codec::encode(level, blocks, values, out).is_ok(),
            (F32, _) => put(values, out, f32::to_le_bytes),
            (Bf16, _) => put(values, out, |x| bf16::from_f32(x).to_le_bytes()),
            _ => f32_to_halves(values, out),
        }
        true
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, raw)| *out = number(*raw));
}

fn put<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, x)| *out = bytes(*x));
}

/// f16 numbers that are converted at once, by the processor's instructions where it has them.
const RUN: usize = 64;

fn halves_to_f32(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; RUN];
    for (raw, out) in bytes.chunks(2 * RUN).zip(out.chunks_mut(RUN)) {
        let halves = &mut halves[..out.len()];
        halves.iter_mut().zip(raw.as_chunks().0).for_each(|(half, raw)| *half = f16::from_le_bytes(*raw));
        halves.convert_to_f32_slice(out);
    }
}

fn f32_to_halves(values: &[f32], out: &mut [u8]) {
    let most = f16::MAX.to_f32();
    let (mut within, mut halves) = ([0.0; RUN], [f16::ZERO; RUN]);
    for (values, out) in values.chunks(RUN).zip(out.chunks_mut(2 * RUN)) {
        let (within, halves) = (&mut within[..values.len()], &mut halves[..values.len()]);
        within.iter_mut().zip(values).for_each(|(to, x)| *to = x.clamp(-most, most));
        halves.convert_from_f32_slice(within);
        out.as_chunks_mut().0.iter_mut().zip(&*halves).for_each(|(out, half)| *out = half.to_le_bytes());
    }
}
