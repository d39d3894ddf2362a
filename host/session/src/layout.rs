//! The layout of a state: where its caches and their rows are.
//!
//! llama.cpp writes four kinds of states around the same memory. The memory is one or two KV caches (a second
//! for layers with windows, or for an indexer), then, for hybrid models, recurrent state. A model decides
//! about some fields that no header names: whether cells have an extension (M-RoPE) and whether values are
//! there (MLA has none). The reader tries these, and accepts a reading only where all layers agree.

use std::io::{Read, Seek};

use crate::cache::{Cache, Variant, read_cache};
use crate::error::SessionError;
use crate::source::{Miss, StateSource};
use tqkv::unstable::slots::packed_rows;

/// First bytes of what `llama_state_seq_save_file` and a slot of `llama-server` write.
const SEQUENCE_FILE: u32 = 0x6767_7371;
/// First bytes of what `llama_state_save_file` writes.
const SESSION_FILE: u32 = 0x6767_736e;
/// First bytes of what `llama_state_seq_get_data` writes.
const SEQUENCE_DATA: u32 = 0xaf14_3cd8;
/// Versions of both files without fields of a rotation, and with them.
const SEQUENCE_VERSIONS: [u32; 2] = [3, 4];
const SESSION_VERSIONS: [u32; 2] = [10, 11];
/// Where a file has its version.
const VERSION_AT: u64 = 4;
/// Longest name of an architecture.
const LONGEST_NAME: u32 = 64;

/// Which call of llama.cpp wrote a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `llama_state_seq_save_file`, which slots of `llama-server` use too.
    SequenceFile,
    /// `llama_state_seq_get_data`.
    SequenceData,
    /// `llama_state_save_file`.
    SessionFile,
    /// `llama_state_get_data`.
    ContextData,
}

impl Origin {
    /// The call's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SequenceFile => "llama_state_seq_save_file",
            Self::SequenceData => "llama_state_seq_get_data",
            Self::SessionFile => "llama_state_save_file",
            Self::ContextData => "llama_state_get_data",
        }
    }
}

/// The parts of a state, and where they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Which call wrote it.
    pub origin: Origin,
    /// Version of a file; buffers have none.
    pub version: Option<u32>,
    /// Tokens of the prompt in the header, 0 where its version is not known.
    pub tokens: u32,
    /// The KV caches that were found.
    pub caches: Vec<Cache>,
    /// Bytes after the last cache: recurrent state, or something unknown, as in files of a newer version.
    pub unread_bytes: u64,
    /// Bytes of the state.
    pub bytes: u64,
    /// Why the first bytes of the memory are no KV cache, where they are none.
    pub(crate) foreign: Option<(u64, String)>,
}

impl Layout {
    /// Reads the headers of a state and skips its rows. Holds a few bytes per cell at most.
    ///
    /// # Errors
    /// [`SessionError::State`]: no state of llama.cpp, or one that is damaged or cut. A file of an unknown
    /// version is none of these: nothing of it is read ([`Layout::not_understood`]).
    pub fn read<R: Read + Seek>(state: &mut R) -> Result<Self, SessionError> {
        let mut source = StateSource::new(state)?;
        let (origin, version) = header(&mut source)?;
        if let Some(why) = unknown(origin, version) {
            let (bytes, unread_bytes) = (source.len(), source.left());
            let foreign = Some((VERSION_AT, why));
            return Ok(Self { origin, version, tokens: 0, caches: Vec::new(), unread_bytes, bytes, foreign });
        }
        let has_tokens = matches!(origin, Origin::SequenceFile | Origin::SessionFile);
        let tokens = if has_tokens { source.u32("the number of tokens")? } else { 0 };
        source.skip(4 * u64::from(tokens), "the list of tokens")?;
        if origin == Origin::SessionFile {
            name(&mut source)?;
        }
        let is_sequence = matches!(origin, Origin::SequenceFile | Origin::SequenceData);
        let rotations: &[bool] = match version {
            Some(version) if [SEQUENCE_VERSIONS[0], SESSION_VERSIONS[0]].contains(&version) => &[false],
            Some(_) => &[true],
            None => &[false, true],
        };
        let mut variants: Vec<Variant> = Vec::new();
        for has_extension in [false, true] {
            for &has_rotation in rotations {
                variants.push(Variant { is_sequence, has_extension, has_rotation });
            }
        }
        let (mut caches, mut foreign) = memory(&mut source, variants)?;
        let (end, bytes) = (source.at(), source.len());
        for cache in &caches {
            foreign = foreign.or(codes_in(&mut source, cache)?);
        }
        source.go_to(end)?;
        if foreign.is_some() {
            caches.clear();
        }
        let unread_bytes = source.left();
        Ok(Self { origin, version, tokens, caches, unread_bytes, bytes, foreign })
    }

    /// Why no cache was found, where none was: a version that is not known, or a memory of another kind. Such
    /// a state packs without loss alone ([`Mode::Exact`](crate::Mode::Exact)).
    pub fn not_understood(&self) -> Option<&str> {
        self.foreign.as_ref().map(|(_, why)| why.as_str())
    }
}

fn header<R: Read + Seek>(source: &mut StateSource<'_, R>) -> Result<(Origin, Option<u32>), SessionError> {
    let first = source.u32("the first field")?;
    let origin = match first {
        SEQUENCE_FILE => Origin::SequenceFile,
        SESSION_FILE => Origin::SessionFile,
        SEQUENCE_DATA => {
            source.u32("the sequence")?;
            return Ok((Origin::SequenceData, None));
        }
        _ => {
            source.go_to(0)?;
            name(source)?;
            return Ok((Origin::ContextData, None));
        }
    };
    Ok((origin, Some(source.u32("the version")?)))
}

/// Why a file of this version cannot be read, unless it can.
fn unknown(origin: Origin, version: Option<u32>) -> Option<String> {
    let [low, high] = match origin {
        Origin::SequenceFile => SEQUENCE_VERSIONS,
        Origin::SessionFile => SESSION_VERSIONS,
        Origin::SequenceData | Origin::ContextData => return None,
    };
    let version = version.filter(|version| ![low, high].contains(version))?;
    Some(format!("version {version} of {}; expected {low} or {high}", origin.name()))
}

/// Skips the name of the model's architecture.
fn name<R: Read + Seek>(source: &mut StateSource<'_, R>) -> Result<(), SessionError> {
    let at = source.at();
    let foreign = || SessionError::state(at, "not a state of llama.cpp: no known magic and no architecture");
    let length = source.u32("the architecture")?;
    if !(2..=LONGEST_NAME).contains(&length) {
        return Err(foreign());
    }
    for _ in 0..length {
        let [letter] = source.bytes("the architecture")?;
        if !(letter.is_ascii_alphanumeric() || b"-_.".contains(&letter)) {
            return Err(foreign());
        }
    }
    Ok(())
}

/// Where rows of the first layer of a cache hold codes that the library for llama.cpp wrote, if they do.
fn codes_in<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    cache: &Cache,
) -> Result<Option<(u64, String)>, SessionError> {
    for rows in cache.rows.iter().filter(|rows| rows.layer == 0 && !rows.is_transposed) {
        let row_bytes = rows.row_bytes();
        for cell in 0..u64::from(rows.cells).min(rows.bytes() / 8) {
            let at = rows.at + cell * row_bytes;
            source.go_to(at)?;
            if packed_rows(&source.bytes::<8>("a row")?).is_some() {
                let why = "its rows hold codes of tqkv already (state=codes)";
                return Ok(Some((at, why.to_owned())));
            }
        }
    }
    Ok(None)
}

type Found = (Vec<Cache>, Option<(u64, String)>);

/// All caches at this place, one after the other. Leaves the source after the last.
fn memory<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    mut variants: Vec<Variant>,
) -> Result<Found, SessionError> {
    let mut caches = Vec::new();
    while source.left() > 0 || caches.is_empty() {
        let start = source.at();
        match first_that_reads(source, &variants) {
            Ok((cache, variant)) => {
                variants = vec![variant];
                caches.push(cache);
            }
            Err(Miss::Foreign { at, why }) => {
                source.go_to(start)?;
                let foreign = caches.is_empty().then_some((at, why));
                return Ok((caches, foreign));
            }
            Err(miss) => return Err(miss.into()),
        }
    }
    Ok((caches, None))
}

/// Tries each variant at this place. Where none reads, the one that came furthest says why.
fn first_that_reads<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    variants: &[Variant],
) -> Result<(Cache, Variant), Miss> {
    let start = source.at();
    let mut worst: Option<Miss> = None;
    for variant in variants {
        source.go_to(start)?;
        match with_or_without_values(source, *variant) {
            Ok(cache) => return Ok((cache, *variant)),
            Err(miss @ Miss::Io(_)) => return Err(miss),
            Err(miss) => {
                let is_damage = |miss: &Miss| !matches!(miss, Miss::Foreign { .. });
                let is_worse = worst
                    .as_ref()
                    .is_none_or(|old| (is_damage(&miss), miss.at()) > (is_damage(old), old.at()));
                if is_worse {
                    worst = Some(miss);
                }
            }
        }
    }
    Err(worst.unwrap_or(Miss::Foreign { at: start, why: "no cache".into() }))
}

/// A cache with values, or one of MLA without them. The second is accepted where the first field of the
/// values is none, or where the state ends or another cache begins after the keys.
fn with_or_without_values<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    variant: Variant,
) -> Result<Cache, Miss> {
    let start = source.at();
    let with = match read_cache(source, variant, true) {
        Err(miss @ (Miss::Damaged { .. } | Miss::NoValues { .. })) => miss,
        done => return done,
    };
    source.go_to(start)?;
    let Ok(without) = read_cache(source, variant, false) else { return Err(with) };
    let end = source.at();
    let is_followed = source.left() == 0 || read_cache(source, variant, true).is_ok() || {
        source.go_to(end)?;
        read_cache(source, variant, false).is_ok()
    };
    source.go_to(end)?;
    if matches!(with, Miss::NoValues { .. }) || is_followed { Ok(without) } else { Err(with) }
}
