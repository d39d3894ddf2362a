//! The header of a pack and its map: which bytes of the state are coded, and how. `SPEC.md` describes both.

use std::io::{Read, Write};

use tqkv_core::CodecId;

use crate::based::{Based, Set};
use crate::error::SessionError;
use crate::grid::Grid;
use crate::numbers::Numbers;
use crate::tile::Tile;

/// First bytes of a pack; as in a `.tqk` file they break where a transfer takes them for text.
pub const MAGIC: [u8; 8] = *b"\x89TQS\r\n\x1a\n";
/// The one version that is written and read.
pub const VERSION: u16 = 1;

const HEADER: usize = 24;
const ENTRY: usize = 24;
/// Most entries of a map: a state of 1024 layers in 256 streams has fewer.
const MOST_ENTRIES: u32 = 1 << 21;

/// How close an unpacked state is to the packed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The same bytes; a checksum over all of them says so.
    Exact,
    /// Rows are coded and come back close to what they were. All else comes back as it was.
    Coded,
    /// Rows are coded in a basis of the storage tier that the pack names. All else is as above.
    Stored,
}

impl Class {
    /// "exact" or "coded".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Coded => "coded",
            Self::Stored => "coded in a basis",
        }
    }
}

/// A run of the state's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Segment {
    /// Kept as they are, `planes` bytes of a number apart.
    Raw { bytes: u64, planes: u8 },
    /// Coded rows.
    Rows(Tile),
    /// Rows coded in a basis, with the rest of their set.
    Based(Based),
}

impl Segment {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Raw { bytes, .. } => *bytes,
            Self::Rows(tile) => tile.bytes(),
            Self::Based(rows) => rows.grid.bytes(),
        }
    }

    fn entry(&self) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        match self {
            Self::Raw { bytes, planes } => {
                entry[1] = *planes;
                entry[8..16].copy_from_slice(&bytes.to_le_bytes());
            }
            Self::Rows(tile) => {
                entry[0] = 1;
                let flags = [tile.is_transposed, tile.is_values, tile.is_centred];
                entry[1] =
                    flags.into_iter().enumerate().fold(0, |bits, (i, flag)| bits | u8::from(flag) << i);
                entry[2] = tile.codec.code();
                entry[4..8].copy_from_slice(&tile.numbers.ggml().to_le_bytes());
                entry[8..12].copy_from_slice(&tile.head_dim.to_le_bytes());
                entry[12..16].copy_from_slice(&tile.heads.to_le_bytes());
                entry[16..20].copy_from_slice(&tile.cells.to_le_bytes());
            }
            Self::Based(rows) => {
                let grid = &rows.grid;
                (entry[0], entry[1]) = (2, u8::from(grid.is_transposed) | u8::from(rows.is_values) << 1);
                let fields = [grid.numbers.ggml(), rows.head_dim, rows.heads(), grid.cells, rows.set];
                for (to, field) in entry[4..].as_chunks_mut().0.iter_mut().zip(fields) {
                    *to = field.to_le_bytes();
                }
            }
        }
        entry
    }

    fn parse(entry: &[u8; ENTRY]) -> Result<Self, SessionError> {
        let word = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let bad = |why: String| SessionError::pack(format!("map: {why}"));
        let segment = match entry[0] {
            0 => {
                let bytes = u64::from(word(12)) << 32 | u64::from(word(8));
                let planes = entry[1];
                if bytes == 0 || ![1, 2, 4].contains(&planes) || !bytes.is_multiple_of(u64::from(planes)) {
                    return Err(bad(format!("{bytes} bytes in {planes} planes")));
                }
                Self::Raw { bytes, planes }
            }
            1 => {
                let (codec, numbers) = (CodecId::from_code(entry[2]), Numbers::from_ggml(word(4)));
                let codec = codec.ok_or_else(|| bad(format!("unknown codec {}", entry[2])))?;
                let numbers = numbers.ok_or_else(|| bad(format!("unknown type {}", word(4))))?;
                let (head_dim, heads, cells) = (word(8), word(12), word(16));
                let [is_transposed, is_values, is_centred] = [1, 2, 4].map(|bit| entry[1] & bit > 0);
                let tile =
                    Tile { codec, numbers, head_dim, heads, cells, is_transposed, is_values, is_centred };
                tile.check().map_err(bad)?;
                Self::Rows(tile)
            }
            2 => {
                let numbers = Numbers::from_ggml(word(4));
                let numbers = numbers.ok_or_else(|| bad(format!("unknown type {}", word(4))))?;
                let (head_dim, cells, set) = (word(8), word(16), word(20));
                let width = head_dim.saturating_mul(word(12));
                let [is_transposed, is_values] = [1, 2].map(|bit| entry[1] & bit > 0);
                let grid = Grid { numbers, width, cells, is_transposed };
                let rows = Based { grid, head_dim, is_values, set };
                rows.check().map_err(bad)?;
                Self::Based(rows)
            }
            kind => return Err(bad(format!("kind {kind}; expected 0 to 2"))),
        };
        if segment.entry() != *entry {
            return Err(bad("a field that must be zero is not".into()));
        }
        Ok(segment)
    }
}

/// The header and the map.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PackMap {
    pub(crate) class: Class,
    pub(crate) state_bytes: u64,
    pub(crate) segments: Vec<Segment>,
}

impl PackMap {
    pub(crate) fn write(&self, out: &mut impl Write) -> Result<u64, SessionError> {
        let entries = u32::try_from(self.segments.len()).ok().filter(|n| *n <= MOST_ENTRIES);
        let entries = entries.ok_or_else(|| SessionError::state(0, "too many layers and streams"))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.class as u16).to_le_bytes());
        bytes.extend_from_slice(&entries.to_le_bytes());
        bytes.extend_from_slice(&self.state_bytes.to_le_bytes());
        self.segments.iter().for_each(|segment| bytes.extend_from_slice(&segment.entry()));
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        out.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    pub(crate) fn read(from: &mut impl Read) -> Result<Self, SessionError> {
        let header: [u8; HEADER] = exactly(from, "the header")?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&header);
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        if header[..8] != MAGIC {
            let why = "not a packed session (the first 8 bytes must be 89 54 51 53 0d 0a 1a 0a)";
            return Err(SessionError::pack(why));
        }
        if short(8) != VERSION {
            return Err(SessionError::pack(format!("version {}; expected {VERSION}", short(8))));
        }
        let entries = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
        if entries > MOST_ENTRIES {
            return Err(SessionError::pack(format!("a map of {entries} entries; {MOST_ENTRIES} at most")));
        }
        let mut raw: Vec<[u8; ENTRY]> = Vec::new();
        for _ in 0..entries {
            let entry = exactly(from, "the map")?;
            crc.update(&entry);
            raw.push(entry);
        }
        if exactly(from, "the map")? != crc.finalize().to_le_bytes() {
            return Err(SessionError::pack("header or map is damaged (CRC-32 does not match)"));
        }
        let class = match short(10) {
            0 => Class::Exact,
            1 => Class::Coded,
            2 => Class::Stored,
            class => return Err(SessionError::pack(format!("class {class}; expected 0 to 2"))),
        };
        let mut state_bytes = [0; 8];
        state_bytes.copy_from_slice(&header[16..24]);
        let state_bytes = u64::from_le_bytes(state_bytes);
        let segments = raw.iter().map(Segment::parse).collect::<Result<Vec<_>, _>>()?;
        let sum = segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.bytes()));
        if sum != Some(state_bytes) {
            return Err(SessionError::pack("map: its runs are not as long as the state"));
        }
        let fits = |segment: &Segment| match segment {
            Segment::Raw { .. } => true,
            Segment::Rows(_) => class == Class::Coded,
            Segment::Based(_) => class == Class::Stored,
        };
        if !segments.iter().all(fits) {
            return Err(SessionError::pack(format!(
                "map: rows that a pack of class {} has not",
                class as u16
            )));
        }
        Ok(Self { class, state_bytes, segments })
    }

    /// The rows in a basis that belong together.
    pub(crate) fn sets(&self) -> Result<Vec<Set>, SessionError> {
        let bad = |why: &str| SessionError::pack(format!("map: a set of rows with {why}"));
        let (mut sets, mut at): (Vec<Set>, u64) = (Vec::new(), 0);
        for segment in &self.segments {
            if let Segment::Based(rows) = segment {
                if rows.set as usize == sets.len() {
                    sets.push(Set::default());
                }
                let last = sets.len().checked_sub(1) == Some(rows.set as usize);
                let set = sets.last_mut().filter(|_| last).ok_or_else(|| bad("another number"))?;
                set.push(at, *rows);
            }
            at += segment.bytes();
        }
        sets.iter().try_for_each(Set::check).map_err(|why| bad(&why))?;
        Ok(sets)
    }
}

/// So many bytes, or an error that says in what a pack is cut.
pub(crate) fn exactly<const N: usize>(from: &mut impl Read, what: &str) -> Result<[u8; N], SessionError> {
    let mut bytes = [0; N];
    fill(from, &mut bytes, what)?;
    Ok(bytes)
}

pub(crate) fn fill(from: &mut impl Read, bytes: &mut [u8], what: &str) -> Result<(), SessionError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => SessionError::pack(format!("cut within {what}")),
        _ => error.into(),
    })
}

/// Writes one chunk: its length, its bytes, and a CRC-32 of both.
pub(crate) fn write_chunk(out: &mut impl Write, payload: &[u8]) -> Result<u64, SessionError> {
    let length = u32::try_from(payload.len()).map_err(|_| SessionError::state(0, "a chunk is too long"))?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&length.to_le_bytes());
    crc.update(payload);
    out.write_all(&length.to_le_bytes())?;
    out.write_all(payload)?;
    out.write_all(&crc.finalize().to_le_bytes())?;
    Ok(payload.len() as u64 + 8)
}

/// Reads one chunk of at most `most` bytes.
pub(crate) fn read_chunk(from: &mut impl Read, most: usize, what: &str) -> Result<Vec<u8>, SessionError> {
    let head: [u8; 4] = exactly(from, what)?;
    let length = u32::from_le_bytes(head) as usize;
    if length > most {
        return Err(SessionError::pack(format!("{what}: a chunk of {length} bytes; {most} at most")));
    }
    let mut payload = Vec::new();
    from.by_ref().take(length as u64).read_to_end(&mut payload)?;
    if payload.len() < length {
        return Err(SessionError::pack(format!("cut within {what}")));
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head);
    crc.update(&payload);
    if exactly(from, what)? != crc.finalize().to_le_bytes() {
        return Err(SessionError::pack(format!("{what}: a chunk is damaged (CRC-32 does not match)")));
    }
    Ok(payload)
}
