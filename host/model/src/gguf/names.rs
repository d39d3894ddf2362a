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

/// The name here of a tensor in a Hugging Face checkpoint.
pub(super) fn here(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some(EMBEDDING.to_owned()),
        "model.norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some(HEAD.to_owned()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, here, _) = PARTS.iter().find(|(there, ..)| *there == part)?;
    Some(format!("blk.{layer}.{here}.{kind}"))
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
