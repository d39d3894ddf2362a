//! A Llama from a GGUF file, without attention over the past.
//!
//! Weights become f32. candle multiplies stored weights with activations of 8 bits, which amplifies
//! differences between caches.

use crate::attention::{ModelAttention, Shape};
use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{D, Device, Module, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::rope_i;
use candle_nn::{Embedding, Linear};
use std::io::{Read, Seek};

const CPU: Device = Device::Cpu;

pub(crate) struct Llama {
    pub(crate) shape: Shape,
    /// The token that ends a text.
    pub(crate) end: Option<u32>,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: Tensor,
    output: Linear,
    epsilon: f32,
    /// Frequencies of the pairs of coordinates, `[head_dim / 2]`: 1 for the first pair, then decreasing.
    frequencies: Tensor,
}

struct Layer {
    attention_norm: Tensor,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    mlp_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Llama {
    /// # Errors
    /// The file has another architecture, or lacks a tensor or a number.
    pub(crate) fn read(content: Content, file: &mut (impl Read + Seek)) -> Result<Self> {
        let value = |key: &str| content.metadata.get(key).with_context(|| format!("the file has no {key}"));
        let architecture = value("general.architecture")?.to_string()?;
        if architecture != "llama" {
            bail!("architecture {architecture}; expected llama");
        }
        let number = |key: &str| Ok::<_, anyhow::Error>(value(&format!("llama.{key}"))?.to_u32()? as usize);
        let num_heads = number("attention.head_count")?;
        let shape = Shape {
            num_layers: number("block_count")?,
            num_heads,
            num_kv_heads: number("attention.head_count_kv").unwrap_or(num_heads),
            head_dim: number("embedding_length")? / num_heads.max(1),
        };
        let base = value("llama.rope.freq_base").and_then(|base| Ok(base.to_f32()?)).unwrap_or(10_000.0);
        let frequencies: Vec<f32> =
            (0..shape.head_dim).step_by(2).map(|i| base.powf(-(i as f32) / shape.head_dim as f32)).collect();
        let epsilon = value("llama.attention.layer_norm_rms_epsilon")?.to_f32()?;
        let end = value("tokenizer.ggml.eos_token_id").ok().and_then(|id| Value::to_u32(id).ok());

        let mut tensor = |name: &str| {
            let stored = content.tensor(file, &format!("{name}.weight"), &CPU);
            Ok(stored.with_context(|| format!("tensor {name}"))?.dequantize(&CPU)?)
        };
        let embedding = Embedding::new(tensor("token_embd")?, number("embedding_length")?);
        let layers = (0..shape.num_layers)
            .map(|layer| Layer::read(&mut |name| tensor(&format!("blk.{layer}.{name}"))));
        let layers = layers.collect::<Result<_>>()?;
        let norm = tensor("output_norm")?;
        // Without this tensor, the embedding is also the output.
        let output = tensor("output").unwrap_or_else(|_| embedding.embeddings().clone());
        Ok(Self {
            shape,
            end,
            embedding,
            layers,
            norm,
            output: Linear::new(output, None),
            epsilon,
            frequencies: Tensor::new(frequencies, &CPU)?,
        })
    }

    /// The likeliest token after the new tokens of each sequence, which are pairs of a sequence and its tokens.
    ///
    /// # Errors
    /// The errors of candle and of the cache.
    pub(crate) fn next(
        &self,
        step: &[(usize, Vec<u32>)],
        cache: &mut dyn ModelAttention,
    ) -> Result<Vec<u32>> {
        let counts: Vec<(usize, usize)> =
            step.iter().map(|(sequence, tokens)| (*sequence, tokens.len())).collect();
        let tokens: Vec<u32> = step.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let positions: Vec<f32> = cache.begin(&counts)?.into_iter().map(|at| at as f32).collect();
        let angles = Tensor::new(positions, &CPU)?.unsqueeze(1)?.matmul(&self.frequencies.unsqueeze(0)?)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let mut x = self.embedding.forward(&Tensor::new(&tokens[..], &CPU)?)?.unsqueeze(0)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let normed = rms_norm(&x, &layer.attention_norm, self.epsilon)?;
            let heads = |projection: &Linear, heads: usize| {
                let x =
                    projection.forward(&normed)?.reshape((1, tokens.len(), heads, self.shape.head_dim))?;
                x.transpose(1, 2)?.contiguous()
            };
            let q = rope_i(&heads(&layer.query, self.shape.num_heads)?, &cos, &sin)?;
            let k = rope_i(&heads(&layer.key, self.shape.num_kv_heads)?, &cos, &sin)?;
            let v = heads(&layer.value, self.shape.num_kv_heads)?;
            x = (x + layer.out.forward(&cache.attend(i, &q, &k, &v)?)?)?;
            let normed = rms_norm(&x, &layer.mlp_norm, self.epsilon)?;
            let gated = (silu(&layer.gate.forward(&normed)?)? * layer.up.forward(&normed)?)?;
            x = (x + layer.down.forward(&gated)?)?;
        }
        let ends = counts.iter().scan(0, |end, (_, tokens)| {
            *end += *tokens as u32;
            Some(*end - 1)
        });
        let ends = Tensor::from_iter(ends, &CPU)?;
        let last = rms_norm(&x.squeeze(0)?.index_select(&ends, 0)?, &self.norm, self.epsilon)?;
        Ok(self.output.forward(&last)?.argmax(D::Minus1)?.to_vec1()?)
    }
}

impl Layer {
    fn read(tensor: &mut dyn FnMut(&str) -> Result<Tensor>) -> Result<Self> {
        let (attention_norm, mlp_norm) = (tensor("attn_norm")?, tensor("ffn_norm")?);
        let mut matrix = |name| Ok::<_, anyhow::Error>(Linear::new(tensor(name)?, None));
        Ok(Self {
            attention_norm,
            query: matrix("attn_q")?,
            key: matrix("attn_k")?,
            value: matrix("attn_v")?,
            out: matrix("attn_output")?,
            mlp_norm,
            gate: matrix("ffn_gate")?,
            up: matrix("ffn_up")?,
            down: matrix("ffn_down")?,
        })
    }
}
