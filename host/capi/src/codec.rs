//! The list of codecs, and encoding of blocks without a cache.

use crate::error::{Failure, TqkvStatus, guard_quietly};
use crate::pointer::{self, Call};
use crate::spec;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;
use tqkv::error::CacheError;
use tqkv_core::{AnyCodec, CodecId};
use tqkv_simd::{Level, codec};

/// The names of all codecs as C strings.
static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
    CodecId::ALL.iter().map(|id| CString::new(id.name()).expect("names hold no zero")).collect()
});

/// Returns the number of codecs.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_codec_count() -> usize {
    CodecId::ALL.len()
}

/// Returns the name of the codec at `index`, which is below `tqkv_codec_count()`; null for any other index.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_codec_name(index: usize) -> *const c_char {
    guard_quietly(std::ptr::null(), || NAMES.get(index).map_or(std::ptr::null(), |name| name.as_ptr()))
}

/// A codec for one head dim. It encodes, decodes and scores blocks, and never changes.
#[derive(Debug)]
pub struct TqkvCodec {
    codec: AnyCodec,
    level: Level,
}

/// Makes a codec for vectors of `dim` values. The text is a name, and how blocks are encoded where that
/// differs from the defaults of a cache: "t4" or "t4 seed=7 scale-mode=mmse effort=best". Encoder, decoder
/// and scores must use the same seed; the others affect only the encoder. On failure `*made` is null.
///
/// # Safety
/// `codec` is null or ends with a zero. `made` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_codec_create(
    codec: *const c_char,
    dim: usize,
    made: *mut *mut TqkvCodec,
) -> TqkvStatus {
    // SAFETY: `codec` is text and `made` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("made", made, || {
            let (id, options) = spec::codec(call, codec)?;
            let codec = AnyCodec::new(id, dim, options)?;
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
    fn every_codec_has_a_name() {
        for (index, codec) in CodecId::ALL.iter().enumerate() {
            // SAFETY: the name ends with a zero.
            assert_eq!(unsafe { CStr::from_ptr(tqkv_codec_name(index)) }.to_str().unwrap(), codec.name());
        }
        for none in [tqkv_codec_count(), usize::MAX] {
            assert!(tqkv_codec_name(none).is_null());
        }
    }
}
