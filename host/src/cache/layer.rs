//! Differences between the layers of one cache: codecs, and the tokens that queries see.

use crate::error::CacheError;
use tqkv_core::CodecId;

/// Codecs of keys and values.
pub type KvPair = (CodecId, CodecId);

/// Codecs by layer. Other layers use the pair of [`super::CacheSpec::codecs`].
///
/// In many models coarse codes hurt the first and last layers most, and in some the last one most of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerPolicy {
    /// All layers use the same codecs.
    #[default]
    Uniform,
    /// The first and the last `layers` have codecs of their own.
    Boundary {
        /// Number of layers at each end.
        layers: usize,
        /// Their codecs.
        codecs: KvPair,
    },
    /// The last `layers` have codecs of their own.
    Tail {
        /// Number of layers.
        layers: usize,
        /// Their codecs.
        codecs: KvPair,
    },
    /// The layers are divided evenly among these pairs, from first to last.
    Gradient(Vec<KvPair>),
    /// One pair per layer.
    Custom(Vec<KvPair>),
}

impl LayerPolicy {
    /// Codecs of layer `layer` of `num_layers`. `default` is the pair of layers that the policy does not
    /// name.
    ///
    /// # Panics
    /// The layer is not below `num_layers`, or the policy is for another number of layers.
    pub fn codecs(&self, layer: usize, num_layers: usize, default: KvPair) -> KvPair {
        match self {
            Self::Uniform => default,
            Self::Boundary { layers, codecs } if layer < *layers || num_layers - layer <= *layers => *codecs,
            Self::Tail { layers, codecs } if num_layers - layer <= *layers => *codecs,
            Self::Boundary { .. } | Self::Tail { .. } => default,
            Self::Gradient(steps) => steps[layer * steps.len() / num_layers],
            Self::Custom(pairs) => pairs[layer],
        }
    }

    pub(super) fn check(&self, num_layers: usize) -> Result<(), CacheError> {
        let refused = match self {
            Self::Gradient(steps) if steps.is_empty() => {
                "a gradient needs at least one pair of codecs".into()
            }
            Self::Custom(pairs) if pairs.len() != num_layers => {
                format!("{} pairs of codecs for {num_layers} layers: expected one per layer", pairs.len())
            }
            Self::Boundary { layers, .. } | Self::Tail { layers, .. } if *layers > num_layers => {
                format!(
                    "codecs of {layers} layers at an end are not valid: expected at most the {num_layers} that there are"
                )
            }
            Self::Uniform
            | Self::Boundary { .. }
            | Self::Tail { .. }
            | Self::Gradient(_)
            | Self::Custom(_) => {
                return Ok(());
            }
        };
        Err(CacheError::BadSpec(refused))
    }
}

/// Heads of a layer whose keys and values have a shape of their own ([`super::CacheSpec::layer_shapes`]).
/// The number of query heads is that of all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// KV heads; divides the query heads.
    pub num_kv_heads: usize,
    /// Coordinates of a query and of a key.
    pub head_dim: usize,
    /// Coordinates of a value and of a result.
    pub value_dim: usize,
}

/// The tokens that the queries of a layer see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerKind {
    /// Every token.
    #[default]
    Full,
    /// A window of this many newest tokens, as the model has it; older tokens are evicted. The layer keeps no
    /// sinks, because the model does not see them. [`super::CacheSpec::sliding_window`] keeps sinks besides a
    /// window.
    Sliding(usize),
    /// The layer keeps no keys and values, for example a recurrent layer.
    None,
}
