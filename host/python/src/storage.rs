//! The storage tier: bases, and chunks of keys and values.

use crate::arrays::{self, Values, Vectors, slice_mut, target, with_dtype, writing};
use crate::errors::{Failure, refused};
use crate::pool;
use half::bf16;
use half::slice::HalfBitsSliceExt;
use numpy::{Element, PyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use tqkv_storage as storage;
use tqkv_storage::{Budget, Join, Rope, RopePairing, Shape, Span, StorageError};

/// The most positions that are tried.
const MOST_CANDIDATES: u64 = 1 << 20;

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io(error) => PyErr::from(error).into(),
            error => refused(error.to_string()),
        }
    }
}

/// A basis. Immutable.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Basis(Arc<storage::Basis>);

impl Basis {
    pub(crate) const fn of(basis: Arc<storage::Basis>) -> Self {
        Self(basis)
    }

    pub(crate) fn shared(&self) -> &storage::Basis {
        &self.0
    }
}

#[pymethods]
impl Basis {
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> Result<Self, Failure> {
        let named = |error| match error {
            StorageError::Io(error) => {
                let text = format!("{}: {error}", path.display());
                PyErr::from(std::io::Error::new(error.kind(), text)).into()
            }
            error => refused(format!("{}: {error}", path.display())),
        };
        Ok(Self(Arc::new(py.detach(|| storage::Basis::load(&path)).map_err(named)?)))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<(), Failure> {
        Ok(py.detach(|| self.0.save(&path))?)
    }

    #[getter]
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    #[getter]
    fn model(&self) -> &str {
        self.0.model()
    }

    #[getter]
    fn tokens(&self) -> u64 {
        self.0.tokens()
    }
}

/// How layers share bases: as the shape asks for, or this many of them.
pub(crate) fn join(shape: &Shape, layers: u16) -> Join {
    if layers == 1 { shape.join() } else { Join::Layers(layers) }
}

/// Makes a shape from Python's arguments.
pub(crate) fn shape(
    (layers, heads, head_dim, value_dim): (usize, usize, usize, usize),
    of: RopeOf,
) -> Result<Shape, Failure> {
    Ok(Shape::new(layers, heads, head_dim, value_dim, rope(of)?)?)
}

/// A RoPE as Python describes it: its kind, its first coordinate and its frequencies.
pub(crate) type RopeOf = (String, usize, Vec<f64>);

/// Makes a RoPE from Python's description.
pub(crate) fn rope((kind, first, frequencies): RopeOf) -> Result<Rope, Failure> {
    Ok(match kind.as_str() {
        "none" => Rope::none(),
        "half" => Rope::new(first, RopePairing::Half, frequencies),
        "interleaved" => Rope::new(first, RopePairing::Interleaved, frequencies),
        _ => return Err(StorageError::RopeKind(kind).into()),
    })
}

/// Gathers the sums for a basis.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Learner(Mutex<storage::Learner>);

#[pymethods]
impl Learner {
    #[new]
    fn new(counts: (usize, usize, usize, usize), rope: RopeOf, layers: u16) -> Result<Self, Failure> {
        let shape = shape(counts, rope)?;
        let join = join(&shape, layers);
        Ok(Self(Mutex::new(storage::Learner::new(shape, join)?)))
    }

    fn learn(
        &self,
        py: Python<'_>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        first_position: u64,
    ) -> Result<(), Failure> {
        pool::start()?;
        let (k, v) = (Vectors::new("k", k)?, Vectors::new("v", v)?);
        let (k, v) = (k.values("k")?, v.values("v")?);
        py.detach(|| {
            let mut learner = self.lock()?;
            match (k, v) {
                (Values::F32(k), Values::F32(v)) => learner.learn(k, v, first_position),
                (Values::F16(k), Values::F16(v)) => learner.learn(k, v, first_position),
                (Values::Bf16(k), Values::Bf16(v)) => learner.learn(k, v, first_position),
                _ => Err(StorageError::Learning("keys and values are of unlike dtypes".into())),
            }
        })?;
        Ok(())
    }

    fn freeze(&self, py: Python<'_>, model: &str) -> Result<Basis, Failure> {
        pool::start()?;
        Ok(Basis(Arc::new(py.detach(|| self.lock()?.freeze(model))?)))
    }

    #[getter]
    fn tokens(&self) -> Result<u64, Failure> {
        Ok(self.lock()?.tokens())
    }
}

impl Learner {
    fn lock(&self) -> Result<MutexGuard<'_, storage::Learner>, StorageError> {
        self.0.lock().map_err(|_| StorageError::Learning("a call on this learner failed".into()))
    }
}

/// Encodes and decodes chunks. Immutable.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Storage(storage::StorageCodec);

impl Storage {
    pub(crate) fn of(codec: &storage::StorageCodec) -> Self {
        Self(codec.clone())
    }

    pub(crate) const fn codec(&self) -> &storage::StorageCodec {
        &self.0
    }
}

#[pymethods]
impl Storage {
    #[staticmethod]
    fn with_basis(basis: &Basis) -> Result<Self, Failure> {
        pool::start()?;
        Ok(Self(storage::StorageCodec::new(basis.0.shape().clone(), Some(basis.0.clone()))?))
    }

    #[staticmethod]
    fn without(counts: (usize, usize, usize, usize), rope: RopeOf) -> Result<Self, Failure> {
        pool::start()?;
        Ok(Self(storage::StorageCodec::new(shape(counts, rope)?, None)?))
    }

    fn size(&self, tokens: usize, exact: usize, dtype: &str, budget: f32) -> Result<usize, Failure> {
        let (span, budget) = (self.span(tokens, exact, 0, [0; 8]), Budget::new(budget)?);
        Ok(match dtype {
            "float32" => self.0.encoded_bytes::<f32>(budget, &span)?,
            // Both types have the same size.
            "float16" | "bfloat16" => self.0.encoded_bytes::<bf16>(budget, &span)?,
            other => {
                return Err(refused(format!(
                    "dtype {other} is not valid: expected float32, float16 or bfloat16"
                )));
            }
        })
    }

    /// The multiple of `tokens`, below `end`, that is most likely the position of the first token.
    fn locate(&self, py: Python<'_>, k: &Bound<'_, PyAny>, tokens: usize, end: u64) -> Result<u64, Failure> {
        pool::start()?;
        let k = Vectors::new("k", k)?;
        let k = k.values("k")?;
        let span = self.span(tokens, 0, 0, [0; 8]);
        let step = tokens.max(1);
        if end.div_ceil(step as u64) > MOST_CANDIDATES {
            let most = MOST_CANDIDATES * step as u64;
            return Err(refused(format!(
                "end {end} is not valid: expected a position up to {most} in steps of {step}"
            )));
        }
        let candidates: Vec<u64> = (0..end).step_by(step).collect();
        Ok(py.detach(|| match k {
            Values::F32(k) => self.0.locate(&span, k, &candidates),
            Values::F16(k) => self.0.locate(&span, k, &candidates),
            Values::Bf16(k) => self.0.locate(&span, k, &candidates),
        })?)
    }

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
        budget: f32,
    ) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
        pool::start()?;
        let (k, v) = (Vectors::new("k", k)?, Vectors::new("v", v)?);
        let (k, v) = (k.values("k")?, v.values("v")?);
        let (span, budget) = (self.span(tokens, exact, first_position, name), Budget::new(budget)?);
        let bytes = py.detach(|| match (k, v) {
            (Values::F32(k), Values::F32(v)) => self.0.encode(budget, &span, k, v),
            (Values::F16(k), Values::F16(v)) => self.0.encode(budget, &span, k, v),
            (Values::Bf16(k), Values::Bf16(v)) => self.0.encode(budget, &span, k, v),
            _ => Err(StorageError::Span("keys and values are of unlike dtypes".into())),
        })?;
        let out = target::<u8>(py, None, &[bytes.len()])?;
        slice_mut(&mut writing(&out)?)?.copy_from_slice(&bytes);
        Ok(out)
    }

    /// Bytes, tokens, first position and name of the chunk at the start of `data`.
    fn peek(&self, data: &Bound<'_, PyAny>) -> Result<(usize, usize, u64, [u8; 8]), Failure> {
        let data = arrays::bytes("data", data)?;
        let bytes = arrays::slice("data", &data)?;
        let span = self.0.span(bytes)?;
        Ok((self.0.chunk_bytes(bytes)?, span.tokens, span.first_position, span.name))
    }

    fn decode(
        &self,
        py: Python<'_>,
        chunk: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        dtype: &str,
    ) -> Result<(), Failure> {
        pool::start()?;
        let chunk = arrays::bytes("chunk", chunk)?;
        let bytes = arrays::slice("chunk", &chunk)?;
        with_dtype!(dtype, decode::<_>(py, &self.0, bytes, k, v))
    }
}

impl Storage {
    fn span(&self, tokens: usize, exact: usize, first_position: u64, name: [u8; 8]) -> Span {
        Span { exact, name, ..Span::of(self.0.shape(), first_position, tokens) }
    }
}

/// Converts the number types of this module to those of the storage tier.
pub(crate) trait StoredNumber: Element + Copy + Default + Send + Sync {
    type As: storage::Element;
    fn of(values: &mut [Self]) -> &mut [Self::As];
    /// The same, to be read.
    fn seen(values: &[Self]) -> &[Self::As];
    /// Returns true for numbers that are neither infinite nor NaN, by their bits.
    fn is_finite(self) -> bool;
}

impl StoredNumber for f32 {
    type As = Self;
    fn of(values: &mut [Self]) -> &mut [Self] {
        values
    }

    fn seen(values: &[Self]) -> &[Self] {
        values
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

impl StoredNumber for half::f16 {
    type As = Self;
    fn of(values: &mut [Self]) -> &mut [Self] {
        values
    }

    fn seen(values: &[Self]) -> &[Self] {
        values
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

/// The bits of a bfloat16, which NumPy does not have.
impl StoredNumber for u16 {
    type As = bf16;
    fn of(values: &mut [Self]) -> &mut [bf16] {
        values.reinterpret_cast_mut()
    }

    fn seen(values: &[Self]) -> &[bf16] {
        values.reinterpret_cast()
    }

    fn is_finite(self) -> bool {
        bf16::from_bits(self).is_finite()
    }
}

fn decode<T: StoredNumber>(
    py: Python<'_>,
    codec: &storage::StorageCodec,
    bytes: &[u8],
    k: &Bound<'_, PyAny>,
    v: &Bound<'_, PyAny>,
) -> Result<(), Failure> {
    let (k, v) = (array::<T>("k", k)?, array::<T>("v", v)?);
    let (mut k, mut v) = (writing(&k)?, writing(&v)?);
    let (k, v) = (T::of(slice_mut(&mut k)?), T::of(slice_mut(&mut v)?));
    py.detach(|| codec.decode(bytes, k, v))?;
    Ok(())
}

/// Casts to a contiguous array of the dtype.
fn array<'py, T: Element>(what: &str, x: &Bound<'py, PyAny>) -> Result<Bound<'py, PyArrayDyn<T>>, Failure> {
    match x.cast::<PyArrayDyn<T>>() {
        Ok(array) if array.is_c_contiguous() => Ok(array.clone()),
        _ => Err(refused(format!("{what} is no contiguous array of the dtype"))),
    }
}
