//! Names of tensors: "there" is a Hugging Face checkpoint, "here" is a GGUF file.

use super::family::GgufFamily;

/// The embedding, the head and the factors of the RoPE frequencies.
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";
pub(super) const FACTORS: &str = "rope_freqs.weight";

/// The kind of a part of a layer.
#[derive(Clone, Copy, PartialEq)]
enum LayerPart {
    /// Only weights.
    Norm,
    /// Only weights, in families with norms of heads.
    HeadNorm,
    /// Weights, and optionally a bias.
    Projection,
}

/// Parts of a layer: the name there, the name here, and the kind.
const PARTS: [(&str, &str, LayerPart); 10] = [
    ("input_layernorm", "attn_norm", LayerPart::Norm),
    ("self_attn.q_proj", "attn_q", LayerPart::Projection),
    ("self_attn.k_proj", "attn_k", LayerPart::Projection),
    ("self_attn.v_proj", "attn_v", LayerPart::Projection),
    ("self_attn.o_proj", "attn_output", LayerPart::Projection),
    ("self_attn.q_norm", "attn_q_norm", LayerPart::HeadNorm),
    ("self_attn.k_norm", "attn_k_norm", LayerPart::HeadNorm),
    ("mlp.gate_proj", "ffn_gate", LayerPart::Projection),
    ("mlp.up_proj", "ffn_up", LayerPart::Projection),
    ("mlp.down_proj", "ffn_down", LayerPart::Projection),
];

/// The norm before the MLP. The second list is for families that also have norms after attention and MLP.
const MLP_NORM: [(&str, &str, LayerPart); 1] = [("post_attention_layernorm", "ffn_norm", LayerPart::Norm)];
const MLP_NORMS: [(&str, &str, LayerPart); 3] = [
    ("post_attention_layernorm", "post_attention_norm", LayerPart::Norm),
    ("pre_feedforward_layernorm", "ffn_norm", LayerPart::Norm),
    ("post_feedforward_layernorm", "post_ffw_norm", LayerPart::Norm),
];

/// The part with this name here.
fn part(here: &str, family: &GgufFamily) -> Option<&'static (&'static str, &'static str, LayerPart)> {
    let norms = if family.has_post_norms { &MLP_NORMS[..] } else { &MLP_NORM };
    PARTS.iter().chain(norms).find(|(_, name, _)| *name == here)
}

/// The name there of a tensor here. `None` for a tensor that Hugging Face checkpoints do not have.
pub(super) fn there(name: &str, family: &GgufFamily) -> Option<String> {
    match name {
        EMBEDDING => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        HEAD => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (here, kind) = rest.rsplit_once('.')?;
    let (there, ..) = part(here, family)?;
    Some(format!("model.layers.{layer}.{there}.{kind}"))
}

/// True if a tensor is read in a model of `layers` layers.
pub(super) fn is_read(name: &str, layers: usize, family: &GgufFamily) -> bool {
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (here, kind) = rest.rsplit_once('.')?;
        let (.., part) = part(here, family)?;
        let is_there = *part != LayerPart::HeadNorm || family.has_head_norms;
        let is_kind = kind == "weight" || kind == "bias" && *part == LayerPart::Projection;
        Some(is_there && is_kind && layer.parse::<usize>().is_ok_and(|layer| layer < layers))
    };
    [EMBEDDING, HEAD, FACTORS, "output_norm.weight"].contains(&name) || in_layer() == Some(true)
}
