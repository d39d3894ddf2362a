//! Bytes that stay as they are, in pieces of 1 MiB: zstd, number by number or plane by plane.

use crate::error::SessionError;

/// Bytes of a piece; the last of a run may have fewer.
pub(crate) const PIECE: usize = 1 << 20;
/// zstd's own default.
const EFFORT: i32 = 3;

/// A piece as zstd has it, or as it is where that is no longer.
pub(crate) fn compress(piece: Vec<u8>, planes: u8) -> Result<Vec<u8>, SessionError> {
    let compressed = match planes {
        1 => zstd::bulk::compress(&piece, EFFORT)?,
        planes => zstd::bulk::compress(&apart(&piece, planes.into()), EFFORT)?,
    };
    Ok(if compressed.len() < piece.len() { compressed } else { piece })
}

/// The piece of `bytes` bytes that `chunk` holds.
pub(crate) fn expand(chunk: Vec<u8>, bytes: usize, planes: u8) -> Result<Vec<u8>, SessionError> {
    if chunk.len() == bytes {
        return Ok(chunk);
    }
    let mut piece = vec![0; bytes];
    let found = zstd::bulk::decompress_to_buffer(&chunk, &mut piece[..])
        .map_err(|error| SessionError::pack(format!("kept bytes: zstd: {error}")))?;
    if found != bytes {
        return Err(SessionError::pack(format!("kept bytes: {found} of {bytes} in a chunk")));
    }
    Ok(if planes == 1 { piece } else { together(&piece, planes.into()) })
}

/// First bytes of all numbers, second bytes of all, and so on.
fn apart(piece: &[u8], planes: usize) -> Vec<u8> {
    (0..planes).flat_map(|plane| piece.iter().skip(plane).step_by(planes)).copied().collect()
}

fn together(planes_of: &[u8], planes: usize) -> Vec<u8> {
    let numbers = planes_of.len() / planes;
    let mut piece = vec![0; planes_of.len()];
    for (plane, bytes) in planes_of.chunks(numbers.max(1)).enumerate() {
        piece.iter_mut().skip(plane).step_by(planes).zip(bytes).for_each(|(to, from)| *to = *from);
    }
    piece
}
