//! The layout of a codec's codes in a page, and their meaning as signed bytes: the interface between codecs
//! and page kernels.
//!
//! A [`Layout`] determines the [`LineContents`] of a page, and the rows determine the kernel that reads them
//! ([`with_kernel`]). A codec of a known layout therefore has page kernels without further code. For a new
//! layout, describe its lines in [`rows`], and the conversion between blocks and lines in [`Plan::words`] and
//! [`Plan::block`]. `f16` has no kernels here: its pages are rows of values.

use super::trellis::Planes;
use core::marker::PhantomData;
use tqkv_core::code::{Code, Layout};
use tqkv_core::unstable::Levels;
use tqkv_core::unstable::with_code;
use tqkv_core::{AnyCodec, CodecId};

/// Widest row: 1024 bytes of codes, as dwords.
pub(super) const MAX_WORDS: usize = 256;

/// Lines of codes of `BITS` bits side by side, or of columns of three lines.
pub(super) struct Packed<const BITS: usize>;

impl<const BITS: usize> Packed<BITS> {
    /// Codes per byte or per column.
    pub(super) const CODES: usize = if BITS == 3 { 8 } else { 8 / BITS };
}

/// Lines of bit planes of the codec `C`.
pub(super) struct Woven<C>(PhantomData<C>);

/// The contents of the bytes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineContents {
    /// Four neighbouring codes.
    Twos,
    /// Two neighbouring codes.
    Nibbles,
    /// Two codes of coordinates 16 apart (`q4_0`).
    SplitNibbles,
    /// One code.
    Bytes,
    /// Columns of three bytes with eight codes of 3 bits.
    Triples,
    /// Bit planes.
    Planes {
        /// Lines of a unit, or of two units that share symbols of pairs.
        depth: usize,
        /// The number of these lines that hold symbols.
        paired: usize,
        /// True if codes are side by side in a block; they are split when they enter a page.
        dense: bool,
    },
}

/// The contents of the lines of a codec, if it has page kernels.
const fn rows<C: Code>() -> Option<LineContents> {
    let (depth, paired) = (<C as Planes>::DEPTH, <C as Planes>::PAIRED);
    Some(match C::LAYOUT {
        Layout::F16 => return None,
        Layout::Dense { bits: 2 } => LineContents::Twos,
        Layout::Dense { bits: 3 } => LineContents::Triples,
        Layout::Dense { bits: 4 } => LineContents::Nibbles,
        Layout::Dense { bits: 5 } => LineContents::Planes { depth, paired, dense: true },
        Layout::Bytes | Layout::Runs { bits: 8 } => LineContents::Bytes,
        Layout::Runs { bits: 4 } => LineContents::SplitNibbles,
        Layout::Planes(_) => LineContents::Planes { depth, paired, dense: false },
        Layout::Dense { .. } | Layout::Runs { .. } => panic!("say what lines of such codes are"),
    })
}

/// Returns true if lines of a codec are bit planes.
pub(super) const fn is_woven<C: Code>() -> bool {
    matches!(rows::<C>(), Some(LineContents::Planes { .. }))
}

/// Runs `$body` with the type `$kernel` set to the reader of a plan's lines. Codecs with the same rows share
/// a kernel.
macro_rules! with_kernel {
    ($plan:expr, $kernel:ident => $body:expr) => {{
        use crate::page::plan::{Packed, LineContents, Woven, is_woven};
        macro_rules! packed {
            ($bits:literal) => {{
                type $kernel = Packed<$bits>;
                $body
            }};
        }
        match $plan.rows {
            LineContents::Twos => packed!(2),
            LineContents::Triples => packed!(3),
            LineContents::Nibbles | LineContents::SplitNibbles => packed!(4),
            LineContents::Bytes => packed!(8),
            // The condition is a constant, so kernels of other codecs are not compiled.
            LineContents::Planes { .. } => tqkv_core::unstable::with_code!($plan.id, PlaneCode => if const { is_woven::<PlaneCode>() } {
                type $kernel = Woven<PlaneCode>;
                $body
            } else {
                unreachable!("rows of planes")
            }),
        }
    }};
}
pub(super) use with_kernel;

/// A codec as the kernels see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) id: CodecId,
    pub(super) dim: usize,
    pub(super) rows: LineContents,
    /// Bytes before the first byte of a plane. It is 2 if a plane is not a whole number of dwords, else 0. In
    /// trellis codes these bytes are copies of the end of the ring, so that the ring closes at the end of a
    /// dword.
    pub(super) pad: usize,
    /// Coordinates with one scale; `runs` is the number of such runs.
    pub(super) run: usize,
    pub(super) runs: usize,
    /// The value of a code is `levels[code] * unit`. Unused at 8 bits, where codes are the levels. Shorter
    /// tables repeat, so that the bits above a code in an index do not matter.
    pub(super) levels: [i8; 64],
    pub(super) unit: f32,
    pub(super) block_bytes: usize,
}

impl Plan {
    /// The plan of a codec, if it has page kernels.
    pub(super) fn new(codec: &AnyCodec) -> Option<Self> {
        let (id, dim) = (codec.id(), codec.dim());
        let rows = with_code!(id, C => const { rows::<C>() })?;
        let run = if matches!(id.layout(), Layout::Runs { .. }) { 32 } else { dim };
        let pad = if matches!(rows, LineContents::Planes { .. }) { dim / 8 % 4 } else { 0 };
        // Tables repeat by powers of two, because indices are masked.
        let levels = match id.levels() {
            Levels::Values => return None,
            Levels::Codes(_) => core::array::from_fn(|code| (code % 16) as i8 - 8),
            Levels::LloydMax | Levels::Nested => {
                let bytes = codec.codebook()?.bytes();
                core::array::from_fn(|i| bytes[i % bytes.len()])
            }
            Levels::Trellis(trellis) => {
                let period = trellis.code.level_count().next_power_of_two();
                core::array::from_fn(|i| trellis.code.levels[i % period])
            }
        };
        let runs = dim / run;
        Some(Self {
            id,
            dim,
            rows,
            pad,
            run,
            runs,
            levels,
            unit: codec.unit(),
            block_bytes: codec.block_bytes(),
        })
    }

    /// Returns true if lines are bit planes.
    pub(super) const fn is_woven(&self) -> bool {
        matches!(self.rows, LineContents::Planes { .. })
    }

    /// Codes in one byte, or in a byte column of several lines.
    pub(super) const fn fields(&self) -> usize {
        match self.rows {
            LineContents::Bytes => 1,
            LineContents::Nibbles | LineContents::SplitNibbles => 2,
            LineContents::Twos => 4,
            LineContents::Triples | LineContents::Planes { .. } => 8,
        }
    }

    /// Number of dwords (or columns of dwords) of a tile; each is 4 bytes of codes.
    pub(super) const fn units(&self) -> usize {
        (self.dim / self.fields() + self.pad).div_ceil(4)
    }

    /// Lines of one unit, or of two units that share lines.
    pub(super) const fn depth(&self) -> usize {
        match self.rows {
            LineContents::Twos | LineContents::Nibbles | LineContents::SplitNibbles | LineContents::Bytes => {
                1
            }
            LineContents::Triples => 3,
            LineContents::Planes { depth, .. } => depth,
        }
    }

    /// Lines of the symbols of pairs.
    const fn paired(&self) -> usize {
        match self.rows {
            LineContents::Planes { paired, .. } => paired,
            LineContents::Twos
            | LineContents::Nibbles
            | LineContents::SplitNibbles
            | LineContents::Bytes
            | LineContents::Triples => 0,
        }
    }

    /// Dwords of codes of one vector.
    pub(super) const fn word_count(&self) -> usize {
        if self.paired() > 0 {
            self.units() / 2 * self.depth() + self.units() % 2 * (self.depth() - 1)
        } else {
            self.units() * self.depth()
        }
    }

    /// Coordinate of field `field` of byte `byte` of the codes. A padding byte gives an index at or above the
    /// head dim.
    pub(super) const fn coordinate(&self, byte: usize, field: usize) -> usize {
        match self.rows {
            LineContents::Twos | LineContents::Nibbles | LineContents::Bytes | LineContents::Triples => {
                byte * self.fields() + field
            }
            LineContents::SplitNibbles => byte / 16 * 32 + byte % 16 + 16 * field,
            LineContents::Planes { .. } => match byte.checked_sub(self.pad) {
                Some(byte) => byte + self.dim / 8 * field,
                None => self.dim,
            },
        }
    }

    /// Coordinates from one byte of a row to the next.
    pub(super) const fn stride(&self) -> usize {
        match self.rows {
            LineContents::Twos | LineContents::Nibbles | LineContents::Bytes | LineContents::Triples => {
                self.fields()
            }
            LineContents::SplitNibbles | LineContents::Planes { .. } => 1,
        }
    }

    /// The position of byte `i` of line `k` of a unit in the bytes of the words.
    const fn word_byte(&self, i: usize, k: usize) -> usize {
        (i / 4 * self.depth() + k) * 4 + i % 4
    }

    /// The position of byte `i` of plane `k`; planes of pairs come after the coded plane.
    const fn woven_byte(&self, i: usize, k: usize) -> usize {
        if self.paired() == 0 {
            self.word_byte(i + self.pad, k)
        } else if k > 0 {
            self.word_byte(i + self.pad / 2, k)
        } else {
            let (i, last) = (i + self.pad, self.depth() - 1);
            self.word_byte(i / 8 * 4 + i % 4, i / 4 % 2 * last)
        }
    }

    /// The planes of a trellis code: the start of each in the codes, and its number of bytes.
    fn planes(&self) -> impl Iterator<Item = (usize, usize)> {
        let n = self.dim / 8;
        let (count, bytes) = match self.paired() {
            0 => (self.depth() - 1, n),
            paired => (paired, n / 2),
        };
        core::iter::once((0, n)).chain((0..count).map(move |k| (n + k * bytes, bytes)))
    }

    /// Calls `visit` with the scale of each run of a block (f16 bits) and its code bytes in dwords.
    /// Codes that are dwords already are not copied: the copies take as long as a write to a page.
    #[inline(always)]
    pub(super) fn with_words<R>(&self, block: &[u8], visit: impl FnOnce(&[u16], &[[u8; 4]]) -> R) -> R {
        if self.runs == 1
            && matches!(self.rows, LineContents::Twos | LineContents::Nibbles | LineContents::Bytes)
            && let Some((scale, codes)) = block.split_first_chunk::<2>()
            && let (words, []) = codes.as_chunks::<4>()
        {
            return visit(&[u16::from_le_bytes(*scale)], words);
        }
        let (mut scales, mut words) = ([0; 32], [[0; 4]; MAX_WORDS]);
        self.words(block, &mut scales, &mut words);
        visit(&scales[..self.runs], &words[..self.word_count()])
    }

    /// Splits a block into the scale of each run (f16 bits) and its code bytes in dwords.
    fn words(&self, block: &[u8], scales: &mut [u16; 32], words: &mut [[u8; 4]; MAX_WORDS]) {
        let run_bytes = self.block_bytes / self.runs;
        let code_bytes = run_bytes - 2;
        let flat = words.as_flattened_mut();
        for (r, run) in block.chunks_exact(run_bytes).enumerate() {
            let Some((scale, codes)) = run.split_first_chunk::<2>() else { return };
            scales[r] = u16::from_le_bytes(*scale);
            match self.rows {
                LineContents::Planes { dense: true, depth, .. } => self.slice(depth, codes, flat),
                LineContents::Planes { .. } => self.weave(codes, flat),
                LineContents::Triples => {
                    for (i, eight) in codes.as_chunks::<3>().0.iter().enumerate() {
                        let column = to_column(*eight);
                        for (k, byte) in column.into_iter().enumerate() {
                            flat[self.word_byte(i, k)] = byte;
                        }
                    }
                }
                LineContents::Twos
                | LineContents::Nibbles
                | LineContents::SplitNibbles
                | LineContents::Bytes => {
                    flat[r * code_bytes..][..code_bytes].copy_from_slice(codes);
                }
            }
        }
    }

    /// The inverse of [`Plan::words`].
    pub(super) fn block(&self, scales: &[u16; 32], words: &[[u8; 4]; MAX_WORDS], block: &mut [u8]) {
        let run_bytes = self.block_bytes / self.runs;
        let code_bytes = run_bytes - 2;
        let flat = words.as_flattened();
        for (r, run) in block.chunks_exact_mut(run_bytes).enumerate() {
            let Some((scale, codes)) = run.split_first_chunk_mut::<2>() else { return };
            *scale = scales[r].to_le_bytes();
            match self.rows {
                LineContents::Planes { dense: true, depth, .. } => self.unslice(depth, flat, codes),
                LineContents::Planes { .. } => self.unweave(flat, codes),
                LineContents::Triples => {
                    for (i, eight) in codes.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                        *eight = from_column(core::array::from_fn(|k| flat[self.word_byte(i, k)]));
                    }
                }
                LineContents::Twos
                | LineContents::Nibbles
                | LineContents::SplitNibbles
                | LineContents::Bytes => {
                    codes.copy_from_slice(&flat[r * code_bytes..][..code_bytes]);
                }
            }
        }
    }

    /// Copies the planes of a block to those of a page.
    fn weave(&self, codes: &[u8], flat: &mut [u8]) {
        for (k, (first, len)) in self.planes().enumerate() {
            for (i, &byte) in codes[first..first + len].iter().enumerate() {
                flat[self.woven_byte(i, k)] = byte;
            }
        }
        let n = self.dim / 8;
        for (i, copy) in flat[..self.pad].iter_mut().enumerate() {
            *copy = codes[n - self.pad + i].rotate_left(1);
        }
    }

    /// The inverse of [`Plan::weave`].
    fn unweave(&self, flat: &[u8], codes: &mut [u8]) {
        for (k, (first, len)) in self.planes().enumerate() {
            for (i, byte) in codes[first..first + len].iter_mut().enumerate() {
                *byte = flat[self.woven_byte(i, k)];
            }
        }
    }

    /// Splits dense codes of `bits` bits into planes.
    fn slice(&self, bits: usize, codes: &[u8], flat: &mut [u8]) {
        let n = self.dim / 8;
        for i in 0..n {
            let eight = core::array::from_fn(|field| {
                let (at, shift) = dense_place(bits, i + n * field);
                (u16::from_le_bytes([codes[at], codes.get(at + 1).copied().unwrap_or(0)]) >> shift) as u8
            });
            for (k, plane) in transpose(eight).into_iter().enumerate().take(bits) {
                flat[self.woven_byte(i, k)] = plane;
            }
        }
    }

    /// The inverse of [`Plan::slice`].
    fn unslice(&self, bits: usize, flat: &[u8], codes: &mut [u8]) {
        let n = self.dim / 8;
        codes.fill(0);
        for i in 0..n {
            let planes = core::array::from_fn(|k| if k < bits { flat[self.woven_byte(i, k)] } else { 0 });
            for (field, code) in transpose(planes).into_iter().enumerate() {
                let (at, shift) = dense_place(bits, i + n * field);
                let [low, high] = (u16::from(code) << shift).to_le_bytes();
                codes[at] |= low;
                if high != 0 {
                    codes[at + 1] |= high;
                }
            }
        }
    }
}

/// The byte and the bit at which code `t` of dense codes of `bits` bits begins.
const fn dense_place(bits: usize, t: usize) -> (usize, usize) {
    (t * bits / 8, t * bits % 8)
}

/// Bit i of byte k becomes bit k of byte i, by three swaps: of bits, of pairs and of nibbles. It is its own
/// inverse.
const fn transpose(bytes: [u8; 8]) -> [u8; 8] {
    let mut x = u64::from_le_bytes(bytes);
    let mut swap = (x ^ (x >> 7)) & 0x00aa_00aa_00aa_00aa;
    x ^= swap ^ (swap << 7);
    swap = (x ^ (x >> 14)) & 0x0000_cccc_0000_cccc;
    x ^= swap ^ (swap << 14);
    swap = (x ^ (x >> 28)) & 0x0000_0000_f0f0_f0f0;
    x ^= swap ^ (swap << 28);
    x.to_le_bytes()
}

/// Stores eight dense 3-bit codes as a column of three bytes:
///
/// * codes 0, 1 and the low bits of 6;
/// * codes 2, 3 and the low bits of 7;
/// * codes 4, 5 and the high bits of 6 and 7.
///
/// Reading two codes of a byte then takes a shift. The split codes take a shift and a select.
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
