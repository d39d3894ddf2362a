//! Weights: safetensors files (f32, f16, bf16; one file or shards) or GGUF files, expanded to f32.
//!
//! Files are memory-mapped while they are read; the weights themselves take 4 bytes a parameter afterwards.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::config::{Architecture, Config};
use crate::error::ModelError;
use crate::linear::Linear;
use tqkv::file::Bytes;

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab_size, hidden_size]`; also the head of a tied model.
    pub(crate) embedding: Linear,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    /// `None` where the embedding is the head.
    pub(crate) head: Option<Linear>,
}

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) o: Linear,
    /// Qwen3: weights of the per-head norms, `[head_dim]`, queries then keys.
    pub(crate) qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// `[num_kv_heads, head_dim]`, added to keys after RoPE; no checkpoint has it, [`crate::biased`] makes it.
    pub(crate) key_bias: Option<Vec<f32>>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

/// The files of a checkpoint directory, mapped.
pub(crate) struct Files(Vec<(String, Bytes)>);

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

impl Files {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        const SINGLE: &str = "model.safetensors";
        const INDEX: &str = "model.safetensors.index.json";
        let mut names = BTreeSet::new();
        if !dir.join(SINGLE).exists() && dir.join(INDEX).exists() {
            let path = dir.join(INDEX);
            let json = std::fs::read(&path).map_err(|source| ModelError::Io { path, source })?;
            let bad = |reason: String| ModelError::Weights { file: INDEX.to_owned(), reason };
            let index: ShardIndex = serde_json::from_slice(&json).map_err(|e| bad(e.to_string()))?;
            names.extend(index.weight_map.into_values());
            // A shard lies beside its index; anything else would let a checkpoint read files elsewhere.
            if let Some(name) =
                names.iter().find(|n| Path::new(n).file_name().is_none_or(|f| f != n.as_str()))
            {
                return Err(bad(format!("shard {name:?} is not a plain file name")));
            }
        } else {
            names.insert(SINGLE.to_owned());
        }
        let map = |name: String| match Bytes::open(&dir.join(&name)) {
            Ok(map) => Ok((name, map)),
            Err(source) => Err(ModelError::Io { path: dir.join(&name), source }),
        };
        Ok(Self(names.into_iter().map(map).collect::<Result<_, _>>()?))
    }

    /// The mapped bytes, each with its file name.
    pub(crate) fn buffers(&self) -> Vec<(&str, &[u8])> {
        self.0.iter().map(|(name, map)| (name.as_str(), map.as_ref())).collect()
    }
}

/// Shape and values.
pub(crate) type Tensor = (Vec<usize>, Vec<f32>);

/// Tensors by their names in Hugging Face checkpoints.
pub(crate) trait Tensors {
    /// `None` where there is none of that name.
    fn get(&self, name: &str) -> Result<Option<Tensor>, ModelError>;

    fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, ModelError> {
        let Some((got, values)) = self.get(name)? else { return Ok(None) };
        if got != shape {
            return Err(ModelError::WrongShape { name: name.to_owned(), got, expected: shape.to_vec() });
        }
        Ok(Some(values))
    }

    fn required(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        self.optional(name, shape)?.ok_or_else(|| ModelError::MissingTensor { name: name.to_owned() })
    }

    /// A projection; a bias in the file is always used, and missed only where the config promises one.
    fn linear(
        &self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias_required: bool,
    ) -> Result<Linear, ModelError> {
        let weight = self.required(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias_name = format!("{name}.bias");
        let bias = if bias_required {
            Some(self.required(&bias_name, &[outputs])?)
        } else {
            self.optional(&bias_name, &[outputs])?
        };
        Ok(Linear { weight, bias, inputs, outputs })
    }
}

/// Those of one or more safetensors buffers.
pub(crate) struct Shards<'a>(Vec<SafeTensors<'a>>);

impl<'a> Shards<'a> {
    /// Reads the tables of contents of buffers that each hold a safetensors file.
    pub(crate) fn parse(buffers: &[(&str, &'a [u8])]) -> Result<Self, ModelError> {
        let parse = |&(file, bytes): &(&str, &'a [u8])| {
            SafeTensors::deserialize(bytes).map_err(|e| ModelError::Weights {
                file: file.to_owned(),
                reason: format!("not a readable safetensors file: {e}"),
            })
        };
        Ok(Self(buffers.iter().map(parse).collect::<Result<_, _>>()?))
    }
}

impl Tensors for Shards<'_> {
    fn get(&self, name: &str) -> Result<Option<Tensor>, ModelError> {
        let Some(tensor) = self.0.iter().find_map(|shard| shard.tensor(name).ok()) else {
            return Ok(None);
        };
        let unsupported = || ModelError::UnsupportedDtype {
            name: name.to_owned(),
            got: tensor.dtype().to_string(),
            accepted: "F32, F16, BF16".to_owned(),
        };
        let values = expand(tensor.dtype(), tensor.data()).ok_or_else(unsupported)?;
        Ok(Some((tensor.shape().to_vec(), values)))
    }
}

impl Layer {
    fn read(tensors: &dyn Tensors, c: &Config, index: usize) -> Result<Self, ModelError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| tensors.required(&name(&format!("{part}.weight")), &[c.hidden_size]);
        let head_norm =
            |part: &str| tensors.required(&name(&format!("self_attn.{part}.weight")), &[c.head_dim]);
        let (queries, keys) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        let qk_norm = match c.architecture {
            Architecture::Qwen3 => Some((head_norm("q_norm")?, head_norm("k_norm")?)),
            Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 => None,
        };
        Ok(Self {
            attention_norm: norm("input_layernorm")?,
            q: tensors.linear(&name("self_attn.q_proj"), queries, c.hidden_size, c.qkv_bias)?,
            k: tensors.linear(&name("self_attn.k_proj"), keys, c.hidden_size, c.qkv_bias)?,
            v: tensors.linear(&name("self_attn.v_proj"), keys, c.hidden_size, c.qkv_bias)?,
            o: tensors.linear(&name("self_attn.o_proj"), c.hidden_size, queries, c.output_bias)?,
            qk_norm,
            key_bias: None,
            mlp_norm: norm("post_attention_layernorm")?,
            gate: tensors.linear(&name("mlp.gate_proj"), c.intermediate_size, c.hidden_size, false)?,
            up: tensors.linear(&name("mlp.up_proj"), c.intermediate_size, c.hidden_size, false)?,
            down: tensors.linear(&name("mlp.down_proj"), c.hidden_size, c.intermediate_size, false)?,
        })
    }
}

impl Weights {
    /// Reads every tensor that `config` asks for.
    pub(crate) fn read(config: &Config, tensors: &dyn Tensors) -> Result<Self, ModelError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let head = if config.tie_word_embeddings {
            None
        } else {
            Some(tensors.linear("lm_head", vocab, hidden, false)?)
        };
        Ok(Self {
            embedding: tensors.linear("model.embed_tokens", vocab, hidden, false)?,
            layers: (0..config.num_layers)
                .map(|l| Layer::read(tensors, config, l))
                .collect::<Result<_, _>>()?,
            norm: tensors.required("model.norm.weight", &[hidden])?,
            head,
        })
    }
}

/// Little-endian bytes to f32; `None` for a format that is not accepted.
fn expand(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    // Files need not be aligned, so the halves are gathered before the bulk conversion.
    match dtype {
        Dtype::F32 => Some(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        Dtype::F16 => {
            let halves: Vec<f16> = bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
            Some(halves.to_f32_vec())
        }
        Dtype::BF16 => {
            let halves: Vec<bf16> = bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b)).collect();
            Some(halves.to_f32_vec())
        }
        _ => None,
    }
}
