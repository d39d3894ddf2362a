//! The cache of numbered slots, and the mask of a step.
//!
//! Attention encodes rows, so it holds the lock of the cache alone. A mask is only read by attention. Both
//! locks are taken after the interpreter is released.

use crate::arrays::{Vectors, slice, slice_mut, writing, zeros};
use crate::errors::{Failure, refused};
use crate::pool;
use crate::spec;
use half::f16;
use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use std::sync::RwLock;
use tqkv::KvShape;
use tqkv::slots::{Mask, SlotCache};

type Halves<'py> = Bound<'py, PyArrayDyn<f16>>;

/// Keys and values of many sequences in numbered slots.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Slots {
    cache: RwLock<SlotCache>,
    /// The shape of each layer.
    shapes: Box<[KvShape]>,
}

/// Which slots each query of a step sees.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct SlotMask {
    mask: RwLock<Mask>,
}

fn broken() -> Failure {
    refused("an earlier call on these slots failed inside the library: they cannot be used any more")
}

/// An argument with the numbers of slots, or with positions.
struct Indexes<'py>(PyReadonlyArrayDyn<'py, i64>);

impl<'py> Indexes<'py> {
    fn new(what: &str, array: &Bound<'py, PyAny>) -> Result<Self, Failure> {
        let array = array.cast::<PyArrayDyn<i64>>().ok();
        let array = array.and_then(|array| array.try_readonly().ok()).filter(|array| array.ndim() == 1);
        array.map(Self).ok_or_else(|| {
            refused(format!("{what} of this type is not valid: expected a list of numbers from 0 on"))
        })
    }

    fn list(&self, what: &str) -> Result<Vec<usize>, Failure> {
        let number = |&found: &i64| {
            usize::try_from(found)
                .map_err(|_| refused(format!("{what} with {found} is not valid: expected numbers from 0 on")))
        };
        slice(what, &self.0)?.iter().map(number).collect()
    }
}

/// The numbers of a list.
fn indexes(what: &str, array: &Bound<'_, PyAny>) -> Result<Vec<usize>, Failure> {
    Indexes::new(what, array)?.list(what)
}

impl Slots {
    /// The shape of a layer. A layer that is not there has that of the first; the cache refuses it.
    fn shape(&self, layer: usize) -> KvShape {
        self.shapes.get(layer).or(self.shapes.first()).copied().unwrap_or(KvShape::new(1, 1, 1, 1))
    }

    /// Reads the cache with the interpreter released.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&SlotCache) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        pool::start()?;
        py.detach(|| work(&*self.cache.read().map_err(|_| broken())?))
    }

    /// Changes the cache with the interpreter released.
    fn with_mut<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut SlotCache) -> Result<R, Failure> + Send,
    ) -> Result<R, Failure> {
        pool::start()?;
        py.detach(|| work(&mut *self.cache.write().map_err(|_| broken())?))
    }

    /// Refuses keys and values of another shape than that of `tokens` tokens of the layer.
    fn check_kv(&self, layer: usize, tokens: usize, k: &Vectors<'_>, v: &Vectors<'_>) -> Result<(), Failure> {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.shape(layer);
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
        let spec = cache.spec();
        let shapes = (0..spec.shape.num_layers).map(|layer| spec.shape_at(layer)).collect();
        Ok(Self { shapes, cache: RwLock::new(cache) })
    }

    fn spec(&self, py: Python<'_>) -> Result<String, Failure> {
        self.with(py, |cache| Ok(cache.spec().to_string()))
    }

    fn slots(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.with(py, |cache| Ok(cache.slots()))
    }

    fn streams(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.with(py, |cache| Ok(cache.streams()))
    }

    fn allocated_bytes(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.with(py, |cache| Ok(cache.allocated_bytes()))
    }

    fn mask(&self, py: Python<'_>, stream: usize) -> Result<SlotMask, Failure> {
        self.with(py, |cache| {
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
        self.with_mut(py, |cache| Ok(cache.write(layer, &slots, &positions, k, v)?))
    }

    fn attend<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        q: &Bound<'py, PyAny>,
        mask: &SlotMask,
    ) -> Result<Bound<'py, PyArrayDyn<f32>>, Failure> {
        let q = Vectors::new("q", q)?;
        let KvShape { num_heads, head_dim, value_dim, .. } = self.shape(layer);
        let queries = q.shape().first().copied().unwrap_or(0);
        check_shape("q", q.shape(), [queries, num_heads, head_dim])?;
        let q = q.values("q")?;
        let out = zeros(py, &[queries, num_heads, value_dim])?;
        let mut writing = writing(&out)?;
        let to = slice_mut(&mut writing)?;
        self.with_mut(py, |cache| {
            let mask = mask.mask.read().map_err(|_| broken())?;
            Ok(cache.attend(layer, q, &mask, to)?)
        })?;
        drop(writing);
        Ok(out)
    }

    fn encode(&self, py: Python<'_>, layer: usize) -> Result<(), Failure> {
        self.with_mut(py, |cache| Ok(cache.encode(layer)?))
    }

    fn copy(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (from, to) = (indexes("source", source)?, indexes("target", target)?);
        self.with_mut(py, |cache| Ok(cache.copy(&from, &to)?))
    }

    fn forget(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let slots = indexes("slots", slots)?;
        self.with_mut(py, |cache| Ok(cache.forget(&slots)?))
    }

    fn clear(&self, py: Python<'_>) -> Result<(), Failure> {
        self.with_mut(py, |cache| {
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
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.shape(layer);
        // Checks the numbers before memory is allocated.
        self.with(py, |cache| Ok(cache.read(layer, &[], &mut [], &mut [])?))?;
        let k = zeros::<f16>(py, &[slots.len(), num_kv_heads, head_dim])?;
        let v = zeros::<f16>(py, &[slots.len(), num_kv_heads, value_dim])?;
        let (mut k_writing, mut v_writing) = (writing(&k)?, writing(&v)?);
        let (k_rows, v_rows) = (slice_mut(&mut k_writing)?, slice_mut(&mut v_writing)?);
        self.with(py, |cache| Ok(cache.read(layer, &slots, k_rows, v_rows)?))?;
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
        let (Vectors::F16(k), Vectors::F16(v)) = (Vectors::new("k", k)?, Vectors::new("v", v)?) else {
            return Err(refused("k and v of another type are not valid: expected float16, as read() gives"));
        };
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.shape(layer);
        check_shape("k", k.shape(), [slots.len(), num_kv_heads, head_dim])?;
        check_shape("v", v.shape(), [slots.len(), num_kv_heads, value_dim])?;
        let (k, v) = (slice("k", &k)?, slice("v", &v)?);
        self.with_mut(py, |cache| Ok(cache.restore(layer, &slots, &positions, k, v)?))
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
