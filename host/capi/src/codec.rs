//! The list of codecs, and encoding of blocks without a cache.

use crate::error::{Failure, TqkvStatus, guard_quietly};
use crate::number::{self, options};
use crate::pointer::{self, Call};
use std::ffi::{CString, c_char};
use std::sync::LazyLock;
use tqkv::error::CacheError;
use tqkv_core::{AnyCodec, CodecId, UnknownCodec};
use tqkv_simd::{Level, codec};

/// The names of all codecs as C strings.
static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
    CodecId::ALL.iter().map(|id| CString::new(id.name()).expect("names hold no zero")).collect()
});

fn from_name(name: &str) -> Result<CodecId, Failure> {
    name.parse().map_err(|_: UnknownCodec| {
        let usual = UnknownCodec::USUAL;
        Failure::argument(format!(
            "no codec is named '{name}': expected {usual} or another name that tqkv_codec_name returns; for a preset \
             call tqkv_spec_preset"
        ))
    })
}

/// Returns the number of codecs.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_codec_count() -> usize {
    CodecId::ALL.len()
}

/// Writes the number of the codec at `index`, which is below `tqkv_codec_count()`. A codec's number is not
/// its index. Files store it, so it never changes.
///
/// # Safety
/// `codec` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_id(index: usize, codec: *mut u32) -> TqkvStatus {
    // SAFETY: `codec` has room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let place = call.place("codec", codec)?;
        let count = CodecId::ALL.len();
        let id = CodecId::ALL.get(index).ok_or_else(|| {
            Failure::argument(format!("index {index} is out of range: there are {count} codecs"))
        })?;
        place.write(u32::from(id.code()));
        Ok(())
    })
}

/// Writes the number of the codec with this name, such as "s4". The name is not case-sensitive.
///
/// # Safety
/// `name` is null or ends with a zero. `codec` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_from_name(name: *const c_char, codec: *mut u32) -> TqkvStatus {
    // SAFETY: `name` is text and `codec` has room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let place = call.place("codec", codec)?;
        let id = from_name(call.text("name", name)?)?;
        place.write(u32::from(id.code()));
        Ok(())
    })
}

/// Returns the name of the codec with this number, or null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_codec_name(codec: u32) -> *const c_char {
    guard_quietly(std::ptr::null(), || {
        let id = number::codec("codec", codec).ok();
        let index = id.and_then(|id| CodecId::ALL.iter().position(|other| *other == id));
        index.map_or(std::ptr::null(), |index| NAMES[index].as_ptr())
    })
}

/// A codec for one head dim. It encodes, decodes and scores blocks, and never changes.
#[derive(Debug)]
pub struct TqkvCodec {
    codec: AnyCodec,
    level: Level,
}

/// Makes the codec with this name ("s4") for vectors of `dim` values. Encoder, decoder and scores must use
/// the same seed; caches use 42 by default. `scale_mode` and `effort` affect only the encoder. On failure
/// `*codec` is null.
///
/// # Safety
/// `name` is null or ends with a zero. `codec` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_create(
    name: *const c_char,
    dim: usize,
    seed: u64,
    scale_mode: u32,
    effort: u32,
    codec: *mut *mut TqkvCodec,
) -> TqkvStatus {
    // SAFETY: `name` is text and `codec` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("codec", codec, || {
            let id = from_name(call.text("name", name)?)?;
            let codec = AnyCodec::new(id, dim, options(seed, scale_mode, effort)?)?;
            Ok(TqkvCodec { codec, level: Level::detect().map_err(CacheError::Level)? })
        })
    })
}

/// Frees a codec; null is accepted.
///
/// # Safety
/// `codec` is null or a handle from `tqkv_codec_create` that is not freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_free(codec: *mut TqkvCodec) {
    // SAFETY: `tqkv_codec_create` made it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(codec) }
}

/// Writes the number of bytes per block.
///
/// # Safety
/// `codec` is null or a codec that is not freed. `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_block_bytes(codec: *const TqkvCodec, bytes: *mut usize) -> TqkvStatus {
    // SAFETY: `codec` is a codec and `bytes` has room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvCodec { codec, .. } = call.handle("codec", codec)?;
        call.place("bytes", bytes)?.write(codec.block_bytes());
        Ok(())
    })
}

/// Encodes vectors, back to back, into the same number of blocks. If a vector is refused, the blocks before
/// it are encoded.
///
/// # Safety
/// `codec` is null or a codec that is not freed. `x` is null or points to `x_values` values. `blocks` is null
/// or points to `blocks_bytes` bytes that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_encode(
    codec: *const TqkvCodec,
    x: *const f32,
    x_values: usize,
    blocks: *mut u8,
    blocks_bytes: usize,
) -> TqkvStatus {
    // SAFETY: `codec` is a codec, `x` has `x_values` values and `blocks` has room for its bytes, by the
    // contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvCodec { codec, level } = call.handle("codec", codec)?;
        let x = call.slice("x", x, x_values)?;
        let blocks = call.room("blocks", blocks, blocks_bytes)?;
        check_fit(codec, "x", x_values, blocks_bytes)?;
        Ok(codec::encode(*level, codec, x, blocks)?)
    })
}

/// Decodes blocks, back to back, into the same number of vectors. If a block is refused, the vectors before
/// it are decoded.
///
/// # Safety
/// `codec` is null or a codec that is not freed. `blocks` is null or points to `blocks_bytes` bytes. `out` is
/// null or points to `out_values` values that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_decode(
    codec: *const TqkvCodec,
    blocks: *const u8,
    blocks_bytes: usize,
    out: *mut f32,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `codec` is a codec, `blocks` has its bytes and `out` has room for its values, by the contract
    // of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvCodec { codec, level } = call.handle("codec", codec)?;
        let blocks = call.slice("blocks", blocks, blocks_bytes)?;
        let out = call.room("out", out, out_values)?;
        check_fit(codec, "out", out_values, blocks_bytes)?;
        Ok(codec::decode(*level, codec, blocks, out)?)
    })
}

/// Writes the dot products of one query and blocks, one per block, without decoding them. The query has `dim`
/// values and is not rotated. For a block whose scale is NaN or infinite, the score is NaN or infinite.
///
/// # Safety
/// `codec` is null or a codec that is not freed. The other pointers are null or point to the passed number of
/// values or bytes.
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
    // SAFETY: `codec` is a codec, `q` and `blocks` have their values and bytes, and `out` has room for its
    // values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvCodec { codec, level } = call.handle("codec", codec)?;
        let (q, blocks) = (call.slice("q", q, q_values)?, call.slice("blocks", blocks, blocks_bytes)?);
        let out = call.room("out", out, out_values)?;
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
        if !q.iter().all(|x| x.is_finite()) {
            return Err(Failure::new(TqkvStatus::TqkvBadVector, "q: values must be finite"));
        }
        let mut rotated = vec![0.0; q.len()];
        codec::rotate_queries(*level, codec, q, &mut rotated);
        codec::scores(*level, codec, &rotated, blocks, out);
        Ok(())
    })
}

/// Refuses numbers of values and bytes that are not of the same number of vectors.
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
