//! Which vectors a cache accepts: what is coded has the limit of its codec, and what stays f16 that of f16.

use super::spec::{CacheSpec, Cold};
use super::vectors::Vectors;
use crate::error::CacheError;
use half::f16;
use tqkv_core::CodecId;
use tqkv_simd::Level;

/// Largest norms of the keys and values of a layer that are coded. There is none for those that stay f16.
pub(super) fn coded_norms(spec: &CacheSpec, layer: usize) -> Result<[f32; 2], CacheError> {
    let codecs = spec.make_codecs(layer, spec.codecs_at(layer))?;
    let demotes = spec.cold.iter().any(|(_, cold)| matches!(cold, Cold::Demote { .. }));
    let mut norms = spec.max_norms(layer)?;
    for (norm, codec) in norms.iter_mut().zip(codecs) {
        if codec.id() == CodecId::F16 && !demotes {
            *norm = f32::INFINITY;
        }
    }
    Ok(norms)
}

/// The place of the first of several tokens.
pub(super) struct VectorPlace {
    pub(super) layer: usize,
    pub(super) token: usize,
    pub(super) num_kv_heads: usize,
    /// Sinks of the layer.
    pub(super) sinks: usize,
}

/// Refuses vectors that cannot be stored.
pub(super) fn check_vectors(
    first: VectorPlace,
    sides: &[Vectors<'_>; 2],
    max_norms: [f32; 2],
    level: Level,
) -> Result<(), CacheError> {
    let VectorPlace { layer, num_kv_heads, sinks, .. } = first;
    for ((what, side), coded) in ["key", "value"].into_iter().zip(sides).zip(max_norms) {
        for (i, vector) in side.rows().enumerate() {
            let (token, kv_head) = (first.token + i / num_kv_heads, i % num_kv_heads);
            let max_norm = if token < sinks { f32::INFINITY } else { coded };
            // Nearly every vector is short enough for both: then no value can be beyond f16.
            if vector.norm(level) <= max_norm.min(f16::MAX.to_f32()) {
                continue;
            }
            if max_norm.is_finite() {
                return Err(CacheError::BadVector { layer, what, token, kv_head, max_norm });
            }
            if !vector.fits_f16() {
                return Err(CacheError::BadValue { layer, what, token, kv_head });
            }
        }
    }
    Ok(())
}
