//! Which settings of a spec a cache of slots has.

use crate::cache::spec::{CacheSpec, Cold};
use crate::cache::text::{Door, OptionPart};
use crate::error::CacheError;
use tqkv_core::{AnyCodec, CodecId, KvShape, Options};
use tqkv_simd::page::{KeyPages, ValuePages};

/// Slots of the smallest page, which every codec with page kernels has.
const LEAST_SLOTS: usize = 32;

/// Refuses a spec that a cache of slots cannot have.
///
/// Which tokens a query sees is the mask's, and the engine frees slots, so there is no window and no ring.
///
/// # Errors
/// [`CacheError::BadSpec`] names the setting and what is accepted, or an error of the shape.
pub fn check(spec: &CacheSpec) -> Result<(), CacheError> {
    spec.check()?;
    if let Some(word) = Door::Slots.refused(spec).first() {
        return Err(CacheError::BadSpec(format!(
            "{word} is not valid in a cache of slots: expected {}",
            Door::Slots.accepted(&[OptionPart::Policy])
        )));
    }
    for layer in 0..spec.shape.num_layers {
        let (key, value) = spec.codecs_at(layer);
        let KvShape { head_dim, value_dim, .. } = spec.shape_at(layer);
        check_codec(key, head_dim, spec.options)?;
        check_codec(value, value_dim, spec.options)?;
        for (_, cold) in &spec.cold {
            if let Cold::Demote { key, value } = *cold {
                check_codec(spec.key_codec(layer, key), head_dim, spec.options)?;
                check_codec(value, value_dim, spec.options)?;
            }
        }
    }
    Ok(())
}

/// Refuses a codec that attention cannot read without decoding it, and one without this head dim.
fn check_codec(id: CodecId, dim: usize, options: Options) -> Result<(), CacheError> {
    if !serves(id) {
        let served = CodecId::ALL.iter().filter(|codec| serves(**codec)).map(|codec| codec.name());
        let served = served.collect::<Vec<_>>().join(", ");
        return Err(CacheError::BadSpec(format!(
            "{} is not valid in a cache of slots: expected one of {served}",
            id.name()
        )));
    }
    let codec = AnyCodec::new(id, dim, options);
    codec.map(|_| ()).map_err(|error| CacheError::BadSpec(format!("codec {} at {dim}: {error}", id.name())))
}

/// True for f16, and for codecs whose pages have kernels.
fn serves(id: CodecId) -> bool {
    let has_pages = |codec: AnyCodec| {
        KeyPages::new(&codec, LEAST_SLOTS).is_some() && ValuePages::new(&codec, LEAST_SLOTS).is_some()
    };
    id == CodecId::F16 || AnyCodec::new(id, 128, Options::DEFAULT).is_ok_and(has_pages)
}
