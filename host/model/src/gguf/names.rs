//! Names of tensors there and here.

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
const PARTS: [(&str, &str, Part); 11] = [
    ("input_layernorm", "attn_norm", Part::Norm),
    ("post_attention_layernorm", "ffn_norm", Part::Norm),
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

/// The name in Hugging Face checkpoints of a tensor here; `None` where they have none of its kind.
pub(super) fn there(name: &str) -> Option<String> {
    match name {
        EMBEDDING => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        HEAD => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (there, ..) = PARTS.iter().find(|(_, here, _)| *here == part)?;
    Some(format!("model.layers.{layer}.{there}.{kind}"))
}

/// Whether a tensor of that name is read of a model of so many layers, which may have norms of heads.
pub(super) fn is_read(name: &str, layers: usize, has_head_norms: bool) -> bool {
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let (.., part) = PARTS.iter().find(|(_, here, _)| *here == part)?;
        let is_there = *part != Part::HeadNorm || has_head_norms;
        let is_kind = kind == "weight" || kind == "bias" && *part == Part::Projection;
        Some(is_there && is_kind && layer.parse::<usize>().is_ok_and(|layer| layer < layers))
    };
    [EMBEDDING, HEAD, FACTORS, "output_norm.weight"].contains(&name) || in_layer() == Some(true)
}
