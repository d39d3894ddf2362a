//! Named pairs of codecs, for programs that do not choose codecs themselves.

use super::layer::KvPair;
use super::spec::CacheSpec;
use crate::error::CacheError;
use tqkv_core::CodecId;

/// A named pair of codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// Codecs of keys and values.
    pub codecs: KvPair,
}

const fn preset(name: &'static str, key: CodecId, value: CodecId) -> Preset {
    Preset { name, codecs: (key, value) }
}

/// Every preset, from the most bytes to the fewest.
pub const PRESETS: &[Preset] = &[
    // About half the bytes of f16.
    preset("eight-bit", CodecId::I8, CodecId::I8),
    preset("safe-lowbit", CodecId::I8, CodecId::S4),
    // Half the error of balanced at the same bytes.
    preset("near-lossless", CodecId::T4, CodecId::T4),
    // Encodes fastest.
    preset("balanced", CodecId::S4, CodecId::S4),
    // A fifth of f16. Keys cause most of a model's loss, so they have more bits.
    preset("compact", CodecId::T4, CodecId::T2),
    // A sixth of f16. Maps of keys divide what a copy of old text loses by 2 to 20.
    preset("small", CodecId::M3, CodecId::T2),
    // An eighth of f16.
    preset("tiny", CodecId::M2, CodecId::T2),
];

impl CacheSpec {
    /// Sets the codecs to those of a preset ([`PRESETS`]). The name is not case-sensitive.
    ///
    /// ```
    /// use tqkv::CodecId;
    /// use tqkv::cache::CacheSpec;
    ///
    /// let spec = CacheSpec::new(32, 32, 8, 128).preset("balanced")?;
    /// assert_eq!((spec.key, spec.value), (CodecId::S4, CodecId::S4));
    /// # Ok::<(), tqkv::error::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::BadSpec`] for a name that is not a preset; the text lists the presets. A codec name is
    /// not a preset: use [`CacheSpec::codecs`].
    pub fn preset(self, name: &str) -> Result<Self, CacheError> {
        if let Some(found) = PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name)) {
            return Ok(self.codecs(found.codecs.0, found.codecs.1));
        }
        let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
        let names = names.join(", ");
        Err(CacheError::BadSpec(match name.parse::<CodecId>() {
            Ok(_) => format!("'{name}' is a codec, not a preset: expected {names}"),
            Err(_) => format!("no preset is named '{name}': expected {names}"),
        }))
    }
}
