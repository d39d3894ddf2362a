//! Named pairs of codecs, for programs that do not choose codecs themselves.

use super::layer::KvPair;
use tqkv_core::CodecId;

/// A named pair of codecs, or a named policy.
///
/// ```
/// use tqkv::CodecId;
/// use tqkv::cache::CacheSpec;
///
/// let spec = CacheSpec::new(32, 32, 8, 128).with("compact")?;
/// assert_eq!((spec.key, spec.value), (CodecId::T4, CodecId::T2));
/// let tiny = CacheSpec::new(32, 32, 8, 128).with("tiny hot=32")?;
/// assert_eq!((tiny.key, tiny.hot, tiny.cold.len()), (CodecId::M3, 32, 1));
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// Codecs of keys and values, once they leave the hot window.
    pub codecs: KvPair,
    /// Other options that it stands for, with their values, where a text does not have them itself.
    pub options: &'static [(&'static str, &'static str)],
}

const fn preset(name: &'static str, key: CodecId, value: CodecId) -> Preset {
    Preset { name, codecs: (key, value), options: &[] }
}

/// Every preset, from the most bytes of old tokens to the fewest.
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
    // Values of newer tokens have more bits than those of older ones. Keys keep theirs, because a key that was
    // encoded twice has the errors of both codes.
    Preset { options: &[("hot", "16"), ("tier", "128:m3,t2")], ..preset("tiered", CodecId::M3, CodecId::T4) },
    // An eighth of f16. The third bit of the keys of 1,024 tokens takes what 48 tokens less in f16 save.
    Preset { options: &[("hot", "16"), ("tier", "1024:m2,t2")], ..preset("tiny", CodecId::M3, CodecId::T2) },
];

impl Preset {
    /// The preset of a name, in any case.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name))
    }
}
