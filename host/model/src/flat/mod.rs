//! Flat files for microcontrollers: a Llama-like model quantised to integers. The crate `tqkv-lm` runs such a file, on a
//! microcontroller or on this machine, with the same bits.
//!
//! Quantisation needs only the weights, no calibration data. SPEC.md describes the bytes.

mod quantise;
mod refused;

use std::f64::consts::TAU;

use crate::attention::AttentionWeights;
use crate::config::{Activation, RopeScaling};
use crate::layer::Layer;
use crate::mlp::Mlp;
use crate::{Config, Model, ModelError};
use refused::refused;
use tqkv_core::CodecId;
pub use tqkv_core::fixed::flat::WeightBits;
use tqkv_core::fixed::flat::{Shape, verify};

impl Model {
    /// The flat file of this model.
    ///
    /// [`ModelError::Export`] names a feature that the integer model does not compute, or a size
    /// that it does not hold.
    pub fn to_flat(&self, bits: WeightBits) -> Result<Vec<u8>, ModelError> {
        let config = self.config();
        let shape = shape(config, bits)?;
        let mut file = shape.header().to_vec();
        for frequency in self.rope.frequencies() {
            // Fractions of a turn. A full turn becomes zero.
            let turn = (frequency / TAU * 4_294_967_296.0).round() as u64;
            file.extend((turn as u32).to_le_bytes());
        }
        self.weights.layers.each(&mut |_, layer| write_layer(&mut file, layer, bits))?;
        quantise::norm(&mut file, &self.weights.norm)?;
        quantise::matrix(&mut file, &self.weights.embedding, bits)?;
        if let Some(head) = &self.weights.head {
            quantise::matrix(&mut file, head, bits)?;
        }
        file.extend(crc32fast::hash(&file).to_le_bytes());
        debug_assert_eq!(file.len() as u64, shape.file_bytes());
        Ok(file)
    }
}

/// Codecs of keys and values that images for microcontrollers know.
pub const CACHES: [(CodecId, CodecId); 6] = [
    (CodecId::I8, CodecId::I8),
    (CodecId::S4, CodecId::S4),
    (CodecId::S4, CodecId::S3),
    (CodecId::S3, CodecId::S3),
    (CodecId::T2S8, CodecId::T2S8),
    (CodecId::S2, CodecId::S2),
];

/// Checks a flat file, and reads the shape of its model.
///
/// # Errors
/// [`ModelError::Export`] names the fault.
pub fn read(file: &[u8]) -> Result<Shape, ModelError> {
    let shape = Shape::of_file(file)?;
    verify(file, crc32fast::hash)?;
    Ok(shape)
}

/// Bytes of RAM that the integer model needs without the stack: its buffers, and slots for `tokens` tokens.
///
/// `None` if a codec does not have the head dim.
pub fn ram_bytes(shape: &Shape, (keys, values): (CodecId, CodecId), tokens: u64) -> Option<u64> {
    let token = tqkv_core::fixed::token_bytes(keys, values, usize::from(shape.head_dim))?;
    Some(4 * shape.work_words() as u64 + shape.rings() as u64 * token as u64 * tokens)
}

/// Tokens of context that fit in `ram` bytes.
pub fn tokens_in_ram(shape: &Shape, (keys, values): (CodecId, CodecId), ram: u64) -> Option<u64> {
    let token = tqkv_core::fixed::token_bytes(keys, values, usize::from(shape.head_dim))?;
    Some(ram.saturating_sub(4 * shape.work_words() as u64) / (shape.rings() as u64 * token as u64))
}

fn shape(c: &Config, bits: WeightBits) -> Result<Shape, ModelError> {
    let family = c.family();
    let unlike = [
        (family.head_norms, "norms of heads"),
        (family.post_norms, "norms after attention and MLP"),
        (family.scales_embedding, "scaled embeddings"),
        (family.has_sinks, "learned sinks"),
        (c.qkv_bias || c.output_bias || c.mlp_bias, "biases"),
        (c.activation != Activation::Silu, "another activation than SiLU"),
        (c.experts.is_some(), "experts"),
        (c.latent.is_some(), "latent attention"),
        (!c.kinds.is_empty(), "sliding windows"),
        (c.scale.is_some(), "another scale of attention"),
        (c.soft_cap.is_some() || c.final_soft_cap.is_some(), "soft caps"),
        (c.local_rotary.is_some() || c.rotary.is_interleaved, "another RoPE"),
        (c.rotary.dim != c.head_dim, "RoPE on a part of each head"),
        (matches!(c.rotary.scaling, RopeScaling::Yarn { .. }), "YaRN"),
    ];
    if let Some((_, what)) = unlike.iter().find(|(is_so, _)| *is_so) {
        return Err(refused(format!("{what}: the integer model is a plain Llama")));
    }
    let narrow = |value: usize, name: &str| {
        u16::try_from(value).map_err(|_| refused(format!("{name} {value}: at most 65535")))
    };
    let epsilon = (f64::from(c.rms_norm_eps) * f64::from(1_u32 << 20) * f64::from(1_u32 << 20)).round();
    if !(0.0..f64::from(u32::MAX)).contains(&epsilon) {
        return Err(refused(format!("epsilon {}: at most 0.0039", c.rms_norm_eps)));
    }
    let shape = Shape {
        bits,
        is_tied: c.tie_word_embeddings,
        hidden: narrow(c.hidden_size, "hidden size")?,
        inner: narrow(c.intermediate_size, "intermediate size")?,
        layers: narrow(c.num_layers, "layers")?,
        heads: narrow(c.num_heads, "heads")?,
        kv_heads: narrow(c.num_kv_heads, "KV heads")?,
        head_dim: narrow(c.head_dim, "head dim")?,
        vocab: c.vocab_size as u32,
        context: c.context.min(u32::MAX as usize) as u32,
        epsilon: epsilon as u32,
    };
    Ok(shape.checked()?)
}

fn write_layer(file: &mut Vec<u8>, layer: &Layer, bits: WeightBits) -> Result<(), ModelError> {
    let (AttentionWeights::Heads(heads), Mlp::Gated(mlp)) = (&layer.attention, &layer.mlp) else {
        return Err(refused("latent attention or experts: the integer model is a plain Llama"));
    };
    quantise::norm(file, &layer.attention_norm)?;
    for linear in [&heads.q, &heads.k, &heads.v, &layer.o] {
        quantise::matrix(file, linear, bits)?;
    }
    quantise::norm(file, &layer.mlp_norm)?;
    for linear in [&mlp.gate, &mlp.up, &mlp.down] {
        quantise::matrix(file, linear, bits)?;
    }
    Ok(())
}
