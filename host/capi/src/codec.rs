//! The list of codecs, and blocks of one of them without a cache.

use crate::error::{Failure, TqkvStatus, guard, guard_quietly};
use crate::number::{self, options};
use crate::pointer::{self, In, Out};
use std::ffi::{CString, c_char};
use std::sync::LazyLock;
use tqkv::error::CacheError;
use tqkv_core::{AnyCodec, CodecId, UnknownCodec};
use tqkv_simd::{Level, codec};

/// Names of all codecs, as C has them.
static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
    CodecId::ALL.iter().map(|id| CString::new(id.name()).expect("names hold no zero")).collect()
});

fn from_name(name: &str) -> Result<CodecId, Failure> {
    name.parse().map_err(|_: UnknownCodec| {
        let usual = UnknownCodec::USUAL;
        Failure::argument(format!(
            "no codec is named '{name}': accepted are {usual} and the others that tqkv_codec_count counts; presets are \
             pairs, which tqkv_spec_preset takes"
        ))
    })
}

/// How many codecs there are.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_codec_count() -> usize {
    CodecId::ALL.len()
}

/// Writes the number of the codec at `index`, below `tqkv_codec_count()`. Numbers are not indices: they are stored in
/// files, and stay.
///
/// # Safety
/// `codec` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_id(index: usize, codec: *mut u32) -> TqkvStatus {
    guard(|| {
        let place = Out::new("codec", codec, 1)?;
        let count = CodecId::ALL.len();
        let id = CodecId::ALL
            .get(index)
            .ok_or_else(|| Failure::argument(format!("codec {index} of {count} is asked for")))?;
        // SAFETY: the caller's promise.
        unsafe { place.write(u32::from(id.code())) };
        Ok(())
    })
}

/// Writes the number of the codec of a name, such as "s4", in small letters or capitals.
///
/// # Safety
/// `name` is null or ends with a zero; `codec` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_from_name(name: *const c_char, codec: *mut u32) -> TqkvStatus {
    guard(|| {
        let place = Out::new("codec", codec, 1)?;
        // SAFETY: the caller's promise.
        let id = from_name(unsafe { pointer::text("name", name) }?)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(u32::from(id.code())) };
        Ok(())
    })
}

/// The name of a codec by its number; null where no codec has it.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_codec_name(codec: u32) -> *const c_char {
    guard_quietly(std::ptr::null(), || {
        let id = number::codec("codec", codec).ok();
        let index = id.and_then(|id| CodecId::ALL.iter().position(|other| *other == id));
        index.map_or(std::ptr::null(), |index| NAMES[index].as_ptr())
    })
}

/// A codec of one head dim: encodes, decodes and scores blocks. It never changes.
#[derive(Debug)]
pub struct TqkvCodec {
    codec: AnyCodec,
    level: Level,
}

/// Makes the codec of a name ("s4") for vectors of `dim` values. Encoder, decoder and scores must agree on the seed
/// (caches have 42 unless told otherwise); only encoders heed `scale_mode` and `effort`. On failure `*codec` is null.
///
/// # Safety
/// `name` is null or ends with a zero; `codec` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_create(
    name: *const c_char,
    dim: usize,
    seed: u64,
    scale_mode: u32,
    effort: u32,
    codec: *mut *mut TqkvCodec,
) -> TqkvStatus {
    guard(|| {
        let place = Out::new("codec", codec, 1)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(std::ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let id = from_name(unsafe { pointer::text("name", name) }?)?;
        let codec = AnyCodec::new(id, dim, options(seed, scale_mode, effort)?)?;
        let level = Level::detect().map_err(CacheError::Level)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(Box::into_raw(Box::new(TqkvCodec { codec, level }))) };
        Ok(())
    })
}

/// Frees a codec; null is accepted.
///
/// # Safety
/// `codec` is null or came from `tqkv_codec_create`, was not freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_free(codec: *mut TqkvCodec) {
    if !codec.is_null() {
        // SAFETY: made by `Box::into_raw`, and freed once, by the caller's promise.
        guard_quietly((), || drop(unsafe { Box::from_raw(codec) }));
    }
}

/// Writes the bytes of one block.
///
/// # Safety
/// `codec` is null or a codec that is not freed; `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_block_bytes(codec: *const TqkvCodec, bytes: *mut usize) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; a codec never changes.
        let TqkvCodec { codec, .. } = unsafe { pointer::handle("codec", codec) }?;
        let place = Out::new("bytes", bytes, 1)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(codec.block_bytes()) };
        Ok(())
    })
}

/// Encodes vectors, back to back, into as many blocks. Where one is refused, those before it are encoded.
///
/// # Safety
/// `codec` is null or a codec that is not freed; `x` is null or points to `x_values` values, `blocks` is null or points to
/// `blocks_bytes` bytes that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_encode(
    codec: *const TqkvCodec,
    x: *const f32,
    x_values: usize,
    blocks: *mut u8,
    blocks_bytes: usize,
) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; a codec never changes.
        let TqkvCodec { codec, level } = unsafe { pointer::handle("codec", codec) }?;
        let x = In::new("x", x, x_values)?;
        let blocks = Out::new("blocks", blocks, blocks_bytes)?.apart_from(x)?;
        check_fit(codec, "x", x_values, blocks_bytes)?;
        // SAFETY: the caller's promise, and they are apart.
        let (x, blocks) = unsafe { (x.get(), blocks.get()) };
        Ok(codec::encode(*level, codec, x, blocks)?)
    })
}

/// Decodes blocks, back to back, into as many vectors. Where one is refused, those before it are decoded.
///
/// # Safety
/// `codec` is null or a codec that is not freed; `blocks` is null or points to `blocks_bytes` bytes, `out` is null or points
/// to `out_values` values that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_decode(
    codec: *const TqkvCodec,
    blocks: *const u8,
    blocks_bytes: usize,
    out: *mut f32,
    out_values: usize,
) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; a codec never changes.
        let TqkvCodec { codec, level } = unsafe { pointer::handle("codec", codec) }?;
        let blocks = In::new("blocks", blocks, blocks_bytes)?;
        let out = Out::new("out", out, out_values)?.apart_from(blocks)?;
        check_fit(codec, "out", out_values, blocks_bytes)?;
        // SAFETY: the caller's promise, and they are apart.
        let (blocks, out) = unsafe { (blocks.get(), out.get()) };
        Ok(codec::decode(*level, codec, blocks, out)?)
    })
}

/// Writes the dot products of one query (`dim` values, not rotated) and blocks, one a block, without decoding them. A
/// block whose scale is NaN or infinite has no such product: its score is NaN or infinite.
///
/// # Safety
/// `codec` is null or a codec that is not freed; the others are null or point to as many values and bytes as are passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_scores(
    codec: *const TqkvCodec,
    q: *const f32,
    q_values: usize,
    blocks: *const u8,
    blocks_bytes: usize,
    out: *mut f32,
    out_values: usize,
) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; a codec never changes.
        let TqkvCodec { codec, level } = unsafe { pointer::handle("codec", codec) }?;
        let (q, blocks) = (In::new("q", q, q_values)?, In::new("blocks", blocks, blocks_bytes)?);
        let out = Out::new("out", out, out_values)?.apart_from(q)?.apart_from(blocks)?;
        if q_values != codec.dim() {
            return Err(Failure::argument(format!("q has {q_values} values, expected {}", codec.dim())));
        }
        let wanted = out_values.checked_mul(codec.block_bytes());
        if wanted != Some(blocks_bytes) {
            let bytes = codec.block_bytes();
            let text =
                format!("{blocks_bytes} bytes of blocks for {out_values} scores: a block has {bytes} bytes");
            return Err(Failure::argument(text));
        }
        // SAFETY: the caller's promise, and the output is apart from both inputs.
        let (q, blocks, out) = unsafe { (q.get(), blocks.get(), out.get()) };
        if !q.iter().all(|x| x.is_finite()) {
            return Err(Failure::new(TqkvStatus::TqkvBadVector, "q: values must be finite"));
        }
        let mut rotated = vec![0.0; q.len()];
        codec::rotate_queries(*level, codec, q, &mut rotated);
        codec::scores(*level, codec, &rotated, blocks, out);
        Ok(())
    })
}

/// Refuses values and bytes that are not of the same number of vectors, in numbers.
fn check_fit(codec: &AnyCodec, what: &str, values: usize, bytes: usize) -> Result<(), Failure> {
    if codec.fit(values, bytes) {
        return Ok(());
    }
    let (dim, block) = (codec.dim(), codec.block_bytes());
    Err(Failure::argument(format!(
        "{what} has {values} values and blocks {bytes} bytes: a vector has {dim} values, its block {block} bytes"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        for index in 0..tqkv_codec_count() {
            let (mut id, mut again) = (u32::MAX, u32::MAX);
            // SAFETY: the places can be written, and the name ends with a zero.
            unsafe {
                assert_eq!(tqkv_codec_id(index, &raw mut id), TqkvStatus::TqkvOk);
                let name = tqkv_codec_name(id);
                assert_eq!(CStr::from_ptr(name).to_str().unwrap(), CodecId::ALL[index].name());
                assert_eq!(tqkv_codec_from_name(name, &raw mut again), TqkvStatus::TqkvOk);
            }
            assert_eq!(id, again);
        }
        for none in [2, 255, 256, u32::MAX] {
            assert!(tqkv_codec_name(none).is_null());
        }
    }
}
