//! The cache of numbered slots, and the mask of a step.
//!
//! Attention encodes rows, so it holds the lock of the cache alone. A mask is only read by attention.

use crate::arrays::{Vectors, slice, slice_mut, writing, zeros};
use crate::errors::{Failure, refused};
use crate::held::{Held, broken};
use crate::pool;
use crate::spec;
use crate::storage::{self, RopeOf};
use half::f16;
use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use std::sync::RwLock;
use tqkv::KvShape;
use tqkv::slots::{Mask, SlotCache};

type Halves<'py> = Bound<'py, PyArrayDyn<f16>>;

/// Keys and values of many sequences in numbered slots.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Slots(Held<SlotCache>);

/// Which slots each query of a step sees.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct SlotMask {
    mask: RwLock<Mask>,
}

/// The numbers of a list of slots or positions.
pub(crate) fn indexes(what: &str, array: &Bound<'_, PyAny>) -> Result<Vec<usize>, Failure> {
    let array = array.cast::<PyArrayDyn<i64>>().ok().and_then(|array| array.try_readonly().ok());
    let Some(array) = array.filter(|array| array.ndim() == 1) else {
        return Err(refused(format!(
            "{what} of this type is not valid: expected a list of numbers from 0 on"
        )));
    };
    let number = |&found: &i64| {
        usize::try_from(found)
            .map_err(|_| refused(format!("{what} with {found} is not valid: expected numbers from 0 on")))
    };
    slice(what, &array)?.iter().map(number).collect()
}

impl Slots {
    /// Refuses keys and values of another shape than that of `tokens` tokens of the layer.
    fn check_kv(&self, layer: usize, tokens: usize, k: &Vectors<'_>, v: &Vectors<'_>) -> Result<(), Failure> {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.0.shape(layer);
        check_shape("k", k.shape(), [tokens, num_kv_heads, head_dim])?;
        check_shape("v", v.shape(), [tokens, num_kv_heads, value_dim])
    }
}

fn check_shape(what: &str, found: &[usize], expected: [usize; 3]) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(refused(format!("{what} of the shape {found:?} is not valid: expected {expected:?}")))
}

#[pymethods]
impl Slots {
    #[new]
    fn new(py: Python<'_>, texts: Vec<String>, slots: usize, streams: usize) -> Result<Self, Failure> {
        pool::start()?;
        let spec = spec::read(&texts)?;
        let cache = py.detach(|| SlotCache::with_streams(spec, slots, streams))?;
        Ok(Self(Held::new(cache, SlotCache::spec)))
    }

    fn spec(&self, py: Python<'_>) -> Result<String, Failure> {
        self.0.with(py, |cache| Ok(cache.spec().to_string()))
    }

    fn slots(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.0.with(py, |cache| Ok(cache.slots()))
    }

    fn streams(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.0.with(py, |cache| Ok(cache.streams()))
    }

    fn allocated_bytes(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.0.with(py, |cache| Ok(cache.allocated_bytes()))
    }

    fn mask(&self, py: Python<'_>, stream: usize) -> Result<SlotMask, Failure> {
        self.0.with(py, |cache| {
            if stream >= cache.streams() {
                return Err(refused(format!(
                    "stream {stream} is out of range: the cache has {}",
                    cache.streams()
                )));
            }
            Ok(SlotMask { mask: RwLock::new(Mask::new(cache.slots()).of_stream(stream)) })
        })
    }

    fn write(
        &self,
        py: Python<'_>,
        layer: usize,
        slots: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (slots, positions) = (indexes("slots", slots)?, indexes("positions", positions)?);
        let (k, v) = (Vectors::new("k", k)?, Vectors::new("v", v)?);
        self.check_kv(layer, slots.len(), &k, &v)?;
        let (k, v) = (k.values("k")?, v.values("v")?);
        self.0.with_mut(py, |cache| Ok(cache.write(layer, &slots, &positions, k, v)?))
    }

    fn attend<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        q: &Bound<'py, PyAny>,
        mask: &SlotMask,
    ) -> Result<Bound<'py, PyArrayDyn<f32>>, Failure> {
        let q = Vectors::new("q", q)?;
        let KvShape { num_heads, head_dim, value_dim, .. } = self.0.shape(layer);
        let queries = q.shape().first().copied().unwrap_or(0);
        check_shape("q", q.shape(), [queries, num_heads, head_dim])?;
        let q = q.values("q")?;
        let out = zeros(py, &[queries, num_heads, value_dim])?;
        let mut writing = writing(&out)?;
        let to = slice_mut(&mut writing)?;
        self.0.with_mut(py, |cache| {
            let mask = mask.mask.read().map_err(|_| broken())?;
            Ok(cache.attend(layer, q, &mask, to)?)
        })?;
        drop(writing);
        Ok(out)
    }

    fn encode(&self, py: Python<'_>, layer: usize) -> Result<(), Failure> {
        self.0.with_mut(py, |cache| Ok(cache.encode(layer)?))
    }

    fn copy(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (from, to) = (indexes("source", source)?, indexes("target", target)?);
        self.0.with_mut(py, |cache| Ok(cache.copy(&from, &to)?))
    }

    fn shift(
        &self,
        py: Python<'_>,
        layer: usize,
        slots: &Bound<'_, PyAny>,
        positions: i32,
        rope: RopeOf,
    ) -> Result<(), Failure> {
        let (slots, rope) = (indexes("slots", slots)?, storage::rope(rope)?);
        self.0.with_mut(py, |cache| Ok(cache.shift(layer, &slots, positions, &rope)?))
    }

    fn forget(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let slots = indexes("slots", slots)?;
        self.0.with_mut(py, |cache| Ok(cache.forget(&slots)?))
    }

    fn clear(&self, py: Python<'_>) -> Result<(), Failure> {
        self.0.with_mut(py, |cache| {
            cache.clear();
            Ok(())
        })
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        slots: &Bound<'py, PyAny>,
    ) -> Result<(Halves<'py>, Halves<'py>), Failure> {
        let slots = indexes("slots", slots)?;
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.0.shape(layer);
        // Checks the numbers before memory is allocated.
        self.0.with(py, |cache| Ok(cache.read(layer, &[], &mut [], &mut [])?))?;
        let k = zeros::<f16>(py, &[slots.len(), num_kv_heads, head_dim])?;
        let v = zeros::<f16>(py, &[slots.len(), num_kv_heads, value_dim])?;
        let (mut k_writing, mut v_writing) = (writing(&k)?, writing(&v)?);
        let (k_rows, v_rows) = (slice_mut(&mut k_writing)?, slice_mut(&mut v_writing)?);
        self.0.with(py, |cache| Ok(cache.read(layer, &slots, k_rows, v_rows)?))?;
        drop((k_writing, v_writing));
        Ok((k, v))
    }

    fn restore(
        &self,
        py: Python<'_>,
        layer: usize,
        slots: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (slots, positions) = (indexes("slots", slots)?, indexes("positions", positions)?);
        let (k, v) = (Vectors::new("k", k)?, Vectors::new("v", v)?);
        self.check_kv(layer, slots.len(), &k, &v)?;
        let (Vectors::F16(k), Vectors::F16(v)) = (k, v) else {
            return Err(refused("k and v of another type are not valid: expected float16, as read() gives"));
        };
        let (k, v) = (slice("k", &k)?, slice("v", &v)?);
        self.0.with_mut(py, |cache| Ok(cache.restore(layer, &slots, &positions, k, v)?))
    }
}

#[pymethods]
impl SlotMask {
    fn __len__(&self) -> Result<usize, Failure> {
        Ok(self.mask.read().map_err(|_| broken())?.queries())
    }

    fn causal(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, queries: usize) -> Result<(), Failure> {
        let slots = indexes("slots", slots)?;
        py.detach(|| Ok(self.mask.write().map_err(|_| broken())?.causal(&slots, queries)?))
    }

    fn see(
        &self,
        py: Python<'_>,
        slots: &Bound<'_, PyAny>,
        biases: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        let slots = indexes("slots", slots)?;
        let Some(biases) = biases else {
            return py.detach(|| Ok(self.mask.write().map_err(|_| broken())?.see(slots)?));
        };
        let biases = Vectors::new("biases", biases)?;
        if biases.shape() != [slots.len()] {
            let (found, expected) = (biases.shape(), slots.len());
            return Err(refused(format!(
                "biases of the shape {found:?} are not valid: expected one for each of {expected} slots"
            )));
        }
        let mut wide = Vec::new();
        let biases = biases.values("biases")?.wide(0, slots.len(), &mut wide).to_vec();
        py.detach(|| Ok(self.mask.write().map_err(|_| broken())?.see_with(slots.into_iter().zip(biases))?))
    }

    fn clear(&self) -> Result<(), Failure> {
        self.mask.write().map_err(|_| broken())?.clear();
        Ok(())
    }
}
