//! Tiny checkpoints with generated weights, and a slow f64 forward pass to compare the runner with.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

pub(crate) const HIDDEN: usize = 24;
pub(crate) const INTER: usize = 20;
pub(crate) const LAYERS: usize = 2;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const VOCAB: usize = 256;
pub(crate) const CONTEXT: usize = 64;

/// Name, shape and values of each tensor.
pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A checkpoint in memory: the fields of its `config.json`, and its tensors.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) config: Value,
    pub(crate) tensors: Tensors,
    pub(crate) head_dim: usize,
    /// Tokens that each layer sees in [`Checkpoint::slow_forward`].
    pub(crate) windows: [usize; LAYERS],
}

impl Checkpoint {
    /// A checkpoint of `architecture`. `changes` are merged into its config and determine its tensors.
    /// `head_dim` differs from `hidden_size / num_attention_heads` on purpose.
    pub(crate) fn new(architecture: &str, head_dim: usize, changes: Value) -> Self {
        let mut config = json!({
            "architectures": [architecture], "hidden_act": "silu", "hidden_size": HIDDEN,
            "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": head_dim, "vocab_size": VOCAB,
            "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        });
        for (name, value) in changes.as_object().unwrap() {
            config[name] = value.clone();
        }
        let mut made = Self { config, tensors: Tensors::new(), head_dim, windows: [usize::MAX; LAYERS] };
        made.paint(architecture);
        made
    }

    fn flag(&self, name: &str) -> bool {
        self.config[name].as_bool().unwrap_or(false)
    }

    fn paint(&mut self, architecture: &str) {
        let (q, kv) = (HEADS * self.head_dim, KV_HEADS * self.head_dim);
        let qkv_bias = architecture == "Qwen2ForCausalLM" || self.flag("attention_bias");
        let mut all: Vec<(String, Vec<usize>)> = vec![
            ("model.embed_tokens.weight".into(), vec![VOCAB, HIDDEN]),
            ("model.norm.weight".into(), vec![HIDDEN]),
        ];
        if !self.flag("tie_word_embeddings") {
            all.push(("lm_head.weight".into(), vec![VOCAB, HIDDEN]));
        }
        for l in 0..LAYERS {
            let mut linear = |name: &str, out: usize, inputs: usize, bias: bool| {
                all.push((format!("model.layers.{l}.{name}.weight"), vec![out, inputs]));
                if bias {
                    all.push((format!("model.layers.{l}.{name}.bias"), vec![out]));
                }
            };
            linear("self_attn.q_proj", q, HIDDEN, qkv_bias);
            linear("self_attn.k_proj", kv, HIDDEN, qkv_bias);
            linear("self_attn.v_proj", kv, HIDDEN, qkv_bias);
            linear("self_attn.o_proj", HIDDEN, q, self.flag("attention_bias"));
            linear("mlp.gate_proj", INTER, HIDDEN, self.flag("mlp_bias"));
            linear("mlp.up_proj", INTER, HIDDEN, self.flag("mlp_bias"));
            linear("mlp.down_proj", HIDDEN, INTER, self.flag("mlp_bias"));
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                all.push((format!("model.layers.{l}.{norm}.weight"), vec![HIDDEN]));
            }
            if architecture == "Qwen3ForCausalLM" {
                for norm in ["q_norm", "k_norm"] {
                    all.push((format!("model.layers.{l}.self_attn.{norm}.weight"), vec![self.head_dim]));
                }
            }
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for (name, shape) in all {
            // Norm weights are around 1, all others around 0. All values are exact in bf16 and in f16, so one
            // reference serves every format.
            let centre = if name.contains("norm") { 1.0 } else { 0.0 };
            let count = shape.iter().product();
            let mut value = || bf16::from_f32(centre + rng.f32() - 0.5).to_f32();
            let values = (0..count).map(|_| value()).map(|v| f16::from_f32(v).to_f32());
            let values = values.map(|v| bf16::from_f32(v).to_f32()).collect();
            self.tensors.insert(name, (shape, values));
        }
    }

    /// All tensors in one safetensors file.
    pub(crate) fn bytes(&self, dtype: Dtype) -> Vec<u8> {
        serialise(&self.tensors, dtype)
    }

    /// Writes config and weights as one file.
    pub(crate) fn write(&self, dir: &Path, dtype: Dtype) {
        self.write_config(dir);
        std::fs::write(dir.join("model.safetensors"), self.bytes(dtype)).unwrap();
    }

    /// Writes the config, and the weights in three shards with their index.
    pub(crate) fn write_sharded(&self, dir: &Path, dtype: Dtype) {
        self.write_config(dir);
        let mut shards = vec![Tensors::new(); 3];
        let mut map = BTreeMap::new();
        for (i, (name, tensor)) in self.tensors.iter().enumerate() {
            shards[i % 3].insert(name.clone(), tensor.clone());
            map.insert(name.clone(), format!("model-{:05}-of-00003.safetensors", i % 3 + 1));
        }
        for (i, shard) in shards.iter().enumerate() {
            let file = dir.join(format!("model-{:05}-of-00003.safetensors", i + 1));
            std::fs::write(file, serialise(shard, dtype)).unwrap();
        }
        let index = json!({ "metadata": { "total_size": 0 }, "weight_map": map });
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    pub(crate) fn write_config(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
    }

    fn tensor(&self, name: &str) -> Option<&[f32]> {
        self.tensors.get(name).map(|(_, values)| values.as_slice())
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.tensor(&format!("{name}.weight")).unwrap();
        let bias = self.tensor(&format!("{name}.bias"));
        let dot = |row: &[f32]| -> f64 { row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
        weight
            .chunks_exact(x.len())
            .enumerate()
            .map(|(i, row)| dot(row) + bias.map_or(0.0, |b| f64::from(b[i])))
            .collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.tensor(&format!("{name}.weight")).unwrap();
        let eps = self.config["rms_norm_eps"].as_f64().unwrap();
        x.chunks_exact(weight.len())
            .flat_map(|row| {
                let rms = (row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64 + eps).sqrt();
                row.iter().zip(weight).map(move |(v, w)| v / rms * f64::from(*w)).collect::<Vec<_>>()
            })
            .collect()
    }

    fn rope(&self, x: &mut [f64], position: usize) {
        let (d, half) = (self.head_dim, self.head_dim / 2);
        let config = &self.config;
        let scaling = if config["rope_parameters"].is_object() {
            &config["rope_parameters"]
        } else {
            &config["rope_scaling"]
        };
        let theta = scaling["rope_theta"].as_f64().or(config["rope_theta"].as_f64()).unwrap();
        for head in x.chunks_exact_mut(d) {
            for i in 0..half {
                let freq = rope_frequency(theta.powf(-((2 * i) as f64) / d as f64), scaling);
                let (sin, cos) = (position as f64 * freq).sin_cos();
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }

    /// Logits of every position, computed token by token.
    pub(crate) fn slow_forward(&self, tokens: &[u32]) -> Vec<f64> {
        let (d, group) = (self.head_dim, HEADS / KV_HEADS);
        let mut keys = vec![Vec::<Vec<f64>>::new(); LAYERS];
        let mut values = keys.clone();
        let mut out = Vec::new();
        for (position, &token) in tokens.iter().enumerate() {
            let embedding = self.tensor("model.embed_tokens.weight").unwrap();
            let row = &embedding[token as usize * HIDDEN..][..HIDDEN];
            let mut x: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
            for l in 0..LAYERS {
                let name = |part: &str| format!("model.layers.{l}.{part}");
                let h = self.norm(&name("input_layernorm"), &x);
                let mut q = self.linear(&name("self_attn.q_proj"), &h);
                let mut k = self.linear(&name("self_attn.k_proj"), &h);
                if self.tensor(&name("self_attn.q_norm.weight")).is_some() {
                    q = self.norm(&name("self_attn.q_norm"), &q);
                    k = self.norm(&name("self_attn.k_norm"), &k);
                }
                self.rope(&mut q, position);
                self.rope(&mut k, position);
                keys[l].push(k);
                values[l].push(self.linear(&name("self_attn.v_proj"), &h));
                let first = (position + 1).saturating_sub(self.windows[l]);
                let mut attended = vec![0.0; HEADS * d];
                for head in 0..HEADS {
                    let kv = head / group * d..head / group * d + d;
                    let query = &q[head * d..][..d];
                    let weight = |key: &Vec<f64>| {
                        let dot: f64 = query.iter().zip(&key[kv.clone()]).map(|(a, b)| a * b).sum();
                        (dot / (d as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = keys[l][first..].iter().map(weight).collect();
                    let sum: f64 = weights.iter().sum();
                    for (w, value) in weights.iter().zip(&values[l][first..]) {
                        for (o, v) in attended[head * d..][..d].iter_mut().zip(&value[kv.clone()]) {
                            *o += w / sum * v;
                        }
                    }
                }
                add(&mut x, &self.linear(&name("self_attn.o_proj"), &attended));
                let h = self.norm(&name("post_attention_layernorm"), &x);
                let gate = self.linear(&name("mlp.gate_proj"), &h);
                let up = self.linear(&name("mlp.up_proj"), &h);
                let act: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                add(&mut x, &self.linear(&name("mlp.down_proj"), &act));
            }
            let h = self.norm("model.norm", &x);
            let tied = self.flag("tie_word_embeddings");
            out.extend(self.linear(if tied { "model.embed_tokens" } else { "lm_head" }, &h));
        }
        out
    }
}

fn add(x: &mut [f64], y: &[f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// The rules of the transformers library, branch by branch.
fn rope_frequency(freq: f64, scaling: &Value) -> f64 {
    let number = |name: &str| scaling[name].as_f64().unwrap();
    let kind = scaling["rope_type"].as_str().or(scaling["type"].as_str());
    match kind {
        Some("linear") => freq / number("factor"),
        Some("llama3") => {
            let old = number("original_max_position_embeddings");
            let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
            let wavelength = std::f64::consts::TAU / freq;
            if wavelength > old / low {
                freq / number("factor")
            } else if wavelength < old / high {
                freq
            } else {
                let smooth = (old / wavelength - low) / (high - low);
                (1.0 - smooth) * freq / number("factor") + smooth * freq
            }
        }
        _ => freq,
    }
}

/// Bytes of a safetensors file in the given number format.
pub(crate) fn serialise(tensors: &Tensors, dtype: Dtype) -> Vec<u8> {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| {
            let bytes = match dtype {
                Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
                Dtype::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
                Dtype::F64 => values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
                other => panic!("no writer for {other:?}"),
            };
            (name, shape, bytes)
        })
        .collect();
    let views =
        bytes.iter().map(|(name, shape, b)| (*name, TensorView::new(dtype, shape.to_vec(), b).unwrap()));
    safetensors::serialize(views, None).unwrap()
}
