//! A state to a pack.

use std::io::{Read, Seek, SeekFrom, Write};

use rayon::prelude::*;
use tqkv_core::{CodecId, is_supported_head_dim};
use tqkv_simd::Level;

use crate::cache::{StateRows, StateSide};
use crate::container::{Class, PackMap, Segment, write_chunk};
use crate::error::SessionError;
use crate::layout::Layout;
use crate::plain::{PIECE, compress};
use crate::slab::{Slab, read_slab};
use crate::stored::BasisCoder;
use crate::tile::{CELLS, Tile, one_width};

/// Pieces that are compressed at once.
const PIECES: u64 = 8;

/// Codecs of keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codecs<'a> {
    /// Codec of the keys.
    pub key: CodecId,
    /// Codec of the values.
    pub value: CodecId,
    /// Head dim of the keys; without it, 128 or 64 where rows are that many values or several times as many.
    pub key_dim: Option<usize>,
    /// Head dim of the values.
    pub value_dim: Option<usize>,
    /// Head dims by the width of a row, for models whose layers have several; then `key_dim` and `value_dim`
    /// have no effect. A row of another width is refused.
    pub rows: &'a [RowHeads],
}

/// The head dim of rows of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowHeads {
    /// Keys or values.
    pub side: StateSide,
    /// Values of a token in all KV heads of the layer.
    pub width: usize,
    /// Coordinates of one head; divides `width`.
    pub head_dim: usize,
}

impl Codecs<'_> {
    /// `t4` for both, head dims found.
    pub const DEFAULT: Self =
        Self { key: CodecId::T4, value: CodecId::T4, key_dim: None, value_dim: None, rows: &[] };

    /// The head dim that is given for rows; `None` where it is to be found.
    fn head_dim(&self, rows: &StateRows) -> Result<Option<usize>, SessionError> {
        if self.rows.is_empty() {
            return Ok(if rows.side == StateSide::Keys { self.key_dim } else { self.value_dim });
        }
        let width = rows.width as usize;
        let own = self.rows.iter().filter(|own| own.side == rows.side && own.width == width);
        // Two layers may have rows of one width. The narrower head divides both.
        own.map(|own| own.head_dim).min().map(Some).ok_or_else(|| {
            let (layer, side) = (rows.layer, rows.side.name());
            SessionError::Codec(format!(
                "layer {layer}, {side}: rows of {width} values, which no layer of the model has"
            ))
        })
    }
}

/// How a state is packed.
#[derive(Debug, Clone, Copy)]
pub enum Mode<'a> {
    /// Without loss.
    Exact,
    /// Rows of keys and values in codecs, all else without loss.
    Coded(Codecs<'a>),
    /// Rows of keys and values in a basis of the storage tier, all else without loss. Needs the memory of the
    /// basis, twice.
    Stored(BasisCoder<'a>),
}

impl Mode<'_> {
    /// The class of a pack that is made so.
    fn class(&self) -> Class {
        match self {
            Mode::Exact => Class::Exact,
            Mode::Coded(_) => Class::Coded,
            Mode::Stored(_) => Class::Stored,
        }
    }

    /// Reads `exact`, one codec for keys and values (`t4`), or two (`t4,t2`). A head dim of `None` is found.
    ///
    /// # Errors
    /// [`SessionError::Codec`]: a text that is none of these.
    pub fn parse(text: &str, head_dim: Option<usize>) -> Result<Self, SessionError> {
        if text == "exact" {
            return Ok(Self::Exact);
        }
        let (key, value) = text.split_once(',').unwrap_or((text, text));
        let codec = |name: &str| {
            name.trim().parse::<CodecId>().map_err(|_| {
                let why =
                    format!("{name:?} is not valid: expected a codec such as t4, two as t4,t2, or exact");
                SessionError::Codec(why)
            })
        };
        let (key, value) = (codec(key)?, codec(value)?);
        Ok(Self::Coded(Codecs { key, value, key_dim: head_dim, value_dim: head_dim, rows: &[] }))
    }
}

/// Sizes of a pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the state.
    pub state: u64,
    /// Bytes of the pack.
    pub pack: u64,
    /// Bytes of the state in coded rows.
    pub coded_state: u64,
    /// Bytes of the pack in coded rows.
    pub coded_pack: u64,
}

impl Sizes {
    /// Counts rows that were coded: their bytes in the state, and in the pack.
    fn add_coded(&mut self, state: u64, pack: u64) {
        self.coded_state += state;
        self.coded_pack += pack;
        self.pack += pack;
    }
}

/// Packs a state. Memory is bounded: rows are read in slabs of 8 MiB.
///
/// # Errors
/// [`SessionError::State`]: no state of llama.cpp, a damaged one, or, where rows are to be coded, one without
/// a cache that is understood ([`Layout::not_understood`]). [`SessionError::Codec`]: the head dim or the
/// codec does not fit the rows. [`SessionError::Basis`]: the basis does not. Errors of reading and writing.
pub fn pack<R: Read + Seek, W: Write>(
    state: &mut R,
    out: &mut W,
    mode: Mode<'_>,
    level: Level,
) -> Result<Sizes, SessionError> {
    let layout = Layout::read(state)?;
    if let (Mode::Coded(_) | Mode::Stored(_), Some((at, why))) = (mode, &layout.foreign) {
        let why = format!("{why}; an exact pack keeps a memory that is not understood");
        return Err(SessionError::state(*at, why));
    }
    let sets = match mode {
        Mode::Stored(stored) => stored.sets(&layout)?,
        _ => Vec::new(),
    };
    let mut based = sets.iter().flat_map(|set| set.set.keys.iter().chain(&set.set.values));
    let segments = segments(&layout, |rows| match mode {
        Mode::Exact => Ok(None),
        Mode::Coded(codecs) => Ok(tile(rows, &codecs)?.map(Segment::Rows)),
        Mode::Stored(_) => Ok(based.next().map(|(_, rows)| Segment::Based(*rows))),
    })?;
    let map = PackMap { class: mode.class(), state_bytes: layout.bytes, segments };
    let mut sizes = Sizes { state: layout.bytes, pack: map.write(out)?, ..Sizes::default() };
    if let Mode::Stored(stored) = mode {
        sizes.pack += write_chunk(out, &stored.id().0)?;
    }
    let all_rows: Vec<&StateRows> = layout.caches.iter().flat_map(|cache| &cache.rows).collect();
    let (mut at, mut crc) = (0, crc32fast::Hasher::new());
    for segment in &map.segments {
        match segment {
            Segment::Raw { bytes, planes } => {
                sizes.pack += pack_raw(state, out, (at, *bytes, *planes), &mut crc)?;
            }
            Segment::Rows(tile) => {
                let found = all_rows.binary_search_by_key(&at, |rows| rows.at);
                let early = found.map_or_else(|_| Vec::new(), |i| all_rows[i].early());
                sizes.add_coded(tile.bytes(), pack_rows(state, out, (at, tile, &early), level)?);
            }
            Segment::Based(_) => {}
        }
        at += segment.bytes();
    }
    for set in &sets {
        let Mode::Stored(stored) = mode else { break };
        sizes.add_coded(set.set.bytes(), stored.pack(state, out, set, level)?);
    }
    if map.class == Class::Exact {
        out.write_all(&crc.finalize().to_le_bytes())?;
        sizes.pack += 4;
    }
    out.flush()?;
    Ok(sizes)
}

/// The runs of a state: rows that are coded, and all between them.
fn segments(
    layout: &Layout,
    mut coded: impl FnMut(&StateRows) -> Result<Option<Segment>, SessionError>,
) -> Result<Vec<Segment>, SessionError> {
    let (mut segments, mut at) = (Vec::new(), 0);
    for rows in layout.caches.iter().flat_map(|cache| &cache.rows) {
        let planes = rows.numbers.plane_bytes();
        let segment = coded(rows)?.unwrap_or(Segment::Raw { bytes: rows.bytes(), planes });
        if rows.at > at {
            segments.push(Segment::Raw { bytes: rows.at - at, planes: 1 });
        }
        segments.push(segment);
        at = rows.at + rows.bytes();
    }
    if layout.bytes > at {
        segments.push(Segment::Raw { bytes: layout.bytes - at, planes: 1 });
    }
    Ok(segments)
}

/// How rows are coded; `None` where they stay as they are, because their type is not coded or blocks would be
/// no smaller.
fn tile(rows: &StateRows, codecs: &Codecs<'_>) -> Result<Option<Tile>, SessionError> {
    let codec = if rows.side == StateSide::Keys { codecs.key.of_one_width() } else { codecs.value };
    one_width(codec).map_err(SessionError::Codec)?;
    let given = codecs.head_dim(rows)?;
    let width = rows.width as usize;
    let head_dim = match given {
        Some(dim) if dim > 0 && width.is_multiple_of(dim) => Some(dim),
        Some(dim) => {
            let (layer, side) = (rows.layer, rows.side.name());
            let why = format!(
                "layer {layer}, {side}: rows of {width} values are no whole number of heads of {dim}"
            );
            return Err(SessionError::Codec(why));
        }
        None => found_head_dim(width),
    };
    let Some(head_dim) = head_dim else { return Ok(None) };
    let tile = Tile {
        codec,
        numbers: rows.numbers,
        head_dim: head_dim as u32,
        heads: (width / head_dim) as u32,
        cells: rows.cells,
        is_transposed: rows.is_transposed,
        is_values: rows.side == StateSide::Values,
        is_centred: false,
    };
    match tile.check() {
        Ok(()) => Ok(Some(tile.centred()).filter(Tile::saves)),
        Err(why) if given.is_some() && rows.numbers.is_coded() => Err(SessionError::Codec(why)),
        Err(_) => Ok(None),
    }
}

/// The head dim of rows whose model is unknown: 128 or 64 where they divide the rows, or else the largest
/// that does.
fn found_head_dim(width: usize) -> Option<usize> {
    let divides = |dim: &usize| is_supported_head_dim(*dim) && width.is_multiple_of(*dim);
    [128, 64].into_iter().chain((16..=512).rev().step_by(16)).find(divides)
}

fn pack_raw<R: Read + Seek, W: Write>(
    state: &mut R,
    out: &mut W,
    (at, bytes, planes): (u64, u64, u8),
    crc: &mut crc32fast::Hasher,
) -> Result<u64, SessionError> {
    state.seek(SeekFrom::Start(at))?;
    let (mut left, mut written) = (bytes, 0);
    while left > 0 {
        let mut run = vec![0; left.min(PIECES * PIECE as u64) as usize];
        state.read_exact(&mut run)?;
        crc.update(&run);
        left -= run.len() as u64;
        let chunks: Result<Vec<_>, _> =
            run.par_chunks(PIECE).map(|piece| compress(piece.to_vec(), planes)).collect();
        for chunk in chunks? {
            written += write_chunk(out, &chunk)?;
        }
    }
    Ok(written)
}

fn pack_rows<R: Read + Seek, W: Write>(
    state: &mut R,
    out: &mut W,
    (at, tile, early): (u64, &Tile, &[u32]),
    level: Level,
) -> Result<u64, SessionError> {
    let mut coder = tile.coder(level)?;
    let (mut written, row_bytes) = (0, tile.row_bytes());
    for slab in Slab::all(&tile.grid()) {
        let rows = read_slab(state, at, &tile.grid(), slab)?;
        if tile.is_centred && slab.first == 0 {
            written += write_chunk(out, &coder.learn_mean(&rows))?;
        }
        let chunks: Vec<_> = rows
            .par_chunks(CELLS * row_bytes)
            .enumerate()
            .map(|(i, rows)| coder.encode(rows, mask(early, slab.first + i * CELLS)))
            .collect();
        for chunk in chunks {
            written += write_chunk(out, &chunk)?;
        }
    }
    Ok(written)
}

/// Which of the 64 cells from `first` on are early ones.
fn mask(early: &[u32], first: usize) -> u64 {
    let from = early.partition_point(|cell| (*cell as usize) < first);
    let own = early[from..].iter().take_while(|cell| (**cell as usize) < first + CELLS);
    own.fold(0, |mask, cell| mask | 1 << (*cell as usize - first))
}
