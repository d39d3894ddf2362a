//! What layers of one cache do differently: codecs by policy, and the kind of attention.

use crate::error::CacheError;
use tqkv_core::CodecId;

/// Codecs of keys and values.
pub type KvPair = (CodecId, CodecId);

/// Which layers have which codecs; the pair of [`super::CacheSpec::codecs`] is that of all others.
///
/// First and last layers suffer most from coarse codes in many models, the last most of all in some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerPolicy {
    /// All alike.
    #[default]
    Uniform,
    /// The first and the last `layers` have codecs of their own.
    Boundary {
        /// How many at each end.
        layers: usize,
        /// Their codecs.
        codecs: KvPair,
    },
    /// The last `layers` have codecs of their own.
    Tail {
        /// How many.
        layers: usize,
        /// Their codecs.
        codecs: KvPair,
    },
    /// Layers are divided evenly among the steps, from the first to the last.
    Gradient(Vec<KvPair>),
    /// One pair a layer.
    Custom(Vec<KvPair>),
}

impl LayerPolicy {
    /// Codecs of a layer where `default` is the pair of the others.
    pub(super) fn codecs(&self, layer: usize, num_layers: usize, default: KvPair) -> KvPair {
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
                format!("{} pairs of codecs for {num_layers} layers; accepted is one a layer", pairs.len())
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

/// What a layer's queries see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerKind {
    /// Every token.
    #[default]
    Full,
    /// So many newest tokens, as the model has it; older ones are evicted. The layer has no sinks: the model
    /// does not see them. [`super::CacheSpec::sliding_window`] keeps sinks beside a window.
    Sliding(usize),
    /// The layer keeps no keys and values (it is recurrent, say) and holds no token.
    None,
}
