//! The spec of a cache: a plain struct that may grow at its end. The library fills it with defaults.
//!
//! Enumerations are passed as numbers and checked, because a C program may pass any number.

use crate::error::{Failure, TqkvStatus};
use crate::floats::room;
use crate::number::{self, one_of, options};
use crate::pointer::{Call, Plain};
use std::ffi::c_char;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, LayerKind, LayerPolicy};
use tqkv_core::KvShape;

/// The choice of the scale that a block stores.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvScaleMode {
    /// The norm, as in the paper.
    TqkvScaleRaw = 0,
    /// The decoded vector has the norm of the original.
    TqkvScalePreserving = 1,
    /// Dot products do not shrink on average. The default.
    TqkvScaleUnbiased = 2,
    /// Least squared error.
    TqkvScaleMmse = 3,
}

/// How hard an encoder searches for a good scale.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvEffort {
    /// Tries one scale.
    TqkvEffortFast = 0,
    /// Tries a few scales if that helps. The default.
    TqkvEffortDefault = 1,
    /// Tries many scales.
    TqkvEffortBest = 2,
}

/// Key centring: the mean of earlier keys is subtracted from keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvCentring {
    /// Keys are stored as they are.
    TqkvCentringOff = 0,
    /// The mean is subtracted.
    TqkvCentringOn = 1,
    /// The mean is subtracted if it holds enough of the energy of the keys. The default.
    TqkvCentringAuto = 2,
}

/// Number format when single queries meet encoded tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvArithmetic {
    /// Signed bytes and exact sums, with the same bits on every machine. The default.
    TqkvArithmeticInt8 = 0,
    /// Exact levels, sums in 32-bit floats.
    TqkvArithmeticF32 = 1,
}

/// A cold tier.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvTier {
    /// Number of tokens, counted from the newest, after which encoded ones go there.
    pub after: usize,
    /// Folder of the file that they are moved to, only in the last tier. Null: they are encoded again.
    pub spill_folder: *const c_char,
    /// Codec for keys that are encoded again.
    pub key_codec: u32,
    /// Codec for values that are encoded again.
    pub value_codec: u32,
}

// The fields are numbers and pointers, so every bit pattern is a value.
impl Plain for TqkvTier {}
impl Plain for TqkvSpec {}

/// The spec of a cache. Fill it with `tqkv_spec_init`, then change fields. Later versions add fields at the
/// end, and compiled programs keep working.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvSpec {
    /// Bytes of the struct in the program's version.
    pub struct_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides num_heads.
    pub num_kv_heads: usize,
    /// Coordinates of a head vector.
    pub head_dim: usize,
    /// Number of first tokens that stay f16 for ever.
    pub sinks: usize,
    /// Number of newest tokens that stay f16.
    pub hot: usize,
    /// Number of tokens that a query sees besides the sinks; older ones are evicted. 0: all tokens.
    pub sliding_window: usize,
    /// Number of tokens, counted from the newest, after which encoded ones go cold. 0: never.
    pub cold_after: usize,
    /// Used if cold_after is not 0: the folder of the file that cold tokens are moved to. Null: they are
    /// encoded again with cold_key_codec and cold_value_codec.
    pub spill_folder: *const c_char,
    /// Seed of the rotation.
    pub seed: u64,
    /// Codec of keys, a number from `tqkv_codec_from_name`.
    pub key_codec: u32,
    /// Codec of values.
    pub value_codec: u32,
    /// Codec of cold keys.
    pub cold_key_codec: u32,
    /// Codec of cold values.
    pub cold_value_codec: u32,
    /// A `tqkv_scale_mode`.
    pub scale_mode: u32,
    /// A `tqkv_effort`.
    pub effort: u32,
    /// A `tqkv_centring`.
    pub centring: u32,
    /// A `tqkv_arithmetic`.
    pub arithmetic: u32,
    /// Coordinates of a value and of a result. 0: head_dim.
    pub value_dim: usize,
    /// Further cold tiers, each older than the one before it and than cold_after. Null: none. Arrays are read
    /// when a cache is made, and not kept.
    pub tiers: *const TqkvTier,
    /// Length of tiers.
    pub tiers_len: usize,
    /// For each layer, the number of tokens that a query sees in the model, without sinks. 0: all tokens.
    /// SIZE_MAX: the layer keeps no keys and values. Null: sliding_window applies to all layers.
    pub layer_windows: *const usize,
    /// num_layers, or 0.
    pub layer_windows_len: usize,
    /// For each layer, the codec of keys and the codec of values. Null: key_codec and value_codec for all
    /// layers.
    pub layer_codecs: *const u32,
    /// 2 * num_layers, or 0.
    pub layer_codecs_len: usize,
    /// Learned sinks, [num_layers, num_heads]: logits that take weight and add no value. Null: none.
    pub sink_logits: *const f32,
    /// num_layers * num_heads, or 0.
    pub sink_logits_len: usize,
    /// Scale of the logits. 0: 1 / sqrt(head_dim).
    pub scale: f32,
    /// Soft cap: a logit l becomes soft_cap * tanh(l / soft_cap). 0: no cap.
    pub soft_cap: f32,
    /// Must be 0.
    pub reserved: u64,
    /// A text of further options, such as "t4,t2 hot=32 last:i8 tier=4096:t2". If it names an option, the
    /// field of that option has no effect. The text is read when a cache is made, and not kept. Null: none.
    /// `tqkv_spec_from_text` sets it.
    pub text: *const c_char,
}

/// Bytes of the first version of the struct. WARNING: compiled programs use it. Fields are added, but this
/// number stays.
const FIRST_SIZE: usize = std::mem::offset_of!(TqkvSpec, arithmetic) + size_of::<u32>();

/// Bytes of the first version of the struct that has a text.
const TEXT_SIZE: usize = std::mem::offset_of!(TqkvSpec, text) + size_of::<*const c_char>();

impl TqkvSpec {
    fn new(num_layers: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        Self::of(&CacheSpec::new(num_layers, num_heads, num_kv_heads, head_dim))
    }

    /// The part of a spec that fits the fields without arrays.
    fn of(spec: &CacheSpec) -> Self {
        let centring = match spec.centring {
            Centring::Off => TqkvCentring::TqkvCentringOff,
            Centring::On => TqkvCentring::TqkvCentringOn,
            Centring::Auto => TqkvCentring::TqkvCentringAuto,
        };
        let arithmetic = match spec.arithmetic {
            Arithmetic::Int8 => TqkvArithmetic::TqkvArithmeticInt8,
            Arithmetic::F32 => TqkvArithmetic::TqkvArithmeticF32,
        };
        let (key, value) = (u32::from(spec.key.code()), u32::from(spec.value.code()));
        let KvShape { num_layers, num_heads, num_kv_heads, head_dim, value_dim, .. } = spec.shape;
        Self {
            struct_size: size_of::<Self>(),
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            sinks: spec.sinks,
            hot: spec.hot,
            sliding_window: spec.sliding_window.unwrap_or(0),
            cold_after: 0,
            spill_folder: std::ptr::null(),
            seed: spec.options.seed,
            key_codec: key,
            value_codec: value,
            cold_key_codec: key,
            cold_value_codec: value,
            scale_mode: u32::from(spec.options.scale_mode.code()),
            effort: spec.options.effort as u32,
            centring: centring as u32,
            arithmetic: arithmetic as u32,
            value_dim: if value_dim == head_dim { 0 } else { value_dim },
            tiers: std::ptr::null(),
            tiers_len: 0,
            layer_windows: std::ptr::null(),
            layer_windows_len: 0,
            layer_codecs: std::ptr::null(),
            layer_codecs_len: 0,
            sink_logits: std::ptr::null(),
            sink_logits_len: 0,
            scale: spec.scale.unwrap_or(0.0),
            soft_cap: spec.soft_cap.unwrap_or(0.0),
            reserved: 0,
            text: std::ptr::null(),
        }
    }

    /// Reads the spec of the program. Its texts and arrays are checked as pointers of the same call.
    pub(crate) fn read(call: &Call, pointer: *const Self) -> Result<CacheSpec, Failure> {
        let mut spec = Self::new(0, 0, 0, 0);
        call.read_struct("spec", pointer, FIRST_SIZE, &mut spec)?;
        if spec.reserved != 0 {
            return Err(Failure::argument("spec sets fields that only a later version of the library knows"));
        }
        let mut shape = KvShape::new(spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim);
        if spec.value_dim != 0 {
            shape = shape.with_value_dim(spec.value_dim);
        }
        let mut made = CacheSpec::from(shape)
            .codecs(
                number::codec("key_codec", spec.key_codec)?,
                number::codec("value_codec", spec.value_codec)?,
            )
            .options(options(spec.seed, spec.scale_mode, spec.effort)?)
            .sinks(spec.sinks)
            .hot(spec.hot)
            .centring(one_of("centring", spec.centring, &[Centring::Off, Centring::On, Centring::Auto])?)
            .arithmetic(one_of("arithmetic", spec.arithmetic, &[Arithmetic::Int8, Arithmetic::F32])?);
        if spec.sliding_window != 0 {
            made = made.sliding_window(spec.sliding_window);
        }
        if spec.cold_after != 0 {
            let first = TqkvTier {
                after: spec.cold_after,
                spill_folder: spec.spill_folder,
                key_codec: spec.cold_key_codec,
                value_codec: spec.cold_value_codec,
            };
            made = made.cold(first.after, first.read(call, "cold_")?);
        }
        for tier in call.optional("tiers", spec.tiers, spec.tiers_len)? {
            made = made.cold(tier.after, tier.read(call, "")?);
        }
        let layers = spec.num_layers;
        let windows = array(call, "layer_windows", spec.layer_windows, spec.layer_windows_len, layers)?;
        let mut kinds = room(windows.len())?;
        kinds.extend(windows.iter().copied().map(kind));
        made = made.kinds(kinds);
        // If the product overflows, it exceeds every array, so none is read.
        let numbers = layers.saturating_mul(2);
        let codecs = array(call, "layer_codecs", spec.layer_codecs, spec.layer_codecs_len, numbers)?;
        if !codecs.is_empty() {
            let number = |codec| number::codec("layer_codecs", codec);
            let mut pairs = room(spec.num_layers)?;
            for &[key, value] in codecs.as_chunks::<2>().0 {
                pairs.push((number(key)?, number(value)?));
            }
            made = made.layers(LayerPolicy::Custom(pairs));
        }
        let logits = layers.saturating_mul(spec.num_heads);
        let logits = array(call, "sink_logits", spec.sink_logits, spec.sink_logits_len, logits)?;
        let mut sinks = room(logits.len())?;
        sinks.extend_from_slice(logits);
        made = made.sink_logits(sinks);
        if spec.scale != 0.0 {
            made = made.scale(spec.scale);
        }
        if spec.soft_cap != 0.0 {
            made = made.soft_cap(spec.soft_cap);
        }
        if !spec.text.is_null() {
            made = made.with(call.text("text", spec.text)?)?;
        }
        Ok(made)
    }
}

impl TqkvTier {
    /// Reads a cold tier. `prefix` is put before the names of the fields in error texts.
    fn read(&self, call: &Call, prefix: &str) -> Result<Cold, Failure> {
        if !self.spill_folder.is_null() {
            return Ok(Cold::Spill(call.text("spill_folder", self.spill_folder)?.into()));
        }
        Ok(Cold::Demote {
            key: number::codec(&format!("{prefix}key_codec"), self.key_codec)?,
            value: number::codec(&format!("{prefix}value_codec"), self.value_codec)?,
        })
    }
}

/// The kind of a layer with this window.
fn kind(window: usize) -> LayerKind {
    match window {
        0 => LayerKind::Full,
        usize::MAX => LayerKind::None,
        tokens => LayerKind::Sliding(tokens),
    }
}

/// An array of a spec; empty for null. The length is checked before any element is read.
fn array<'c, T: Plain>(
    call: &'c Call,
    what: &'static str,
    pointer: *const T,
    len: usize,
    wanted: usize,
) -> Result<&'c [T], Failure> {
    if !pointer.is_null() && len != wanted {
        return Err(Failure::argument(format!("{what} has {len} values, expected {wanted}")));
    }
    call.optional(what, pointer, len)
}

/// Fills a spec with the defaults: codec s4 for keys and values, 4 sinks, a hot window of 64 tokens, and
/// automatic centring. There is no sliding window and no cold tier, and all layers are alike. `struct_size`
/// is `sizeof(tqkv_spec)`. The shape is checked when a cache is made.
///
/// # Safety
/// `spec` is null or points to `struct_size` bytes that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_spec_init(
    spec: *mut TqkvSpec,
    struct_size: usize,
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
) -> TqkvStatus {
    let defaults = TqkvSpec { struct_size, ..TqkvSpec::new(num_layers, num_heads, num_kv_heads, head_dim) };
    // SAFETY: `spec` has room for `struct_size` bytes, by the contract of this call.
    unsafe { Call::new() }.run(|call| call.write_struct("spec", spec, struct_size, FIRST_SIZE, &defaults))
}

/// Fills a spec from one text, which has the shape and every option that differs from the defaults.
/// docs/options.md lists the words.
///
/// "layers=32 heads=32 kv-heads=8 head-dim=128 t4,t2 hot=32 last:i8 tier=4096:t2"
///
/// Fields that hold a number are set. The other options stay in `text`, which must be valid until the last
/// cache of this spec is made. `struct_size` is `sizeof(tqkv_spec)`. If the text is refused, nothing changes,
/// and `tqkv_last_error` says what is accepted. A program that has the shape in numbers calls
/// `tqkv_spec_init` and sets `text` itself.
///
/// # Safety
/// `spec` is null or points to `struct_size` bytes that can be written. `text` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_spec_from_text(
    spec: *mut TqkvSpec,
    struct_size: usize,
    text: *const c_char,
) -> TqkvStatus {
    // SAFETY: `text` is text and `spec` has room for `struct_size` bytes, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let read: CacheSpec = call.text("text", text)?.parse()?;
        let made = TqkvSpec { struct_size, text, ..TqkvSpec::of(&read) };
        call.write_struct("spec", spec, struct_size, TEXT_SIZE, &made)
    })
}

/// Sets the codecs of a spec to those of a preset: "eight-bit", "safe-lowbit", "near-lossless", "balanced",
/// "compact" or "tiny". An unknown name changes nothing.
///
/// # Safety
/// `spec` is null or was filled by `tqkv_spec_init`. `name` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_spec_preset(spec: *mut TqkvSpec, name: *const c_char) -> TqkvStatus {
    // SAFETY: `spec` is a spec, whose first version has both fields, and `name` is text, by the contract of
    // this call.
    unsafe { Call::new() }.run(|call| {
        // The whole struct is checked first, because a field of a null struct is not null. The fields are
        // claimed below.
        call.room::<u8>("spec", spec.cast(), 0)?;
        let field = |offset| spec.wrapping_byte_add(offset).cast::<u32>();
        let key = call.place("spec", field(std::mem::offset_of!(TqkvSpec, key_codec)))?;
        let value = call.place("spec", field(std::mem::offset_of!(TqkvSpec, value_codec)))?;
        let preset = CacheSpec::new(1, 1, 1, 64).preset(call.text("name", name)?)?;
        key.write(u32::from(preset.key.code()));
        value.write(u32::from(preset.value.code()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use TqkvArithmetic::*;
    use TqkvCentring::*;
    use TqkvEffort::*;
    use TqkvScaleMode::*;
    use std::ffi::CString;
    use tqkv::unstable::cache::{OPTIONS, Part};
    use tqkv_core::{Effort, Options, ScaleMode};

    /// Reads a spec whose texts and arrays outlive the call.
    fn read(spec: &TqkvSpec) -> Result<CacheSpec, Failure> {
        // SAFETY: the struct is whole, its texts end with a zero, and its arrays are as long as it says.
        TqkvSpec::read(&unsafe { Call::new() }, spec)
    }

    #[test]
    fn the_numbers_of_the_header_are_those_of_the_library() {
        let scales = [TqkvScaleRaw, TqkvScalePreserving, TqkvScaleUnbiased, TqkvScaleMmse];
        let names = ["raw", "preserving", "unbiased", "mmse"];
        for (scale, name) in scales.into_iter().zip(names) {
            assert_eq!(options(1, scale as u32, 1).unwrap().scale_mode.name(), name);
        }
        for (effort, name) in
            [TqkvEffortFast, TqkvEffortDefault, TqkvEffortBest].into_iter().zip(["fast", "default", "best"])
        {
            assert_eq!(options(1, 2, effort as u32).unwrap().effort.name(), name);
        }
        assert!(options(1, 4, 1).is_err() && options(1, 2, u32::MAX).is_err());
    }

    #[test]
    fn a_filled_spec_is_the_default_of_the_library() {
        let filled = TqkvSpec::new(2, 8, 2, 128);
        let found = read(&filled).unwrap();
        assert_eq!(found, CacheSpec::new(2, 8, 2, 128));
    }

    /// Every option gives the same spec as the library does. The test has two forms: the shape in the fields,
    /// and the shape in the text.
    #[test]
    fn every_option_arrives_as_text() {
        const SHAPE: &str = "layers=2 heads=4 kv-heads=2 head-dim=64";
        for option in OPTIONS {
            let name = format!("{}=", option.name);
            let others = SHAPE.split(' ').filter(|word| !word.starts_with(&name)).map(str::to_owned);
            let word = format!("{name}{}", option.example);
            let text = others.chain([word.clone()]).collect::<Vec<_>>().join(" ");
            let c_text = CString::new(text.clone()).unwrap();
            let mut filled = TqkvSpec::new(0, 0, 0, 0);
            // SAFETY: the struct is whole, and the text ends with a zero.
            let status =
                unsafe { tqkv_spec_from_text(&raw mut filled, size_of::<TqkvSpec>(), c_text.as_ptr()) };
            assert_eq!(status, TqkvStatus::TqkvOk, "{text}");
            assert_eq!(read(&filled).unwrap(), text.parse().unwrap(), "{text}");
            if option.part == Part::Policy {
                let word = CString::new(word).unwrap();
                let numbers = TqkvSpec { text: word.as_ptr(), ..TqkvSpec::new(2, 4, 2, 64) };
                assert_eq!(read(&numbers).unwrap(), text.parse().unwrap(), "{text}");
            }
        }
    }

    #[test]
    fn a_text_that_is_refused_changes_nothing() {
        let mut spec = TqkvSpec::new(1, 2, 1, 128);
        for (text, size) in [(c"t4", size_of::<TqkvSpec>()), (c"layers=1 heads=1 head-dim=64", TEXT_SIZE - 1)]
        {
            // SAFETY: the struct is whole, and the text ends with a zero.
            let status = unsafe { tqkv_spec_from_text(&raw mut spec, size, text.as_ptr()) };
            assert_eq!(status, TqkvStatus::TqkvBadArgument);
            assert_eq!((spec.num_heads, spec.head_dim, spec.text.is_null()), (2, 128, true));
        }
        spec.text = c"hot=a".as_ptr();
        assert!(read(&spec).is_err());
    }

    #[test]
    fn every_field_arrives() {
        let number = |name| u32::from(tqkv_core::CodecId::from_name(name).unwrap().code());
        let mut spec = TqkvSpec {
            sinks: 1,
            hot: 2,
            sliding_window: 300,
            cold_after: 200,
            seed: 9,
            key_codec: number("n4"),
            value_codec: number("t3"),
            cold_key_codec: number("n2"),
            cold_value_codec: number("t1"),
            scale_mode: TqkvScaleRaw as u32,
            effort: TqkvEffortBest as u32,
            centring: TqkvCentringOn as u32,
            arithmetic: TqkvArithmeticF32 as u32,
            ..TqkvSpec::new(2, 8, 2, 128)
        };
        let found = read(&spec).unwrap();
        let id = |name| tqkv_core::CodecId::from_name(name).unwrap();
        let want = CacheSpec::new(2, 8, 2, 128)
            .codecs(id("n4"), id("t3"))
            .options(Options::DEFAULT.seed(9).scale_mode(ScaleMode::Raw).effort(Effort::Best))
            .sinks(1)
            .hot(2)
            .centring(Centring::On)
            .arithmetic(Arithmetic::F32)
            .sliding_window(300);
        assert_eq!(found, want.clone().cold(200, Cold::Demote { key: id("n2"), value: id("t1") }));
        let tiers = [TqkvTier {
            after: 300,
            spill_folder: c"/any/where".as_ptr(),
            key_codec: number("s4"),
            value_codec: number("s4"),
        }];
        (spec.tiers, spec.tiers_len) = (tiers.as_ptr(), 1);
        let found = read(&spec).unwrap();
        let two = want.clone().cold(200, Cold::Demote { key: id("n2"), value: id("t1") });
        assert_eq!(found, two.cold(300, Cold::Spill("/any/where".into())));
        (spec.tiers, spec.tiers_len) = (std::ptr::null(), 0);
        spec.spill_folder = c"/some/where".as_ptr();
        let found = read(&spec).unwrap();
        assert_eq!(found, want.cold(200, Cold::Spill("/some/where".into())));
    }
}
