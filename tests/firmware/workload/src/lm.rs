//! Runs the shipped language model: a prompt, the likeliest tokens after it, and one CRC over the logits of
//! every step.

use super::Crc;
use core::hint::black_box;
use tqkv_core::Portable;
use tqkv_core::code::{Code, S3, S4};
use tqkv_core::fixed::{FixedCodec, Kernels, RingCache};
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

/// The results of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// CRC over the logits of each step, little-endian, and their exponent.
    pub crc: u32,
    /// The first of the generated tokens.
    pub text: [u8; NEW_TOKENS],
}

/// Bytes of the rings for `tokens` tokens.
pub const fn bytes_for<K: Code, V: Code>(tokens: usize) -> usize {
    RINGS * RingCache::<DIM, K, V>::bytes_for(tokens)
}

/// Makes a model over rings in `memory` and passes it to `run`.
pub fn with<K: Code, V: Code, M: Kernels, T>(
    kernels: M,
    file: &[u8],
    memory: &mut [u8],
    work: &mut [i32],
    run: impl FnOnce(&mut Lm<'_, '_, DIM, K, V, M>) -> Result<T, LmError>,
) -> Result<T, LmError> {
    let keys = FixedCodec::<DIM, K>::DEFAULT.with_kernels(kernels);
    let values = FixedCodec::<DIM, V>::DEFAULT.with_kernels(kernels);
    let mut heads = heads(&keys, &values, memory);
    run(&mut Lm::new(Model::load_unverified(file)?, &mut heads, work, kernels)?)
}

/// Makes empty rings that share `memory`.
pub fn heads<'a, K: Code, V: Code, M: Kernels>(
    keys: &'a FixedCodec<DIM, K, M>,
    values: &'a FixedCodec<DIM, V, M>,
    memory: &'a mut [u8],
) -> [Head<'a, DIM, K, V, M>; RINGS] {
    let mut parts = memory.chunks_exact_mut((memory.len() / RINGS).max(1));
    core::array::from_fn(|_| Head::new(RingCache::new(keys, values, parts.next().unwrap_or_default(), 4)))
}

/// Feeds the prompt, then the likeliest tokens, until the model took `tokens` tokens.
pub fn write<K: Code, V: Code, M: Kernels>(
    kernels: M,
    file: &[u8],
    memory: &mut [u8],
    work: &mut [i32],
    tokens: usize,
) -> Result<Written, LmError> {
    let memory = memory.get_mut(..bytes_for::<K, V>(tokens)).unwrap_or_default();
    with::<K, V, M, _>(kernels, file, memory, work, |lm| {
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
pub fn everything<const D: usize, K: Code, V: Code, M: Kernels>(kernels: M) {
    let Ok(model) = Model::load(black_box(&[])) else { return };
    let keys = FixedCodec::<D, K>::DEFAULT.with_kernels(kernels);
    let values = FixedCodec::<D, V>::DEFAULT.with_kernels(kernels);
    let (mut memory, mut work) = ([0; 2048], [0; 512]);
    let mut parts = memory.chunks_exact_mut(1024);
    let mut heads: [_; 2] = core::array::from_fn(|_| {
        Head::new(RingCache::new(&keys, &values, parts.next().unwrap_or_default(), 1))
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
pub fn example(file: &[u8], memory: &mut [u8], work: &mut [i32], text: &mut [u8]) -> Result<(), LmError> {
    with::<S4, S3, _, _>(Portable, file, memory, work, |lm| {
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
