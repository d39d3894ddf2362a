//! How the codes of a codec lie in a block and what they mean as signed bytes: the seam between
//! codecs and page kernels.
//!
//! To give another codec page kernels, describe it here (if its codes are look-ups of at most 16
//! levels) or turn its block into such codes in [`Plan::words`] and back in [`Plan::block`].
//! Codecs without a plan (`s5`, `f16`) are served elsewhere.

use super::trellis;
use tqkv_core::{AnyCodec, CodecId, Family};

/// Widest row: 1024 bytes of codes, as dwords.
pub(super) const MAX_WORDS: usize = 256;

/// A codec, as the kernels see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) dim: usize,
    /// Bits of a code: 1, 2, 3, 4 or 8; of a trellis code all bits of a coordinate.
    pub(super) bits: usize,
    /// The trellis, where codes are bit planes.
    pub(super) trellis: Option<CodecId>,
    /// Lines of a unit, and those of them that hold symbols of pairs; of trellis codes.
    woven: [usize; 2],
    /// Bytes before the first of a plane of a trellis code, copies of the end of the ring: 2 where a plane is no
    /// whole number of dwords, so that the ring closes at the end of one; else 0.
    pub(super) pad: usize,
    /// Coordinates under one scale.
    pub(super) run: usize,
    /// Value of a code: `levels[code] * unit`; unused at 8 bits, where codes are the levels. Shorter
    /// tables repeat, so that a look-up may see junk above the code.
    pub(super) levels: [i8; 64],
    pub(super) unit: f32,
    /// Both nibbles of a byte are 16 coordinates apart (`q4_0`), not neighbours.
    pub(super) split_nibbles: bool,
    pub(super) block_bytes: usize,
}

impl Plan {
    /// The plan of a codec, where there is one.
    pub(super) fn new(codec: &AnyCodec) -> Option<Self> {
        let (id, dim) = (codec.id(), codec.dim());
        let bits = id.bits() as usize;
        let mut plan = Self {
            dim,
            bits,
            trellis: None,
            woven: [0; 2],
            pad: 0,
            run: dim,
            levels: [0; 64],
            unit: 1.0,
            split_nibbles: false,
            block_bytes: codec.block_bytes(),
        };
        match id.family() {
            Family::Half => return None,
            Family::Int8 => plan.unit = 1.0 / 32.0,
            Family::Scalar | Family::Nested => {
                let book = codec.codebook().filter(|_| id != CodecId::S5)?;
                // Tables repeat, as look-ups may see junk above the code.
                let bytes = book.bytes();
                plan.levels = core::array::from_fn(|i| bytes[i % bytes.len()]);
                plan.unit = book.unit();
            }
            Family::Ggml => {
                plan.run = 32;
                if bits == 4 {
                    plan.split_nibbles = true;
                    plan.levels = core::array::from_fn(|code| (code % 16) as i8 - 8);
                }
            }
            Family::Trellis => {
                let code = codec.trellis()?.code;
                plan.trellis = Some(id);
                plan.pad = dim / 8 % 4;
                plan.woven = [trellis::depth(&code), trellis::paired(&code)];
                // Tables repeat by powers of two, as indices are masked.
                let period = code.level_count().next_power_of_two();
                plan.levels = core::array::from_fn(|i| code.levels[i % period]);
                plan.unit = code.unit();
            }
        }
        Some(plan)
    }

    /// Codes in one byte (or, at 3 bits and in trellis codes, in a byte column of several lines).
    pub(super) const fn fields(&self) -> usize {
        if self.bits == 3 || self.trellis.is_some() { 8 } else { 8 / self.bits }
    }

    /// Dwords (or columns of three dwords) that a tile's lines step through: 4 bytes of codes.
    pub(super) const fn units(&self) -> usize {
        if self.trellis.is_some() {
            (self.dim / 8 + self.pad) / 4
        } else {
            self.dim.div_ceil(4 * self.fields())
        }
    }

    /// Lines of one unit, or of two that share lines.
    pub(super) const fn depth(&self) -> usize {
        if self.trellis.is_some() {
            self.woven[0]
        } else if self.bits == 3 {
            3
        } else {
            1
        }
    }

    /// Dwords of codes of one vector.
    pub(super) const fn word_count(&self) -> usize {
        if self.woven[1] > 0 {
            self.units() / 2 * self.depth() + self.units() % 2 * (self.depth() - 1)
        } else {
            self.units() * self.depth()
        }
    }

    /// Runs of coordinates with a scale of their own.
    pub(super) const fn runs(&self) -> usize {
        self.dim / self.run
    }

    /// Coordinate of field `field` of byte `byte` of the codes; not below the head dim where the byte is none of
    /// a coordinate's.
    pub(super) const fn coordinate(&self, byte: usize, field: usize) -> usize {
        if self.trellis.is_some() {
            match byte.checked_sub(self.pad) {
                Some(byte) => byte + self.dim / 8 * field,
                None => self.dim,
            }
        } else if self.split_nibbles {
            byte / 16 * 32 + byte % 16 + 16 * field
        } else {
            byte * self.fields() + field
        }
    }

    /// Coordinates from one byte of a row to the next.
    pub(super) const fn stride(&self) -> usize {
        if self.split_nibbles || self.trellis.is_some() { 1 } else { self.fields() }
    }

    /// Where byte `i` of line `k` of a unit's depth is in the bytes of the words.
    const fn word_byte(&self, i: usize, k: usize) -> usize {
        (i / 4 * self.depth() + k) * 4 + i % 4
    }

    /// The same of byte `i` of plane `k` of a trellis code; planes of pairs come after the coded one.
    const fn woven_byte(&self, i: usize, k: usize) -> usize {
        if self.woven[1] == 0 {
            self.word_byte(i + self.pad, k)
        } else if k > 0 {
            self.word_byte(i + self.pad / 2, k)
        } else {
            let (i, last) = (i + self.pad, self.depth() - 1);
            self.word_byte(i / 8 * 4 + i % 4, i / 4 % 2 * last)
        }
    }

    /// The planes of a trellis code: where each begins in the codes, and its bytes.
    fn planes(&self) -> impl Iterator<Item = (usize, usize)> {
        let n = self.dim / 8;
        let (count, bytes) = match self.woven {
            [depth, 0] => (depth - 1, n),
            [_, paired] => (paired, n / 2),
        };
        core::iter::once((0, n)).chain((0..count).map(move |k| (n + k * bytes, bytes)))
    }

    /// Takes a block apart: scale of each run (f16 bits), and code bytes in dwords.
    pub(super) fn words(&self, block: &[u8], scales: &mut [u16; 32], words: &mut [[u8; 4]; MAX_WORDS]) {
        let run_bytes = self.block_bytes / self.runs();
        let code_bytes = run_bytes - 2;
        let flat = words.as_flattened_mut();
        for (r, run) in block.chunks_exact(run_bytes).enumerate() {
            let Some((scale, codes)) = run.split_first_chunk::<2>() else { return };
            scales[r] = u16::from_le_bytes(*scale);
            if self.trellis.is_some() {
                for (k, (first, len)) in self.planes().enumerate() {
                    for (i, &byte) in codes[first..first + len].iter().enumerate() {
                        flat[self.woven_byte(i, k)] = byte;
                    }
                }
                let n = self.dim / 8;
                for (i, copy) in flat[..self.pad].iter_mut().enumerate() {
                    *copy = codes[n - self.pad + i].rotate_left(1);
                }
            } else if self.bits == 3 {
                for (i, eight) in codes.as_chunks::<3>().0.iter().enumerate() {
                    let column = to_column(*eight);
                    for (k, byte) in column.into_iter().enumerate() {
                        flat[self.word_byte(i, k)] = byte;
                    }
                }
            } else {
                flat[r * code_bytes..][..code_bytes].copy_from_slice(codes);
            }
        }
    }

    /// The inverse of [`Plan::words`].
    pub(super) fn block(&self, scales: &[u16; 32], words: &[[u8; 4]; MAX_WORDS], block: &mut [u8]) {
        let run_bytes = self.block_bytes / self.runs();
        let code_bytes = run_bytes - 2;
        let flat = words.as_flattened();
        for (r, run) in block.chunks_exact_mut(run_bytes).enumerate() {
            let Some((scale, codes)) = run.split_first_chunk_mut::<2>() else { return };
            *scale = scales[r].to_le_bytes();
            if self.trellis.is_some() {
                for (k, (first, len)) in self.planes().enumerate() {
                    for (i, byte) in codes[first..first + len].iter_mut().enumerate() {
                        *byte = flat[self.woven_byte(i, k)];
                    }
                }
            } else if self.bits == 3 {
                for (i, eight) in codes.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                    *eight = from_column(core::array::from_fn(|k| flat[self.word_byte(i, k)]));
                }
            } else {
                codes.copy_from_slice(&flat[r * code_bytes..][..code_bytes]);
            }
        }
    }
}

/// Eight dense 3-bit codes as a column of three bytes: codes 0, 1 and the low bits of 6; codes 2,
/// 3 and the low bits of 7; codes 4, 5 and the high bits of 6 and 7. Two codes a byte are then a
/// shift away, and the split ones a shift and a select.
fn to_column([a, b, c]: [u8; 3]) -> [u8; 3] {
    let x = u32::from_le_bytes([a, b, c, 0]);
    let column = [
        (x & 0x3f) | (x >> 18 & 3) << 6,
        (x >> 6 & 0x3f) | (x >> 21 & 3) << 6,
        (x >> 12 & 0x3f) | (x >> 20 & 1) << 6 | (x >> 23 & 1) << 7,
    ];
    column.map(|byte| byte as u8)
}

/// The inverse of [`to_column`].
fn from_column(column: [u8; 3]) -> [u8; 3] {
    let [a, b, c] = column.map(u32::from);
    let x = (a & 0x3f)
        | (b & 0x3f) << 6
        | (c & 0x3f) << 12
        | (a >> 6) << 18
        | (c >> 6 & 1) << 20
        | (b >> 6) << 21
        | (c >> 7) << 23;
    let [a, b, c, _] = x.to_le_bytes();
    [a, b, c]
}
