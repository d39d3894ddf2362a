//! Comparison of two caches of the same tokens, layer by layer.

use serde::Serialize;
use tqkv::cache::Encoded;
use tqkv::cache::{KvCache, LayerKind};
use tqkv::error::CacheError;
use tqkv_core::AnyCodec;

use super::{Alike, Figures};

/// Figures of one layer in two caches.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LayerFigures {
    /// Index of the layer.
    pub(crate) layer: usize,
    /// Keys; with latent attention, the latent vectors, which are keys and values.
    pub(crate) keys: Figures,
    /// Values; null with latent attention.
    pub(crate) values: Option<Figures>,
    /// Mean cosine of the hidden states after the layer, if both sides are runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hidden_cosine: Option<f64>,
}

/// The vectors of one kind in a KV head.
#[derive(Clone, Copy)]
enum HeadSide {
    Keys,
    Values,
}

impl HeadSide {
    fn rows(self, cache: &KvCache, at: (usize, usize), tokens: [usize; 2]) -> Result<Vec<f32>, CacheError> {
        match self {
            Self::Keys => cache.keys(at.0, at.1, tokens[0]..tokens[1]),
            Self::Values => cache.values(at.0, at.1, tokens[0]..tokens[1]),
        }
    }

    fn blocks(self, cache: &KvCache, (layer, kv_head): (usize, usize)) -> Result<Vec<Encoded>, CacheError> {
        match self {
            Self::Keys => cache.key_blocks(layer, kv_head),
            Self::Values => cache.value_blocks(layer, kv_head),
        }
    }
}

/// Compares the vectors of tokens that both caches hold, encoded or not. Codes are compared only for tokens
/// that both hold in the same codec.
///
/// # Errors
/// The first difference in the shapes, or a page that cannot be read back.
pub(crate) fn caches(a: &KvCache, b: &KvCache) -> Result<Vec<LayerFigures>, String> {
    let (left, right) = (a.spec(), b.spec());
    let (of_a, of_b) = (left.shape, right.shape);
    for (what, a, b) in [
        ("layers", of_a.num_layers, of_b.num_layers),
        ("KV heads", of_a.num_kv_heads, of_b.num_kv_heads),
        ("coordinates per key", of_a.head_dim, of_b.head_dim),
        ("coordinates per value", of_a.value_dim, of_b.value_dim),
        ("positional coordinates", left.position_dim, right.position_dim),
        ("tokens", a.len(), b.len()),
    ] {
        if a != b {
            return Err(format!("A has {a} {what}, B has {b}: expected caches of the same tokens"));
        }
    }
    if a.is_empty() {
        return Err("there are no tokens in them".to_owned());
    }
    let kept = |layer: &usize| left.kind(*layer) != LayerKind::None && right.kind(*layer) != LayerKind::None;
    let layers = (0..of_a.num_layers).filter(kept).map(|layer| {
        let side = |kind| side(kind, [a, b], layer).map_err(|error| error.to_string());
        let values = (left.position_dim == 0).then(|| side(HeadSide::Values)).transpose()?;
        Ok(LayerFigures { layer, keys: side(HeadSide::Keys)?, values, hidden_cosine: None })
    });
    layers.collect()
}

fn side(kind: HeadSide, caches: [&KvCache; 2], layer: usize) -> Result<Figures, CacheError> {
    let mut alike = Alike::default();
    let [a, b] = caches;
    let dim = if a.spec().position_dim > 0 || matches!(kind, HeadSide::Values) {
        a.spec().shape.value_dim
    } else {
        a.spec().shape.head_dim
    };
    for kv_head in 0..a.spec().shape.num_kv_heads {
        let at = (layer, kv_head);
        let from = first_held(kind, a, at)?.max(first_held(kind, b, at)?);
        let tokens = [from, a.len()];
        alike.rows(dim, &kind.rows(a, at, tokens)?, &kind.rows(b, at, tokens)?);
        if a.spec().options.seed == b.spec().options.seed {
            codes(&mut alike, a, &kind.blocks(a, at)?, &kind.blocks(b, at)?);
        }
    }
    Ok(alike.figures())
}

/// The first token from which all later tokens are held.
fn first_held(kind: HeadSide, cache: &KvCache, at: (usize, usize)) -> Result<usize, CacheError> {
    // Evicted tokens follow the sinks, so the token after the sinks decides.
    match kind.rows(cache, at, [0, cache.len().min(cache.spec().sinks + 1)]) {
        Ok(_) => Ok(0),
        Err(CacheError::NoTokens { first_live, .. }) => Ok(first_live),
        Err(error) => Err(error),
    }
}

/// Compares the blocks of tokens that both hold in the same codec.
fn codes(alike: &mut Alike, cache: &KvCache, a: &[Encoded], b: &[Encoded]) {
    for run in a {
        let Ok(codec) = AnyCodec::new(run.codec, run.dim, cache.spec().options) else { continue };
        let bytes = codec.block_bytes();
        let end = |run: &Encoded| run.first + run.blocks.len() / bytes;
        for other in b.iter().filter(|other| other.codec == run.codec) {
            let (from, to) = (run.first.max(other.first), end(run).min(end(other)));
            if from < to {
                let part = |run: &Encoded| (from - run.first) * bytes..(to - run.first) * bytes;
                alike.blocks(&codec, &run.blocks[part(run)], &other.blocks[part(other)]);
            }
        }
    }
}
