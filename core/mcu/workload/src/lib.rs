//! The work of every target: fixed inputs, and one CRC over all results.
#![no_std]

pub mod lm;
pub mod worst;

use tqkv_core::code::{Code, I8, N2, N4, S2, S3, S4, T1, T2, T2H, T2S8, T3, T4};
use tqkv_core::fixed::{
    Attention, ExactTokens, FixedCodec, FixedQuery, FixedTrellis, Kernels, RingCache, Sample,
    TrellisWorkspace,
};

/// The measured kernels: the fastest of the machine.
#[cfg(all(dsp, feature = "helium"))]
pub type Fastest = tqkv_simd::Helium;
/// The measured kernels: the fastest of the machine.
#[cfg(all(dsp, not(feature = "helium")))]
pub type Fastest = tqkv_simd::Dsp;
/// The measured kernels: the fastest of the machine.
#[cfg(not(dsp))]
pub type Fastest = tqkv_core::Portable;
/// The token of the measured kernels.
#[cfg(dsp)]
pub const FASTEST: Fastest = {
    // SAFETY: the emulated Cortex-M4, M33 and M55 have the extensions for which their images are built.
    // Unaligned words are allowed after a reset.
    unsafe { Fastest::assume_supported() }
};
/// The token of the measured kernels.
#[cfg(not(dsp))]
pub const FASTEST: Fastest = tqkv_core::Portable;
/// The measured codec, in flash.
pub static CODEC: FixedCodec<128, S4, Fastest> = FixedCodec::DEFAULT.with_kernels(FASTEST);
/// Bytes per block of the measured codec.
pub const BLOCK: usize = FixedCodec::<128, S4>::BLOCK_BYTES;
/// The measured trellis codec, in flash.
pub static TRELLIS: FixedTrellis<128, T2S8, Fastest> = FixedTrellis::DEFAULT.with_kernels(FASTEST);
/// Bytes per block of the measured trellis codec.
pub const TRELLIS_BLOCK: usize = FixedTrellis::<128, T2S8>::BLOCK_BYTES;
/// A trellis codec that only decodes.
pub static DECODER: FixedTrellis<128, T2> = FixedTrellis::DEFAULT;
/// The exponent of Q15 samples.
pub const EXPONENT: i32 = -15;
/// The block of `vector(1)`: every target must produce these bytes.
pub const GOLDEN: [u8; BLOCK] = [
    28, 63, 183, 92, 212, 119, 167, 105, 203, 39, 109, 60, 164, 149, 74, 203, 136, 148, 183, 110, 109, 157,
    147, 141, 86, 236, 220, 85, 90, 107, 139, 120, 97, 205, 134, 188, 83, 120, 71, 148, 146, 60, 53, 123, 69,
    150, 47, 54, 121, 149, 150, 215, 152, 110, 89, 134, 149, 147, 184, 161, 184, 40, 199, 156, 8, 161,
];
/// The same block, encoded on this machine.
pub fn golden() -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let _ = FixedCodec::<128, S4>::DEFAULT.encode(&vector(1), EXPONENT, &mut block);
    block
}

/// Tokens of the measured attention.
pub const TOKENS: usize = 64;

/// Approximately normal samples, the same on every machine.
pub fn vector<const D: usize>(seed: u32) -> [i16; D] {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 19) as i16 - 4096
    };
    core::array::from_fn(|_| next() + next() + next() + next())
}

/// CRC-32 (IEEE), bit by bit.
#[derive(Clone, Copy)]
pub struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc {
    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 ^= u32::from(byte);
            for _ in 0..8 {
                self.0 = (self.0 >> 1) ^ if self.0 & 1 != 0 { 0xedb8_8320 } else { 0 };
            }
        }
    }

    /// Adds samples, little-endian.
    pub fn samples(&mut self, samples: &[i16]) {
        for sample in samples {
            self.bytes(&sample.to_le_bytes());
        }
    }

    /// The checksum.
    pub fn value(self) -> u32 {
        !self.0
    }
}

/// Adds blocks, decoded samples and scores of one codec.
fn codec<const D: usize, C: Code, const N: usize>(kernels: impl Kernels, crc: &mut Crc) {
    let codec = FixedCodec::<D, C>::DEFAULT.with_kernels(kernels);
    let query: FixedQuery<D> = codec.query(&vector(1000), -12);
    let mut sum = Attention::<D>::new();
    for seed in 0..8 {
        let mut x: [i16; D] = vector(seed);
        match seed {
            5 => x = [i16::MIN; D],
            6 => x = [0; D],
            7 => x = x.map(|v| v >> 10),
            _ => {}
        }
        let (mut block, mut back) = ([0; N], [0; D]);
        crc.bytes(&[codec.encode(&x, EXPONENT, &mut block).is_ok() as u8]);
        crc.bytes(&block);
        crc.bytes(&[codec.decode(&block, EXPONENT, &mut back).is_ok() as u8]);
        crc.samples(&back);
        let score = codec.score(&query, &block).unwrap_or(i32::MIN);
        crc.bytes(&score.to_le_bytes());
        crc.bytes(&[sum.add(&codec, score, &block).is_ok() as u8]);
        let narrow: [i8; D] = core::array::from_fn(|i| (x[i] >> 8) as i8);
        crc.bytes(&[codec.encode(&narrow, -7, &mut block).is_ok() as u8]);
        crc.bytes(&block);
    }
    let mut out = [0; D];
    sum.finish(&codec, EXPONENT, &mut out);
    crc.samples(&out);
}

/// Adds the results of a ring that overflows twice, with attention after every push.
fn ring<K: Code, V: Code>(kernels: impl Kernels, crc: &mut Crc) {
    let keys = FixedCodec::<64, K>::DEFAULT.with_kernels(kernels);
    let values = FixedCodec::<64, V>::DEFAULT.with_kernels(kernels);
    let mut memory = [0; RingCache::<64, S4, S3>::bytes_for(12)];
    let memory = memory.get_mut(..RingCache::<64, K, V>::bytes_for(12)).unwrap_or_default();
    let mut ring = RingCache::new(&keys, &values, memory, 2);
    for token in 0..30 {
        let pushed = ring.push(&vector(token), EXPONENT, &vector(token + 50), EXPONENT);
        let mut out = [0; 64];
        let attended = ring.attend(&vector(token + 100), -13, EXPONENT, &mut out);
        crc.bytes(&[pushed.is_ok() as u8, attended.is_ok() as u8, ring.len() as u8]);
        crc.samples(&out);
    }
}

/// Adds the results of a ring with exact tokens that overflows, with attention after every push.
fn tiers<K: Code, V: Code, X: Sample>(kernels: impl Kernels, crc: &mut Crc) {
    let keys = FixedCodec::<64, K>::DEFAULT.with_kernels(kernels);
    let values = FixedCodec::<64, V>::DEFAULT.with_kernels(kernels);
    let mut memory = [0; RingCache::<64, S4, S3>::bytes_for(5)];
    let memory = memory.get_mut(..RingCache::<64, K, V>::bytes_for(5)).unwrap_or_default();
    let mut exact = ExactTokens::<64, X, 2, 3>::new();
    let mut ring = RingCache::new(&keys, &values, memory, 0).with_exact(&mut exact);
    for token in 0..24 {
        let value: [i16; 64] = vector(token + 50);
        let value = if token % 4 == 1 { value.map(|v| v >> 9) } else { value };
        let pushed = ring.push(&vector(token), EXPONENT, &value, EXPONENT);
        let mut out = [0; 64];
        let attended = ring.attend(&vector(token + 100), -13, EXPONENT, &mut out);
        crc.bytes(&[pushed.is_ok() as u8, attended.is_ok() as u8, ring.len() as u8]);
        crc.samples(&out);
    }
}

/// Adds blocks of a trellis codec, and their decoded samples.
fn trellis<const D: usize, C: Code, const N: usize>(kernels: impl Kernels, crc: &mut Crc) {
    let (codec, mut workspace) =
        (FixedTrellis::<D, C>::DEFAULT.with_kernels(kernels), TrellisWorkspace::new());
    for seed in 0..4 {
        let mut x: [i16; D] = vector(seed);
        if seed == 3 {
            x = [i16::MIN; D];
        }
        let mut block = [0; N];
        crc.bytes(&[codec.encode(&x, EXPONENT, &mut workspace, &mut block).is_ok() as u8]);
        crc.bytes(&block);
        decoded::<D, C, N>(&block, crc);
    }
}

fn decoded<const D: usize, C: Code, const N: usize>(block: &[u8; N], crc: &mut Crc) {
    let mut back = [0; D];
    crc.bytes(&[FixedTrellis::<D, C>::DEFAULT.decode(block, EXPONENT, &mut back).is_ok() as u8]);
    crc.samples(&back);
}

/// Adds the decoded samples of an arbitrary body of a trellis codec, at a scale of one.
fn any_body<const D: usize, C: Code, const N: usize>(crc: &mut Crc) {
    let mut block: [u8; N] = vector(5).map(|v| (v >> 3) as u8);
    if let Some(head) = block.first_chunk_mut() {
        *head = [0x00, 0x30];
    }
    decoded::<D, C, N>(&block, crc);
}

/// Returns true if the fastest kernels give the portable code's blocks and queries, for one head dim and
/// codec.
#[cfg(dsp)]
fn agree<const D: usize, C: Code, const N: usize>() -> bool {
    let portable = FixedCodec::<D, C>::DEFAULT;
    let fastest = portable.with_kernels(FASTEST);
    (0..12).all(|seed| {
        let mut x: [i16; D] = vector(seed);
        match seed {
            9 => x = [i16::MIN; D],
            10 => x = [0; D],
            11 => x = x.map(|v| v >> 11),
            _ => {}
        }
        let mut blocks = [[1; N], [2; N]];
        let [ours, theirs] = &mut blocks;
        let results = [fastest.encode(&x, EXPONENT, ours), portable.encode(&x, EXPONENT, theirs)];
        let scores = [fastest.query(&x, EXPONENT), portable.query(&x, EXPONENT)]
            .map(|query| portable.score(&query, &blocks[1]));
        results[0] == results[1] && blocks[0] == blocks[1] && scores[0] == scores[1]
    })
}

/// Returns true if the fastest kernels agree with the portable code wherever they have code of their own.
/// These are transforms of every length, and widths of 4 and 2 bits with every number of bins.
#[cfg(dsp)]
pub fn kernels_agree() -> bool {
    [
        agree::<16, S4, 10>(),
        agree::<32, S2, 10>(),
        agree::<64, S4, 34>(),
        agree::<128, S2, 34>(),
        agree::<128, N4, 66>(),
        agree::<256, I8, 258>(),
        agree::<512, S4, 258>(),
        agree::<512, N2, 130>(),
        agree::<1024, N4, 514>(),
        agree::<1024, S3, 386>(),
    ]
    .iter()
    .all(|&agree| agree)
}

/// There are no other kernels on this machine.
#[cfg(not(dsp))]
pub fn kernels_agree() -> bool {
    true
}

/// The CRC over codes, decoded samples, scores and attention of several codecs and head dims.
pub fn crc(kernels: impl Kernels) -> u32 {
    let mut crc = Crc::default();
    codec::<128, S4, 66>(kernels, &mut crc);
    codec::<128, S2, 34>(kernels, &mut crc);
    codec::<64, S3, 26>(kernels, &mut crc);
    codec::<80, N4, 42>(kernels, &mut crc);
    codec::<128, I8, 130>(kernels, &mut crc);
    codec::<16, N2, 6>(kernels, &mut crc);
    trellis::<128, T2S8, 34>(kernels, &mut crc);
    trellis::<64, T2S8, 18>(kernels, &mut crc);
    any_body::<128, T1, 18>(&mut crc);
    any_body::<128, T2, 34>(&mut crc);
    any_body::<128, T2H, 42>(&mut crc);
    any_body::<128, T3, 50>(&mut crc);
    any_body::<128, T4, 66>(&mut crc);
    ring::<S4, S3>(kernels, &mut crc);
    ring::<T2S8, S3>(kernels, &mut crc);
    tiers::<S4, S3, i8>(kernels, &mut crc);
    tiers::<T2S8, S3, i16>(kernels, &mut crc);
    crc.value()
}

/// The CRC that `c/main.c` computes through the C interface.
pub fn c_example_crc() -> u32 {
    let mut crc = Crc::default();
    let query = CODEC.query(&vector(9), -12);
    for seed in 0..4 {
        let (mut block, mut back) = ([0; BLOCK], [0; 128]);
        let encoded = CODEC.encode(&vector(seed), EXPONENT, &mut block).is_ok();
        let decoded = CODEC.decode(&block, EXPONENT, &mut back).is_ok();
        let score = CODEC.score(&query, &block).unwrap_or(i32::MIN);
        crc.bytes(&[encoded as u8, decoded as u8]);
        crc.bytes(&block);
        crc.samples(&back);
        crc.bytes(&score.to_le_bytes());
    }
    crc.value()
}

/// The CRC of the attention results of the example `ring`.
pub fn ring_example_crc() -> u32 {
    let (keys, values) = (FixedCodec::<64, S4>::DEFAULT, FixedCodec::<64, S3>::DEFAULT);
    let mut memory = [0; RingCache::<64, S4, S3>::bytes_for(108)];
    let mut exact = ExactTokens::<64, i8, 4, 16>::new();
    let mut ring = RingCache::new(&keys, &values, &mut memory, 4).with_exact(&mut exact);
    for token in 0..200 {
        let _ = ring.push(&vector(token), -12, &vector(token + 1000), -15);
    }
    let (mut crc, mut out) = (Crc::default(), [0; 64]);
    let _ = ring.attend(&vector(7), -12, -15, &mut out);
    crc.samples(&out);
    crc.value()
}
