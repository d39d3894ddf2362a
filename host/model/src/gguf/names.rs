//! Names of tensors there and here.

/// The embedding, the head and the frequencies' factors.
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";
pub(super) const FACTORS: &str = "rope_freqs.weight";

/// Parts of a layer: in Hugging Face checkpoints, and here.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
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
    let (_, here) = PARTS.iter().find(|(there, _)| *there == part)?;
    Some(format!("blk.{layer}.{here}.{kind}"))
}

/// Whether a tensor of that name is read.
pub(super) fn is_known(name: &str) -> bool {
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let is_part = PARTS.iter().any(|(_, here)| *here == part) && ["weight", "bias"].contains(&kind);
        Some(is_part && layer.bytes().all(|digit| digit.is_ascii_digit()))
    };
    [EMBEDDING, HEAD, FACTORS, "output_norm.weight"].contains(&name) || in_layer() == Some(true)
}
