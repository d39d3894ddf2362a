//! Runs the shipped language model: a prompt, the likeliest tokens after it, and one CRC over the logits of
//! every step.

use super::Crc;
use core::hint::black_box;
use tqkv_core::Portable;
use tqkv_core::code::{Code, S3, S4};
use tqkv_core::fixed::{ExactTokens, FixedCodec, Kernels, RingCache, Sample};
use tqkv_lm::{Head, Lm, LmError, Model, Sampler, Shape};

/// The start of the text.
pub const PROMPT: &[u8] = b"The borrow checker ";
/// Tokens that are generated over each cache.
pub const NEW_TOKENS: usize = 200;
/// Tokens of the long run.
pub const LONG_TOKENS: usize = 1024;
/// KV heads of all layers of the shipped model.
pub const RINGS: usize = 4;
/// Head dim of the shipped model.
pub const DIM: usize = 128;
/// First tokens that stay exact.
pub const SINKS: usize = 4;
/// Newest tokens that are exact.
pub const NEWEST: usize = 16;
/// The exact tokens of a KV head.
pub type Exact = ExactTokens<DIM, i8, SINKS, NEWEST>;
/// The exact tokens of all KV heads.
pub type Exacts = [Exact; RINGS];
/// A KV head with exact tokens.
pub type TieredHead<'a, K, V, M> = Head<'a, DIM, K, V, M, i8, SINKS, NEWEST>;
/// A model over such heads.
pub type Tiered<'a, 'r, K, V, M> = Lm<'a, 'r, DIM, K, V, M, i8, SINKS, NEWEST>;

/// No exact tokens yet.
pub const fn exacts() -> Exacts {
    [const { Exact::new() }; RINGS]
}

/// The results of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// CRC over the logits of each step, little-endian, and their exponent.
    pub crc: u32,
    /// The first of the generated tokens.
    pub text: [u8; NEW_TOKENS],
}

/// Bytes of the codes for `tokens` tokens, [`Exacts`] among them.
pub const fn bytes_for<K: Code, V: Code>(tokens: usize) -> usize {
    RINGS * RingCache::<DIM, K, V>::bytes_for(tokens.saturating_sub(SINKS + NEWEST))
}

/// Memory that a model borrows.
pub struct Memory<'a> {
    /// Tokens.
    pub codes: &'a mut [u8],
    /// Tokens.
    pub exact: &'a mut Exacts,
    /// The workspace.
    pub work: &'a mut [i32],
}

/// Makes a model over rings in `memory` and passes it to `run`.
pub fn with<K: Code, V: Code, M: Kernels, T>(
    kernels: M,
    file: &[u8],
    memory: Memory<'_>,
    run: impl FnOnce(&mut Tiered<'_, '_, K, V, M>) -> Result<T, LmError>,
) -> Result<T, LmError> {
    let keys = FixedCodec::<DIM, K>::DEFAULT.with_kernels(kernels);
    let values = FixedCodec::<DIM, V>::DEFAULT.with_kernels(kernels);
    let mut heads = heads(&keys, &values, memory.codes, memory.exact);
    run(&mut Lm::new(Model::load_unverified(file)?, &mut heads, memory.work, kernels)?)
}

/// Makes empty rings that share the codes.
pub fn heads<'a, K: Code, V: Code, M: Kernels>(
    keys: &'a FixedCodec<DIM, K, M>,
    values: &'a FixedCodec<DIM, V, M>,
    codes: &'a mut [u8],
    exact: &'a mut Exacts,
) -> [TieredHead<'a, K, V, M>; RINGS] {
    let mut parts = codes.chunks_exact_mut((codes.len() / RINGS).max(1));
    exact.each_mut().map(|exact| {
        let part = parts.next().unwrap_or_default();
        Head::new(RingCache::new(keys, values, part, SINKS).with_exact(exact))
    })
}

/// Feeds the prompt, then the likeliest tokens, until the model took `tokens` tokens.
pub fn write<K: Code, V: Code, M: Kernels>(
    kernels: M,
    file: &[u8],
    memory: Memory<'_>,
    tokens: usize,
) -> Result<Written, LmError> {
    let codes = memory.codes.get_mut(..bytes_for::<K, V>(tokens)).unwrap_or_default();
    with::<K, V, M, _>(kernels, file, Memory { codes, ..memory }, |lm| {
        let (mut crc, mut text) = (Crc::default(), [0; NEW_TOKENS]);
        for &byte in PROMPT {
            lm.push(u32::from(byte))?;
        }
        for at in 0..tokens.saturating_sub(PROMPT.len()) {
            let logits = lm.logits();
            for value in logits.values {
                crc.bytes(&value.to_le_bytes());
            }
            crc.bytes(&logits.exponent.to_le_bytes());
            let token = logits.greedy();
            if let Some(byte) = text.get_mut(at) {
                *byte = token as u8;
            }
            lm.push(token)?;
        }
        Ok(Written { crc: crc.value(), text })
    })
}

/// Tokens of a short run, over each cache.
pub const fn short_tokens() -> usize {
    PROMPT.len() + NEW_TOKENS
}

/// The shape of the file, from which sizes follow.
pub const fn shape(file: &[u8]) -> Shape {
    match Shape::read(file) {
        Ok(shape) => shape,
        Err(_) => panic!("the flat model file has no header"),
    }
}

/// Calls all functions of a model. The compiler knows nothing of its file. This is for images that are
/// inspected and not run.
pub fn everything<const D: usize, K: Code, V: Code, X: Sample, M: Kernels>(kernels: M) {
    let Ok(model) = Model::load(black_box(&[])) else { return };
    let keys = FixedCodec::<D, K>::DEFAULT.with_kernels(kernels);
    let values = FixedCodec::<D, V>::DEFAULT.with_kernels(kernels);
    let (mut memory, mut work) = ([0; 2048], [0; 512]);
    let mut parts = memory.chunks_exact_mut(1024);
    let mut exact = [const { ExactTokens::<D, X, 1, 2>::new() }; 2];
    let mut heads = exact.each_mut().map(|exact| {
        let part = parts.next().unwrap_or_default();
        Head::new(RingCache::new(&keys, &values, part, 1).with_exact(exact))
    });
    let Ok(mut lm) = Lm::new(model, &mut heads, &mut work, kernels) else { return };
    let mut sampler = Sampler::new(black_box(205), black_box(1));
    for _ in 0..black_box(4) {
        black_box(lm.push(black_box(65))).ok();
        let logits = lm.logits();
        black_box((logits.greedy(), sampler.pick(&logits)));
    }
    lm.clear();
}

/// Generates text like the example project: `s4` keys, `s3` values, tokens drawn from a seed.
pub fn example(file: &[u8], memory: Memory<'_>, text: &mut [u8]) -> Result<(), LmError> {
    with::<S4, S3, _, _>(Portable, file, memory, |lm| {
        let mut sampler = Sampler::new(205, 1);
        for &byte in PROMPT {
            lm.push(u32::from(byte))?;
        }
        for byte in text {
            let token = sampler.pick(&lm.logits());
            *byte = token as u8;
            lm.push(token)?;
        }
        Ok(())
    })
}
