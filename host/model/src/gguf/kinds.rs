//! The number formats of tensors, as f32.

use half::{bf16, f16};

/// A format: its name, values and bytes a block, and how a block is read.
pub(super) struct Kind {
    number: u32,
    pub(super) name: &'static str,
    pub(super) block: usize,
    pub(super) bytes: usize,
    expand: fn(&[u8], &mut [f32]),
}

/// Every format that is read, by its number in files.
static KINDS: [Kind; 11] = [
    Kind {
        number: 0,
        name: "F32",
        block: 1,
        bytes: 4,
        expand: |block, out| out[0] = f32::from_le_bytes(first(block, 0)),
    },
    Kind { number: 1, name: "F16", block: 1, bytes: 2, expand: |block, out| out[0] = half(block, 0) },
    Kind {
        number: 30,
        name: "BF16",
        block: 1,
        bytes: 2,
        expand: |block, out| out[0] = bf16::from_le_bytes(first(block, 0)).to_f32(),
    },
    Kind {
        number: 2,
        name: "Q4_0",
        block: 32,
        bytes: 18,
        expand: |block, out| nibbles(&block[2..], None, |q| half(block, 0) * (q - 8.0), out),
    },
    Kind {
        number: 3,
        name: "Q4_1",
        block: 32,
        bytes: 20,
        expand: |block, out| nibbles(&block[4..], None, |q| half(block, 0) * q + half(block, 2), out),
    },
    Kind {
        number: 6,
        name: "Q5_0",
        block: 32,
        bytes: 22,
        expand: |block, out| {
            nibbles(&block[6..], Some(first(block, 2)), |q| half(block, 0) * (q - 16.0), out)
        },
    },
    Kind {
        number: 7,
        name: "Q5_1",
        block: 32,
        bytes: 24,
        expand: |block, out| {
            nibbles(&block[8..], Some(first(block, 4)), |q| half(block, 0) * q + half(block, 2), out)
        },
    },
    Kind {
        number: 8,
        name: "Q8_0",
        block: 32,
        bytes: 34,
        expand: |block, out| {
            out.iter_mut().zip(&block[2..]).for_each(|(x, &q)| *x = half(block, 0) * f32::from(q as i8));
        },
    },
    Kind {
        number: 12,
        name: "Q4_K",
        block: 256,
        bytes: 144,
        expand: |block, out| super_block(block, None, &block[16..], out),
    },
    Kind {
        number: 13,
        name: "Q5_K",
        block: 256,
        bytes: 176,
        expand: |block, out| super_block(block, Some(&block[16..48]), &block[48..], out),
    },
    Kind { number: 14, name: "Q6_K", block: 256, bytes: 210, expand: six_bits },
];

impl Kind {
    /// The format of that number.
    pub(super) fn of(number: u32) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.number == number)
    }

    /// The names of all, for messages.
    pub(super) fn names() -> String {
        KINDS.each_ref().map(|kind| kind.name).join(", ")
    }

    /// Values of whole blocks.
    pub(super) fn expand(&self, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; bytes.len() / self.bytes * self.block];
        for (block, out) in bytes.chunks_exact(self.bytes).zip(out.chunks_exact_mut(self.block)) {
            (self.expand)(block, out);
        }
        out
    }
}

fn first<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| block[at + i])
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(first(block, at)).to_f32()
}

/// 32 codes: low nibbles, then high ones, with a fifth bit each where there are some.
fn nibbles(codes: &[u8], fifth: Option<[u8; 4]>, value: impl Fn(f32) -> f32, out: &mut [f32]) {
    let fifth = fifth.map_or(0, u32::from_le_bytes);
    for (i, out) in out.iter_mut().enumerate() {
        let nibble = codes[i % 16] >> (i / 16 * 4) & 15;
        *out = value(f32::from(nibble | ((fifth >> i & 1) as u8) << 4));
    }
}

/// Scale and minimum (6 bits each) of one of eight runs of 32 in a block of 256.
fn scale_and_min(scales: &[u8], run: usize) -> [u8; 2] {
    if run < 4 {
        [scales[run] & 63, scales[run + 4] & 63]
    } else {
        let low = scales[run + 4];
        [low & 15 | scales[run - 4] >> 6 << 4, low >> 4 | scales[run] >> 6 << 4]
    }
}

/// Q4_K and Q5_K: eight runs of 32 codes, two of them in 32 bytes; fifth bits are a bit plane a run.
fn super_block(block: &[u8], fifth: Option<&[u8]>, codes: &[u8], out: &mut [f32]) {
    let (scale, min) = (half(block, 0), half(block, 2));
    for (run, out) in out.chunks_exact_mut(32).enumerate() {
        let [run_scale, run_min] = scale_and_min(&block[4..16], run);
        let (scale, min) = (scale * f32::from(run_scale), min * f32::from(run_min));
        for (i, out) in out.iter_mut().enumerate() {
            let nibble = codes[run / 2 * 32 + i] >> (run % 2 * 4) & 15;
            let high = fifth.map_or(0, |fifth| fifth[i] >> run & 1);
            *out = scale * f32::from(nibble | high << 4) - min;
        }
    }
}

/// Q6_K: low nibbles, upper bits by two, sixteen signed scales, then the scale of all.
fn six_bits(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for (i, out) in out.iter_mut().enumerate() {
        // Halves of 128 values; in each four runs of 32, which share bytes.
        let (part, run, lane) = (i / 128, i % 128 / 32, i % 32);
        let nibble = low[part * 64 + run % 2 * 32 + lane] >> (run / 2 * 4) & 15;
        let upper = high[part * 32 + lane] >> (run * 2) & 3;
        let code = i32::from(nibble | upper << 4) - 32;
        *out = scale * f32::from(scales[i / 16] as i8) * code as f32;
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
            let kind = Kind::of(row.kind).unwrap();
            assert_eq!(kind.name, row.name);
            let got = kind.expand(&bytes);
            assert_eq!(got.len(), row.values.len());
            for (i, (got, want)) in got.iter().zip(&row.values).enumerate() {
                // A product more or less is a rounding more or less.
                assert!(
                    (got - want).abs() <= 4e-7 * want.abs().max(1.0),
                    "{} value {i}: {got}, {want}",
                    kind.name
                );
            }
        }
        assert_eq!(Kind::of(0).unwrap().expand(&1.5f32.to_le_bytes()), [1.5]);
        assert!(Kind::of(16).is_none());
    }
}
