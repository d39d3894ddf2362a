//! A pack to a state.

use std::io::{Read, Seek, SeekFrom, Write};

use rayon::prelude::*;
use tqkv_simd::Level;
use tqkv_storage::{BasisId, StorageCodec};

use crate::container::{Class, PackMap, Segment, exactly, read_chunk};
use crate::error::SessionError;
use crate::numbers::Numbers;
use crate::pack::Sizes;
use crate::plain::{PIECE, expand};
use crate::slab::{Slab, write_slab};
use crate::stored;
use crate::tile::{CELLS, Tile};

/// Pieces that are expanded at once.
const PIECES: u64 = 8;

/// Rows of a pack that are coded alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Codec; none in a basis.
    pub codec: Option<tqkv_core::CodecId>,
    /// Type of the numbers in the state.
    pub numbers: Numbers,
    /// True for values, false for keys.
    pub is_values: bool,
    /// Head dim.
    pub head_dim: u32,
    /// KV heads.
    pub heads: u32,
    /// Matrices: one per layer and stream.
    pub matrices: u32,
}

/// The parts of a pack.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// How close the unpacked state is.
    pub class: Class,
    /// Sizes.
    pub sizes: Sizes,
    /// Coded rows.
    pub groups: Vec<Group>,
    /// The basis that is needed to unpack it.
    pub basis: Option<BasisId>,
}

/// Unpacks a state: the same bytes on every machine. `state` is empty and at its start. `basis` is needed for
/// a pack that names one. Memory is bounded, as for [`crate::pack()`].
///
/// Transposed rows and those in a basis are written at several places. A pack that lies about their number
/// makes a long sparse file before it is refused. [`inspect`] first is safe for packs of strangers in memory.
///
/// # Errors
/// [`SessionError::Pack`]: no pack, another version, or a damaged or cut one. [`SessionError::Basis`]: the
/// pack names a basis, and none or another one is given. Errors of reading and writing. Bytes that were
/// written until then are no state.
pub fn unpack<R: Read, W: Write + Seek>(
    pack: &mut R,
    state: &mut W,
    basis: Option<&StorageCodec>,
    level: Level,
) -> Result<Sizes, SessionError> {
    let mut pack = Counted { from: pack, bytes: 0 };
    let map = PackMap::read(&mut pack)?;
    let sets = map.sets()?;
    let codec = match basis_of(&mut pack, map.class)? {
        None => None,
        Some(wanted) => Some(basis_that_is(wanted, basis)?),
    };
    let (mut at, mut crc) = (0, crc32fast::Hasher::new());
    let mut sizes = Sizes { state: map.state_bytes, ..Sizes::default() };
    for segment in &map.segments {
        let before = pack.bytes;
        match segment {
            Segment::Raw { bytes, planes } => {
                state.seek(SeekFrom::Start(at))?;
                unpack_raw(&mut pack, state, *bytes, *planes, &mut crc)?;
            }
            Segment::Rows(tile) => {
                unpack_rows(&mut pack, state, at, tile, level)?;
                sizes.coded_state += tile.bytes();
                sizes.coded_pack += pack.bytes - before;
            }
            Segment::Based(_) => {}
        }
        at += segment.bytes();
    }
    let before = pack.bytes;
    for (set, codec) in sets.iter().zip(codec.into_iter().cycle()) {
        stored::unpack(&mut pack, state, set, codec, level)?;
        sizes.coded_state += set.bytes();
    }
    sizes.coded_pack += if sets.is_empty() { 0 } else { pack.bytes - before };
    end(&mut pack, map.class, Some(crc))?;
    state.flush()?;
    sizes.pack = pack.bytes;
    Ok(sizes)
}

/// Reads a pack and checks its checksums, without decoding.
///
/// # Errors
/// Those of [`unpack()`].
pub fn inspect<R: Read>(pack: &mut R) -> Result<Summary, SessionError> {
    let mut pack = Counted { from: pack, bytes: 0 };
    let map = PackMap::read(&mut pack)?;
    let (sets, basis) = (map.sets()?, basis_of(&mut pack, map.class)?);
    let mut sizes = Sizes { state: map.state_bytes, ..Sizes::default() };
    let mut groups: Vec<Group> = Vec::new();
    for segment in &map.segments {
        let before = pack.bytes;
        match segment {
            Segment::Raw { bytes, .. } => {
                for _ in 0..bytes.div_ceil(PIECE as u64) {
                    read_chunk(&mut pack, PIECE, "kept bytes")?;
                }
            }
            Segment::Rows(tile) => {
                if tile.is_centred {
                    read_chunk(&mut pack, 2 * tile.width(), "coded rows")?;
                }
                for _ in 0..tile.cells.div_ceil(CELLS as u32) {
                    read_chunk(&mut pack, tile.most_bytes(), "coded rows")?;
                }
                sizes.coded_state += tile.bytes();
                sizes.coded_pack += pack.bytes - before;
                let Tile { codec, numbers, is_values, head_dim, heads, .. } = *tile;
                let codec = Some(codec);
                count(Group { codec, numbers, is_values, head_dim, heads, matrices: 0 }, &mut groups);
            }
            Segment::Based(rows) => {
                let (numbers, head_dim, heads) = (rows.grid.numbers, rows.head_dim, rows.heads());
                let is_values = rows.is_values;
                count(Group { codec: None, numbers, is_values, head_dim, heads, matrices: 0 }, &mut groups);
            }
        }
    }
    let before = pack.bytes;
    for set in &sets {
        stored::skip(&mut pack, set)?;
        sizes.coded_state += set.bytes();
    }
    sizes.coded_pack += pack.bytes - before;
    end(&mut pack, map.class, None)?;
    sizes.pack = pack.bytes;
    Ok(Summary { class: map.class, sizes, groups, basis })
}

/// The basis that a pack names.
fn basis_of(pack: &mut impl Read, class: Class) -> Result<Option<BasisId>, SessionError> {
    if class != Class::Stored {
        return Ok(None);
    }
    let name = read_chunk(pack, size_of::<BasisId>(), "the name of the basis")?;
    let name = name.try_into().map_err(|_| SessionError::pack("the name of the basis is cut"))?;
    Ok(Some(BasisId(name)))
}

fn basis_that_is(wanted: BasisId, given: Option<&StorageCodec>) -> Result<&StorageCodec, SessionError> {
    let id = given.and_then(StorageCodec::basis).map(tqkv_storage::Basis::id);
    match given {
        Some(codec) if id == Some(wanted) => Ok(codec),
        _ => {
            let given = id.map_or("none".to_owned(), |id| id.to_string());
            Err(SessionError::Basis(format!("the pack needs {wanted}; given is {given}")))
        }
    }
}

fn count(own: Group, groups: &mut Vec<Group>) {
    let at = groups.iter().position(|group| Group { matrices: 0, ..*group } == own);
    let at = at.unwrap_or_else(|| {
        groups.push(own);
        groups.len() - 1
    });
    groups[at].matrices += 1;
}

fn unpack_raw(
    pack: &mut impl Read,
    state: &mut impl Write,
    bytes: u64,
    planes: u8,
    crc: &mut crc32fast::Hasher,
) -> Result<(), SessionError> {
    let mut left = bytes;
    while left > 0 {
        let mut chunks = Vec::new();
        for _ in 0..PIECES.min(left.div_ceil(PIECE as u64)) {
            let piece = left.min(PIECE as u64) as usize;
            chunks.push((read_chunk(pack, piece, "kept bytes")?, piece));
            left -= piece as u64;
        }
        let pieces: Result<Vec<_>, _> =
            chunks.into_par_iter().map(|(chunk, bytes)| expand(chunk, bytes, planes)).collect();
        for piece in pieces? {
            crc.update(&piece);
            state.write_all(&piece)?;
        }
    }
    Ok(())
}

fn unpack_rows(
    pack: &mut impl Read,
    state: &mut (impl Write + Seek),
    at: u64,
    tile: &Tile,
    level: Level,
) -> Result<(), SessionError> {
    let mut coder = tile.coder(level)?;
    if tile.is_centred {
        coder.read_mean(&read_chunk(pack, 2 * tile.width(), "coded rows")?)?;
    }
    for slab in Slab::all(&tile.grid()) {
        let mut chunks = Vec::new();
        for first in (0..slab.cells).step_by(CELLS) {
            let cells = CELLS.min(slab.cells - first);
            chunks.push((read_chunk(pack, tile.most_bytes(), "coded rows")?, cells));
        }
        let rows: Result<Vec<_>, _> =
            chunks.into_par_iter().map(|(chunk, cells)| coder.decode(&chunk, cells)).collect();
        write_slab(state, at, &tile.grid(), slab, &rows?.concat())?;
    }
    Ok(())
}

/// The checksum of an exact state, and nothing after it.
fn end(pack: &mut impl Read, class: Class, crc: Option<crc32fast::Hasher>) -> Result<(), SessionError> {
    if class == Class::Exact {
        let stored: [u8; 4] = exactly(pack, "the checksum of the state")?;
        if crc.is_some_and(|crc| crc.finalize().to_le_bytes() != stored) {
            return Err(SessionError::pack(
                "the state is not the one that was packed (CRC-32 does not match)",
            ));
        }
    }
    if pack.read(&mut [0])? > 0 {
        return Err(SessionError::pack("bytes follow its end"));
    }
    Ok(())
}

/// Counts what is read.
struct Counted<'a, R> {
    from: &'a mut R,
    bytes: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(out)?;
        self.bytes += read as u64;
        Ok(read)
    }
}
