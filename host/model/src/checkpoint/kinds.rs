//! The number formats of tensors, and their conversion to f32.

use std::sync::LazyLock;

use half::{bf16, f16};
use tqkv_simd::Level;
use tqkv_simd::page::widen_rows;

/// A format: its name, values and bytes per block, and the function that decodes whole blocks.
#[derive(Debug)]
pub(crate) struct NumberKind {
    pub(crate) name: &'static str,
    pub(crate) block: usize,
    pub(crate) bytes: usize,
    /// The number of the format in GGUF files.
    number: u32,
    expand: fn(&[u8], &mut [f32]),
}

/// Little-endian.
pub(crate) static F32: NumberKind =
    kind("F32", 0, 1, 4, |bytes, out| blocks(bytes, out, |b, [x]| *x = f32::from_le_bytes(*b)));

/// All formats that are read.
static KINDS: [&NumberKind; 11] = [
    &F32,
    &kind("F16", 1, 1, 2, halves),
    &kind("BF16", 30, 1, 2, |bytes, out| blocks(bytes, out, |b, [x]| *x = bf16::from_le_bytes(*b).to_f32())),
    &kind("Q4_0", 2, 32, 18, |bytes, out| {
        blocks::<18, 32>(bytes, out, |block, out| {
            let scale = half(block, 0);
            nibbles(part(block, 2), out, |_, code| scale * (f32::from(code) - 8.0));
        });
    }),
    &kind("Q4_1", 3, 32, 20, |bytes, out| {
        blocks::<20, 32>(bytes, out, |block, out| {
            let (scale, min) = (half(block, 0), half(block, 2));
            nibbles(part(block, 4), out, |_, code| scale * f32::from(code) + min);
        });
    }),
    &kind("Q5_0", 6, 32, 22, |bytes, out| {
        blocks::<22, 32>(bytes, out, |block, out| {
            let (scale, fifth) = (half(block, 0), u32::from_le_bytes(part(block, 2)));
            nibbles(part(block, 6), out, |i, code| scale * (f32::from(code | bit(fifth, i) << 4) - 16.0));
        });
    }),
    &kind("Q5_1", 7, 32, 24, |bytes, out| {
        blocks::<24, 32>(bytes, out, |block, out| {
            let (scale, min, fifth) = (half(block, 0), half(block, 2), u32::from_le_bytes(part(block, 4)));
            nibbles(part(block, 8), out, |i, code| scale * f32::from(code | bit(fifth, i) << 4) + min);
        });
    }),
    &kind("Q8_0", 8, 32, 34, |bytes, out| {
        blocks::<34, 32>(bytes, out, |block, out| {
            let scale = half(block, 0);
            let codes: [u8; 32] = part(block, 2);
            out.iter_mut().zip(codes).for_each(|(x, code)| *x = scale * f32::from(code as i8));
        });
    }),
    &kind("Q4_K", 12, 256, 144, |bytes, out| {
        blocks::<144, 256>(bytes, out, |block, out| super_block(block, [0; 32], &part(block, 16), out));
    }),
    &kind("Q5_K", 13, 256, 176, |bytes, out| {
        blocks::<176, 256>(bytes, out, |block, out| {
            super_block(block, part(block, 16), &part(block, 48), out)
        });
    }),
    &kind("Q6_K", 14, 256, 210, |bytes, out| blocks(bytes, out, six_bits)),
];

const fn kind(
    name: &'static str,
    number: u32,
    block: usize,
    bytes: usize,
    expand: fn(&[u8], &mut [f32]),
) -> NumberKind {
    NumberKind { name, block, bytes, number, expand }
}

impl NumberKind {
    /// The format with this number in GGUF files.
    pub(crate) fn numbered(number: u32) -> Option<&'static Self> {
        KINDS.into_iter().find(|kind| kind.number == number)
    }

    /// The format with this name. Safetensors files have the first three.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KINDS.into_iter().find(|kind| kind.name == name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        KINDS.map(|kind| kind.name).join(", ")
    }

    /// Decodes whole blocks to values.
    pub(crate) fn expand(&self, bytes: &[u8], out: &mut [f32]) {
        (self.expand)(bytes, out);
    }
}

/// Decodes block by block. The lengths are constants, so the compiler can use wide registers.
fn blocks<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    expand: impl Fn(&[u8; BYTES], &mut [f32; VALUES]),
) {
    let (from, to) = (bytes.as_chunks().0, out.as_chunks_mut().0);
    from.iter().zip(to).for_each(|(block, out)| expand(block, out));
}

/// Decodes f16 values. Aligned values use the machine's kernel, and files written by libraries are aligned.
fn halves(bytes: &[u8], out: &mut [f32]) {
    static LEVEL: LazyLock<Level> = LazyLock::new(Level::fastest);
    match bytemuck::try_cast_slice(bytes) {
        // The kernel needs full registers.
        Ok(rows)
            if cfg!(target_endian = "little") && out.len().is_multiple_of(16) && rows.len() == out.len() =>
        {
            widen_rows(*LEVEL, rows, out);
        }
        _ => blocks(bytes, out, |bytes, [x]| *x = f16::from_le_bytes(*bytes).to_f32()),
    }
}

fn part<const FROM: usize, const N: usize>(block: &[u8; FROM], at: usize) -> [u8; N] {
    std::array::from_fn(|i| block[at + i])
}

fn half<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f16::from_le_bytes(part(block, at)).to_f32()
}

fn bit(bits: u32, index: usize) -> u8 {
    (bits >> index & 1) as u8
}

/// Decodes 32 codes: first the low nibbles, then the high ones.
fn nibbles(codes: [u8; 16], out: &mut [f32; 32], value: impl Fn(usize, u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (i, ((low, high), code)) in low.iter_mut().zip(high).zip(codes).enumerate() {
        *low = value(i, code & 15);
        *high = value(i + 16, code >> 4);
    }
}

/// Scale and minimum (6 bits each) of one of eight runs of 32 values in a block of 256.
fn scale_and_min(scales: [u8; 12], run: usize) -> [u8; 2] {
    if run < 4 {
        [scales[run] & 63, scales[run + 4] & 63]
    } else {
        let low = scales[run + 4];
        [low & 15 | scales[run - 4] >> 6 << 4, low >> 4 | scales[run] >> 6 << 4]
    }
}

/// Q4_K and Q5_K: eight runs of 32 codes, two runs in 32 bytes. The fifth bits form one bit plane per run.
fn super_block<const N: usize>(block: &[u8; N], fifth: [u8; 32], codes: &[u8; 128], out: &mut [f32; 256]) {
    let (scale, min, scales) = (half(block, 0), half(block, 2), part(block, 4));
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let [run_scale, run_min] = scale_and_min(scales, run);
        let (scale, min) = (scale * f32::from(run_scale), min * f32::from(run_min));
        let codes: [u8; 32] = part(codes, run / 2 * 32);
        for ((out, code), fifth) in out.iter_mut().zip(codes).zip(fifth) {
            let nibble = code >> (run % 2 * 4) & 15;
            *out = scale * f32::from(nibble | (fifth >> run & 1) << 4) - min;
        }
    }
}

/// Q6_K: low nibbles, upper bits in pairs, sixteen signed scales, then the scale of the block.
fn six_bits(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half(block, 208);
    // A block has two halves of 128 values. Each half has four runs of 32, which share bytes.
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, run) = (i / 4, i % 4);
        let low: [u8; 32] = part(block, half * 64 + run % 2 * 32);
        let high: [u8; 32] = part(block, 128 + half * 32);
        let scales = [0, 1].map(|part| scale * f32::from(block[192 + 2 * i + part] as i8));
        for (lane, out) in out.iter_mut().enumerate() {
            let code = low[lane] >> (run / 2 * 4) & 15 | (high[lane] >> (run * 2) & 3) << 4;
            *out = scales[lane / 16] * (f32::from(code) - 32.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        kind: u32,
        name: String,
        bytes: String,
        values: Vec<f32>,
    }

    /// The files come from `tests/reference/gguf_blocks.py`.
    #[test]
    fn blocks_have_the_values_that_their_makers_give_them() {
        let golden = include_str!("../../tests/golden/gguf_blocks.json");
        let golden: Vec<Golden> = serde_json::from_str(golden).unwrap();
        assert_eq!(golden.len() + 1, KINDS.len(), "all but F32");
        for row in golden {
            let hex = row.bytes.as_bytes().chunks_exact(2);
            let bytes: Vec<u8> =
                hex.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect();
            let kind = NumberKind::numbered(row.kind).unwrap();
            assert_eq!(kind.name, row.name);
            assert_eq!(row.values.len() / kind.block * kind.bytes, bytes.len());
            let mut got = vec![f32::NAN; row.values.len()];
            kind.expand(&bytes, &mut got);
            for (i, (got, want)) in got.iter().zip(&row.values).enumerate() {
                // The order of products may differ by one rounding.
                assert!(
                    (got - want).abs() <= 4e-7 * want.abs().max(1.0),
                    "{} value {i}: {got}, {want}",
                    kind.name
                );
            }
        }
        let mut one = [0.0];
        F32.expand(&1.5f32.to_le_bytes(), &mut one);
        assert_eq!(one, [1.5]);
        assert!(NumberKind::numbered(16).is_none());
    }
}
