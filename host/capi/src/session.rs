//! Saved states of llama.cpp: pack, unpack, inspect, in memory and in files.

use crate::error::{Failure, TqkvStatus};
use crate::pointer::{self, Call};
use crate::snapshot::{Callback, TqkvWrite, null};
use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek};
use std::path::Path;
use std::sync::Arc;
use tqkv::error::CacheError;
use tqkv::file::{AtomicFile, Existing};
use tqkv_session::{
    Basis, BasisCoder, Budget, Class, Layout, MAGIC, Mode, SessionError, Sizes, StorageCodec, StorageError,
};
use tqkv_simd::Level;

/// A state of llama.cpp, or a pack of one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TqkvSessionInfo {
    /// 1 for a pack, 0 for a state.
    pub is_pack: usize,
    /// 1 for a pack that gives back the same bytes.
    pub is_exact: usize,
    /// Bytes of the state.
    pub state_bytes: usize,
    /// Bytes of the pack; 0 for a state.
    pub pack_bytes: usize,
    /// Bytes of the state in coded rows; 0 for a state.
    pub coded_state_bytes: usize,
    /// Bytes of the pack in coded rows; 0 for a state.
    pub coded_pack_bytes: usize,
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let status = match error {
            SessionError::State { .. } | SessionError::Pack(_) => TqkvStatus::TqkvBadSession,
            SessionError::Codec(_) | SessionError::Basis(_) => TqkvStatus::TqkvBadArgument,
            SessionError::Io(_) => TqkvStatus::TqkvIo,
            _ => TqkvStatus::TqkvOther,
        };
        Self::new(status, error.to_string())
    }
}

/// The level of the machine, with the threads started.
fn ready() -> Result<Level, Failure> {
    tqkv::threads::start()?;
    Ok(Level::detect().map_err(CacheError::Level)?)
}

/// The codecs of a call: null is `t4`, a head dim of 0 is found.
fn mode(call: &Call, codecs: *const c_char, head_dim: usize) -> Result<Mode<'static>, Failure> {
    let text = if codecs.is_null() { "t4" } else { call.text("codecs", codecs)? };
    Ok(Mode::parse(text, (head_dim > 0).then_some(head_dim))?)
}

/// A basis of `tqkv basis`. It never changes.
#[derive(Debug)]
pub struct TqkvBasis(StorageCodec);

impl TqkvBasis {
    fn new(read: Result<Basis, StorageError>) -> Result<Self, Failure> {
        let made = read.and_then(|basis| StorageCodec::new(basis.shape().clone(), Some(Arc::new(basis))));
        made.map(Self).map_err(|error| {
            let status = match error {
                StorageError::Io(_) => TqkvStatus::TqkvIo,
                _ => TqkvStatus::TqkvBadArgument,
            };
            Failure::new(status, error.to_string())
        })
    }

    /// How a state is packed in this basis.
    fn mode(&self, bits: f32) -> Result<Mode<'_>, Failure> {
        let budget = Budget::new(bits).map_err(|error| Failure::argument(error.to_string()))?;
        Ok(Mode::Stored(BasisCoder::new(&self.0, budget)?))
    }
}

/// The codec of a basis that a call may leave out.
fn given(call: &Call, basis: *const TqkvBasis) -> Result<Option<&StorageCodec>, Failure> {
    if basis.is_null() { Ok(None) } else { Ok(Some(&call.handle("basis", basis)?.0)) }
}

fn pack_file(from: &str, to: &str, mode: Mode<'_>) -> Result<(), Failure> {
    let level = ready()?;
    let mut state = File::open(from).map_err(in_file(from))?;
    write_file(to, |pack| {
        let packed = tqkv_session::pack(&mut state, pack, mode, level);
        packed.map(drop).map_err(|error| Failure::from(error).about(from))
    })
}

fn unpack_file(from: &str, to: &str, basis: Option<&StorageCodec>) -> Result<(), Failure> {
    let level = ready()?;
    let mut pack = BufReader::new(File::open(from).map_err(in_file(from))?);
    write_file(to, |state| {
        let unpacked = tqkv_session::unpack(&mut pack, state, basis, level);
        unpacked.map(drop).map_err(|error| Failure::from(error).about(from))
    })
}

/// Passes the pack of a state to a function of the program.
fn pack_slice(state: &[u8], mode: Mode<'_>, (write, user): (TqkvWrite, *mut c_void)) -> Result<(), Failure> {
    let function = write.ok_or_else(|| null("write"))?;
    let mut writer = BufWriter::new(Callback { function, user });
    tqkv_session::pack(&mut Cursor::new(state), &mut writer, mode, ready()?)?;
    Ok(())
}

fn in_file(path: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(TqkvStatus::TqkvIo, format!("{path}: {error}"))
}

/// Writes a file that appears complete or not at all.
fn write_file(
    path: &str,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let file = AtomicFile::create(Path::new(path), Existing::Replace).map_err(in_file(path))?;
    let mut file = BufWriter::new(file);
    write(&mut file)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error).map_err(in_file(path))?;
    file.commit().map_err(in_file(path))
}

/// Loads a file of `tqkv basis`. Packs and unpacks of any number of threads share one basis. On failure
/// `*basis` is null.
///
/// # Safety
/// `path` is null or ends with a zero. `basis` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_basis_load(path: *const c_char, basis: *mut *mut TqkvBasis) -> TqkvStatus {
    // SAFETY: `path` is text and `basis` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("basis", basis, || {
            let path = call.text("path", path)?;
            TqkvBasis::new(Basis::load(Path::new(path))).map_err(|failure| failure.about(path))
        })
    })
}

/// Reads a basis from the bytes of its file. On failure `*basis` is null.
///
/// # Safety
/// `bytes` is null or has `len` bytes. `basis` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_basis_from_bytes(
    bytes: *const u8,
    len: usize,
    basis: *mut *mut TqkvBasis,
) -> TqkvStatus {
    // SAFETY: `bytes` has `len` bytes and `basis` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("basis", basis, || TqkvBasis::new(Basis::from_bytes(call.slice("bytes", bytes, len)?)))
    })
}

/// Frees a basis; null is accepted.
///
/// # Safety
/// `basis` is null or a handle of `tqkv_basis_load` or `tqkv_basis_from_bytes` that is not freed and that no
/// call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_basis_free(basis: *mut TqkvBasis) {
    // SAFETY: a call made it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(basis) }
}

/// Codes a state of llama.cpp, and passes the pack to `write` from the first byte to the last. `codecs` is
/// null for "t4", one codec ("s4"), two for keys and values ("t4,t2"), or "exact" to lose nothing. With a
/// `head_dim` of 0 heads of 128 or 64 are assumed, whichever divides a row.
///
/// # Safety
/// `state` is null or has `len` bytes. `codecs` is null or ends with a zero. `write` is null or may be called
/// with `user`, reads no more bytes than it is passed, and returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_pack(
    state: *const u8,
    len: usize,
    codecs: *const c_char,
    head_dim: usize,
    write: TqkvWrite,
    user: *mut c_void,
) -> TqkvStatus {
    // SAFETY: `state` has `len` bytes and `codecs` is text, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        pack_slice(call.slice("state", state, len)?, mode(call, codecs, head_dim)?, (write, user))
    })
}

/// Codes a state of llama.cpp in a basis, at `bits` bits per value (.5 to 5), as `tqkv_session_pack` does.
/// The pack needs the same basis again.
///
/// # Safety
/// `state` is null or has `len` bytes. `basis` is null or a basis that is not freed. `write` is null or may
/// be called with `user`, reads no more bytes than it is passed, and returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_pack_basis(
    state: *const u8,
    len: usize,
    basis: *const TqkvBasis,
    bits: f32,
    write: TqkvWrite,
    user: *mut c_void,
) -> TqkvStatus {
    // SAFETY: `state` has `len` bytes and `basis` is a basis, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let state = call.slice("state", state, len)?;
        pack_slice(state, call.handle("basis", basis)?.mode(bits)?, (write, user))
    })
}

/// Writes the state that a pack holds to `state`, which has room for `room` bytes, and its length to `*len`.
/// `tqkv_session_inspect` tells the length. If the room is less, the call returns TQKV_FULL and writes the
/// length alone. If a pack is refused, the bytes of `state` have no meaning. `basis` is the one that the pack
/// was made with, or null.
///
/// # Safety
/// `pack` is null or has `pack_len` bytes. `basis` is null or a basis that is not freed. `state` is null or
/// has room for `room` bytes. `len` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_unpack(
    pack: *const u8,
    pack_len: usize,
    basis: *const TqkvBasis,
    state: *mut u8,
    room: usize,
    len: *mut usize,
) -> TqkvStatus {
    // SAFETY: the pointers are those of the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let pack = call.slice("pack", pack, pack_len)?;
        let (state, len) = (call.room("state", state, room)?, call.place("len", len)?);
        let (basis, level) = (given(call, basis)?, ready()?);
        // Checksums first: a pack that lies about its size is refused before a byte is written.
        let sizes = tqkv_session::inspect(&mut &*pack)?.sizes;
        let bytes = bytes(sizes.state)?;
        len.write(bytes);
        let Some(state) = state.get_mut(..bytes) else {
            let why = format!("state has room for {room} bytes, expected {bytes} or more");
            return Err(Failure::new(TqkvStatus::TqkvFull, why));
        };
        tqkv_session::unpack(&mut &*pack, &mut Cursor::new(state), basis, level)?;
        Ok(())
    })
}

/// Describes a state or a pack, and checks the checksums of a pack.
///
/// # Safety
/// `bytes` is null or has `len` bytes. `info` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_inspect(
    bytes: *const u8,
    len: usize,
    info: *mut TqkvSessionInfo,
) -> TqkvStatus {
    // SAFETY: `bytes` has `len` bytes and `info` can be written, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let bytes = call.slice("bytes", bytes, len)?;
        let place = call.place("info", info)?;
        place.write(look(&mut Cursor::new(bytes))?);
        Ok(())
    })
}

/// Codes the state in a file, as `tqkv_session_pack` does. The pack appears complete or not at all, and
/// replaces an existing file. Memory does not grow with the state.
///
/// # Safety
/// The paths are null or end with a zero; `codecs` as in `tqkv_session_pack`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_pack_file(
    state: *const c_char,
    pack: *const c_char,
    codecs: *const c_char,
    head_dim: usize,
) -> TqkvStatus {
    // SAFETY: the arguments are text, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (from, to) = (call.text("state", state)?, call.text("pack", pack)?);
        pack_file(from, to, mode(call, codecs, head_dim)?)
    })
}

/// Codes the state in a file in a basis, as `tqkv_session_pack_basis` does. The pack appears complete or not
/// at all, and replaces an existing file. Memory does not grow with the state.
///
/// # Safety
/// The paths are null or end with a zero. `basis` is null or a basis that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_pack_basis_file(
    state: *const c_char,
    pack: *const c_char,
    basis: *const TqkvBasis,
    bits: f32,
) -> TqkvStatus {
    // SAFETY: the paths are text and `basis` is a basis, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (from, to) = (call.text("state", state)?, call.text("pack", pack)?);
        pack_file(from, to, call.handle("basis", basis)?.mode(bits)?)
    })
}

/// Writes the state that a pack holds to a file, which appears complete or not at all. An existing file is
/// replaced. Memory does not grow with the state. `basis` is as in `tqkv_session_unpack`.
///
/// # Safety
/// The paths are null or end with a zero. `basis` is null or a basis that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_unpack_file(
    pack: *const c_char,
    state: *const c_char,
    basis: *const TqkvBasis,
) -> TqkvStatus {
    // SAFETY: the paths are text and `basis` is a basis, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (from, to) = (call.text("pack", pack)?, call.text("state", state)?);
        unpack_file(from, to, given(call, basis)?)
    })
}

/// Describes the state or the pack in a file, as `tqkv_session_inspect` does.
///
/// # Safety
/// `path` is null or ends with a zero. `info` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_session_inspect_file(
    path: *const c_char,
    info: *mut TqkvSessionInfo,
) -> TqkvStatus {
    // SAFETY: `path` is text and `info` can be written, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let (path, place) = (call.text("path", path)?, call.place("info", info)?);
        let mut file = BufReader::new(File::open(path).map_err(in_file(path))?);
        place.write(look(&mut file).map_err(|failure| failure.about(path))?);
        Ok(())
    })
}

fn look(from: &mut (impl Read + Seek)) -> Result<TqkvSessionInfo, Failure> {
    let mut first = Vec::new();
    from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut first).map_err(SessionError::Io)?;
    from.rewind().map_err(SessionError::Io)?;
    if first != MAGIC {
        let layout = Layout::read(from)?;
        return Ok(TqkvSessionInfo { state_bytes: bytes(layout.bytes)?, ..TqkvSessionInfo::default() });
    }
    let summary = tqkv_session::inspect(from)?;
    let Sizes { state, pack, coded_state, coded_pack } = summary.sizes;
    Ok(TqkvSessionInfo {
        is_pack: 1,
        is_exact: usize::from(summary.class == Class::Exact),
        state_bytes: bytes(state)?,
        pack_bytes: bytes(pack)?,
        coded_state_bytes: bytes(coded_state)?,
        coded_pack_bytes: bytes(coded_pack)?,
    })
}

/// A length as C has it.
fn bytes(len: u64) -> Result<usize, Failure> {
    usize::try_from(len).map_err(|_| Failure::argument(format!("{len} bytes are more than memory can hold")))
}
