//! A basis that follows its text, and the folder of its generations.

use crate::arrays::{self, Values, Vectors, slice_mut, target, writing};
use crate::errors::Failure;
use crate::pool;
use crate::storage::{Basis, RopeOf, Storage, join, shape};
use numpy::PyArrayDyn;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use tqkv_storage as storage;
use tqkv_storage::{Budget, Span, StorageError};

/// Encodes chunks, and learns from them.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Follower(Mutex<storage::Follower>);

#[pymethods]
impl Follower {
    #[new]
    fn new(model: &str, storage: &Storage, budget: f32, layers: u16) -> Result<Self, Failure> {
        pool::start()?;
        let codec = storage.codec().clone();
        let join = join(codec.shape(), layers);
        Ok(Self(Mutex::new(storage::Follower::new(model, codec, join, Budget::new(budget)?)?)))
    }

    /// The codec of the present generation.
    #[getter]
    fn storage(&self) -> Result<Storage, Failure> {
        Ok(Storage::of(self.lock()?.codec()))
    }

    /// The chunk, and the basis that is to be kept before it.
    #[expect(clippy::too_many_arguments, reason = "the Python module names them")]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
        tokens: usize,
        exact: usize,
        first_position: u64,
        name: [u8; 8],
    ) -> Result<(Bound<'py, PyArrayDyn<u8>>, Option<Basis>), Failure> {
        pool::start()?;
        let (k, v) = (Vectors::new("k", k)?, Vectors::new("v", v)?);
        let (k, v) = (k.values("k")?, v.values("v")?);
        let encoded = py.detach(|| {
            let mut follower = self.lock()?;
            let span = Span { exact, name, ..Span::of(follower.codec().shape(), first_position, tokens) };
            match (k, v) {
                (Values::F32(k), Values::F32(v)) => follower.encode(&span, k, v),
                (Values::F16(k), Values::F16(v)) => follower.encode(&span, k, v),
                (Values::Bf16(k), Values::Bf16(v)) => follower.encode(&span, k, v),
                _ => Err(StorageError::Span("keys and values are of unlike dtypes".into())),
            }
        })?;
        let out = target::<u8>(py, None, &[encoded.chunk.len()])?;
        slice_mut(&mut writing(&out)?)?.copy_from_slice(&encoded.chunk);
        Ok((out, encoded.basis.map(Basis::of)))
    }
}

impl Follower {
    fn lock(&self) -> Result<MutexGuard<'_, storage::Follower>, StorageError> {
        self.0.lock().map_err(|_| StorageError::Learning("a call on this follower failed".into()))
    }
}

/// A folder of bases.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Generations(Mutex<storage::Generations>);

#[pymethods]
impl Generations {
    #[new]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        model: &str,
        counts: (usize, usize, usize, usize),
        rope: RopeOf,
    ) -> Result<Self, Failure> {
        let shape = shape(counts, rope)?;
        Ok(Self(Mutex::new(py.detach(|| storage::Generations::open(&folder, model, shape))?)))
    }

    fn add(&self, py: Python<'_>, basis: &Basis) -> Result<(), Failure> {
        Ok(py.detach(|| self.lock()?.add(basis.shared()))?)
    }

    fn newest(&self, py: Python<'_>) -> Result<Storage, Failure> {
        Ok(py.detach(|| self.lock()?.newest().map(Storage::of))?)
    }

    fn of(&self, py: Python<'_>, chunk: &Bound<'_, PyAny>) -> Result<Storage, Failure> {
        let chunk = arrays::bytes("chunk", chunk)?;
        let bytes = arrays::slice("chunk", &chunk)?;
        Ok(py.detach(|| self.lock()?.of(bytes).map(Storage::of))?)
    }
}

impl Generations {
    fn lock(&self) -> Result<MutexGuard<'_, storage::Generations>, StorageError> {
        self.0.lock().map_err(|_| StorageError::Basis("a call on this folder failed".into()))
    }
}
