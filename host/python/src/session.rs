//! Saved states of llama.cpp: pack, unpack, inspect, in memory and in files.

use crate::arrays::{self, slice_mut, target, writing};
use crate::errors::{Failure, refused};
use crate::pool;
use crate::storage::Storage;
use numpy::PyArrayDyn;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek};
use std::path::{Path, PathBuf};
use tqkv::error::CacheError;
use tqkv::file::{AtomicFile, Existing};
use tqkv_session::{BasisCoder, Budget, Class, Layout, MAGIC, Mode, SessionError, Sizes, StorageCodec};
use tqkv_simd::Level;

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Io(error) => PyErr::from(error).into(),
            error => refused(error.to_string()),
        }
    }
}

/// An error with the path of its file.
fn in_file(path: &Path) -> impl Fn(SessionError) -> Failure {
    move |error| match error {
        SessionError::Io(error) => {
            let text = format!("{}: {error}", path.display());
            PyErr::from(io::Error::new(error.kind(), text)).into()
        }
        error => refused(format!("{}: {error}", path.display())),
    }
}

fn ready() -> Result<Level, Failure> {
    pool::start()?;
    Ok(Level::detect().map_err(CacheError::Level)?)
}

/// The codec of a basis, where one is given.
fn codec<'a>(basis: Option<&'a Bound<'_, Storage>>) -> Option<&'a StorageCodec> {
    basis.map(|basis| basis.get().codec())
}

/// How a state is packed: in a basis with `budget` bits per value, or in codecs.
fn mode<'a>(
    codecs: &str,
    head_dim: Option<usize>,
    basis: Option<&'a StorageCodec>,
    budget: f32,
) -> Result<Mode<'a>, Failure> {
    match basis {
        None => Ok(Mode::parse(codecs, head_dim)?),
        Some(codec) => Ok(Mode::Stored(BasisCoder::new(codec, Budget::new(budget)?)?)),
    }
}

fn array<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
    let out = target::<u8>(py, None, &[bytes.len()])?;
    slice_mut(&mut writing(&out)?)?.copy_from_slice(bytes);
    Ok(out)
}

#[pyfunction]
pub(crate) fn pack_session<'py>(
    py: Python<'py>,
    state: &Bound<'py, PyAny>,
    codecs: &str,
    head_dim: Option<usize>,
    basis: Option<&Bound<'py, Storage>>,
    budget: f32,
) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
    let (mode, level) = (mode(codecs, head_dim, codec(basis), budget)?, ready()?);
    let state = arrays::bytes("state", state)?;
    let state = arrays::slice("state", &state)?;
    let mut pack = Vec::new();
    py.detach(|| tqkv_session::pack(&mut Cursor::new(state), &mut pack, mode, level))?;
    array(py, &pack)
}

#[pyfunction]
pub(crate) fn unpack_session<'py>(
    py: Python<'py>,
    pack: &Bound<'py, PyAny>,
    basis: Option<&Bound<'py, Storage>>,
) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
    let (level, basis) = (ready()?, codec(basis));
    let pack = arrays::bytes("pack", pack)?;
    let pack = arrays::slice("pack", &pack)?;
    // Checksums first: a pack that lies about its size takes no memory.
    let sizes = py.detach(|| tqkv_session::inspect(&mut &*pack))?.sizes;
    let bytes = usize::try_from(sizes.state).map_err(|_| refused("pack: a state longer than memory"))?;
    let out = target::<u8>(py, None, &[bytes])?;
    {
        let mut writing = writing(&out)?;
        let mut state = Cursor::new(slice_mut(&mut writing)?);
        py.detach(|| tqkv_session::unpack(&mut &*pack, &mut state, basis, level))?;
    }
    Ok(out)
}

/// Writes a file that appears complete or not at all.
fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| in_file(path)(error.into());
    let mut file = BufWriter::new(AtomicFile::create(path, Existing::Replace).map_err(failed)?);
    write(&mut file)?;
    file.into_inner().map_err(|error| failed(error.into_error()))?.commit().map_err(failed)
}

#[pyfunction]
pub(crate) fn pack_session_file(
    py: Python<'_>,
    state: PathBuf,
    pack: PathBuf,
    codecs: &str,
    head_dim: Option<usize>,
    basis: Option<&Bound<'_, Storage>>,
    budget: f32,
) -> Result<(), Failure> {
    let (mode, level) = (mode(codecs, head_dim, codec(basis), budget)?, ready()?);
    py.detach(|| {
        let mut from = File::open(&state).map_err(|error| in_file(&state)(error.into()))?;
        write_file(&pack, |to| {
            let packed = tqkv_session::pack(&mut from, to, mode, level);
            packed.map(drop).map_err(in_file(&state))
        })
    })
}

#[pyfunction]
pub(crate) fn unpack_session_file(
    py: Python<'_>,
    pack: PathBuf,
    state: PathBuf,
    basis: Option<&Bound<'_, Storage>>,
) -> Result<(), Failure> {
    let (level, basis) = (ready()?, codec(basis));
    py.detach(|| {
        let from = File::open(&pack).map_err(|error| in_file(&pack)(error.into()))?;
        let mut from = BufReader::new(from);
        write_file(&state, |to| {
            let unpacked = tqkv_session::unpack(&mut from, to, basis, level);
            unpacked.map(drop).map_err(in_file(&pack))
        })
    })
}

/// Describes a file, or bytes.
#[pyfunction]
pub(crate) fn inspect_session<'py>(
    py: Python<'py>,
    path: Option<PathBuf>,
    data: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyDict>, Failure> {
    let Some(path) = path else {
        let data = data.ok_or_else(|| refused("neither a path nor bytes"))?;
        let data = arrays::bytes("data", data)?;
        let mut from = Cursor::new(arrays::slice("data", &data)?);
        return Ok(py.detach(|| Look::of(&mut from))?.dict(py)?);
    };
    let found = py.detach(|| Look::of(&mut BufReader::new(File::open(&path)?)));
    Ok(found.map_err(in_file(&path))?.dict(py)?)
}

/// The parts of a state or of a pack.
enum Look {
    State(Layout),
    Pack(tqkv_session::Summary),
}

impl Look {
    fn of(from: &mut (impl Read + Seek)) -> Result<Self, SessionError> {
        let mut first = Vec::new();
        from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut first)?;
        from.rewind()?;
        if first == MAGIC {
            tqkv_session::inspect(from).map(Self::Pack)
        } else {
            Layout::read(from).map(Self::State)
        }
    }

    fn dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        match self {
            Self::State(layout) => {
                dict.set_item("kind", "state")?;
                dict.set_item("written_by", layout.origin.name())?;
                dict.set_item("tokens", layout.tokens)?;
                dict.set_item("cells", layout.caches.iter().map(|cache| cache.cells).collect::<Vec<_>>())?;
                dict.set_item("state_bytes", layout.bytes)?;
            }
            Self::Pack(summary) => {
                let Sizes { state, pack, coded_state, coded_pack } = summary.sizes;
                dict.set_item("kind", "pack")?;
                dict.set_item("exact", summary.class == Class::Exact)?;
                dict.set_item("state_bytes", state)?;
                dict.set_item("pack_bytes", pack)?;
                dict.set_item("coded_state_bytes", coded_state)?;
                dict.set_item("coded_pack_bytes", coded_pack)?;
                dict.set_item("basis", summary.basis.map(|id| id.to_string()))?;
            }
        }
        Ok(dict)
    }
}
