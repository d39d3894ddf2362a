//! Which codec stores the keys of a layer. Codes of quarters (`m2`, `m3`) need a map of the keys, so where there can
//! be none, the code of one width takes their place.

use super::layer::KvPair;
use super::spec::{CacheSpec, Centring, Cold, KeyMap};
use crate::error::CacheError;
use tqkv_core::CodecId;

/// The map that the keys of a layer learn from queries.
pub fn learnt_map(spec: &CacheSpec, layer: usize) -> KeyMap {
    match spec.key_map {
        _ if !spec.has_map(layer) => KeyMap::Off,
        KeyMap::Auto => KeyMap::Pairs,
        kind => kind,
    }
}

impl CacheSpec {
    /// Codecs of a layer's warm keys and values. Keys without a map have a codec of one width.
    pub fn codecs_at(&self, layer: usize) -> (CodecId, CodecId) {
        let (key, value) = self.named_codecs(layer);
        (self.key_codec(layer, key), value)
    }

    /// The codecs that the spec names for a layer.
    pub(super) fn named_codecs(&self, layer: usize) -> KvPair {
        self.layers.codecs(layer, self.shape.num_layers, (self.key, self.value))
    }

    /// The codec of keys that a layer stores for a named one.
    pub(crate) fn key_codec(&self, layer: usize, named: CodecId) -> CodecId {
        let fits = named.block_bytes(self.shape_at(layer).head_dim).is_some();
        if self.has_map(layer) && fits { named } else { named.of_one_width() }
    }

    /// True if the keys of some tier of a layer are named in a code of quarters, which its head dim has.
    fn names_quarters(&self, layer: usize) -> bool {
        let fits = CodecId::M2.block_bytes(self.shape_at(layer).head_dim).is_some();
        let named = |cold: &Cold| matches!(cold, Cold::Demote { key, .. } if key.rotates_quarters());
        fits && (self.named_codecs(layer).0.rotates_quarters()
            || self.cold.iter().any(|(_, cold)| named(cold)))
    }

    /// True if the keys of some tier of a layer are stored in a code of quarters, if they get a map.
    pub(super) fn stores_quarters(&self, layer: usize) -> bool {
        let stored = |key| self.key_codec(layer, key).rotates_quarters();
        let cold = self.cold.iter().any(|(_, cold)| matches!(*cold, Cold::Demote { key, .. } if stored(key)));
        cold || stored(self.named_codecs(layer).0)
    }

    /// Refuses codes of quarters for values, which have no map.
    pub(super) fn check_quarters(&self, layer: usize) -> Result<(), CacheError> {
        let value = self.named_codecs(layer).1;
        if value.rotates_quarters() && self.position_dim == 0 {
            return Err(CacheError::BadSpec(format!(
                "{} is not valid for values: expected a codec of one width, such as t2",
                value.name()
            )));
        }
        Ok(())
    }

    /// True if the keys of a layer go through a map, once it is learnt. A code that is not rotated spreads its
    /// error by itself, latent vectors are values too, and a ring takes no memory later.
    pub(super) fn has_map(&self, layer: usize) -> bool {
        self.can_have_map(layer)
            && match self.key_map {
                KeyMap::Auto => self.names_quarters(layer),
                KeyMap::Off => false,
                KeyMap::Pairs => true,
            }
    }

    fn can_have_map(&self, layer: usize) -> bool {
        self.named_codecs(layer).0.is_rotated()
            && self.position_dim == 0
            && self.ring.is_none()
            && self.shape_at(layer).head_dim.is_multiple_of(2)
    }

    /// True if keys of a layer that learns no map get factors by themselves where few pairs hold their energy.
    /// The keys of their mean decide it, so it needs centring.
    pub(super) fn may_get_map(&self, layer: usize) -> bool {
        let can = self.can_have_map(layer) && self.centring != Centring::Off;
        can && self.key_map == KeyMap::Auto && !self.names_quarters(layer)
    }
}
