//! Names of tensors there and here.

use super::family::Family;

/// The embedding, the head and the frequencies' factors.
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";
pub(super) const FACTORS: &str = "rope_freqs.weight";

/// What a part of a layer is.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// Weights alone.
    Norm,
    /// Weights alone, in families that have it.
    HeadNorm,
    /// Weights, and a bias where there is one.
    Projection,
}

/// Parts of a layer: in Hugging Face checkpoints, and here.
const PARTS: [(&str, &str, Part); 10] = [
    ("input_layernorm", "attn_norm", Part::Norm),
    ("self_attn.q_proj", "attn_q", Part::Projection),
    ("self_attn.k_proj", "attn_k", Part::Projection),
    ("self_attn.v_proj", "attn_v", Part::Projection),
    ("self_attn.o_proj", "attn_output", Part::Projection),
    ("self_attn.q_norm", "attn_q_norm", Part::HeadNorm),
    ("self_attn.k_norm", "attn_k_norm", Part::HeadNorm),
    ("mlp.gate_proj", "ffn_gate", Part::Projection),
    ("mlp.up_proj", "ffn_up", Part::Projection),
    ("mlp.down_proj", "ffn_down", Part::Projection),
];

/// The norm before the MLP, and those in families that have norms behind attention and MLP too.
const MLP_NORM: [(&str, &str, Part); 1] = [("post_attention_layernorm", "ffn_norm", Part::Norm)];
const MLP_NORMS: [(&str, &str, Part); 3] = [
    ("post_attention_layernorm", "post_attention_norm", Part::Norm),
    ("pre_feedforward_layernorm", "ffn_norm", Part::Norm),
    ("post_feedforward_layernorm", "post_ffw_norm", Part::Norm),
];

/// The part that is called so here.
fn part(here: &str, family: &Family) -> Option<&'static (&'static str, &'static str, Part)> {
    let norms = if family.has_post_norms { &MLP_NORMS[..] } else { &MLP_NORM };
    PARTS.iter().chain(norms).find(|(_, name, _)| *name == here)
}

/// The name in Hugging Face checkpoints of a tensor here; `None` where they have none of its kind.
pub(super) fn there(name: &str, family: &Family) -> Option<String> {
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

/// Whether a tensor of that name is read of a model of so many layers.
pub(super) fn is_read(name: &str, layers: usize, family: &Family) -> bool {
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (here, kind) = rest.rsplit_once('.')?;
        let (.., part) = part(here, family)?;
        let is_there = *part != Part::HeadNorm || family.has_head_norms;
        let is_kind = kind == "weight" || kind == "bias" && *part == Part::Projection;
        Some(is_there && is_kind && layer.parse::<usize>().is_ok_and(|layer| layer < layers))
    };
    [EMBEDDING, HEAD, FACTORS, "output_norm.weight"].contains(&name) || in_layer() == Some(true)
}
