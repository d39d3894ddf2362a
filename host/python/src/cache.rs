//! The KV cache of one sequence.

use crate::arrays::{Narrow, Vectors, leading, slice_mut, with_dtype, writing, zeros};
use crate::errors::{Failure, refused};
use crate::held::Held;
use crate::pool;
use crate::slots::indexes;
use crate::spec;
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rayon::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use tqkv::KvShape;
use tqkv::cache::{Budget, KvCache};
use tqkv::error::CacheError;

type Floats<'py> = Bound<'py, PyArrayDyn<f32>>;

/// A KV cache of one sequence.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Cache(Held<KvCache>);

/// Selects keys or values.
#[derive(Clone, Copy)]
enum KeysOrValues {
    Keys,
    Values,
}

impl Cache {
    fn of(cache: KvCache) -> Self {
        Self(Held::new(cache, KvCache::spec))
    }

    /// Number of tokens in an array `[tokens, heads, dim]`.
    fn tokens(what: &str, shape: &[usize], heads: usize, dim: usize) -> Result<usize, Failure> {
        match *shape {
            [tokens, found, width] if found == heads && width == dim => Ok(tokens),
            _ => Err(refused(format!(
                "{what} of the shape {shape:?} is not valid: expected [tokens, {heads}, {dim}]"
            ))),
        }
    }

    /// Attends with queries `[num_heads, head_dim]`, by a call of the cache.
    fn attend_with<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        q: &Bound<'py, PyAny>,
        attend: impl FnOnce(&KvCache, tqkv::cache::Floats<'_>, &mut [f32]) -> Result<(), CacheError> + Send,
    ) -> Result<Floats<'py>, Failure> {
        let q = Vectors::new("q", q)?;
        let KvShape { num_heads, head_dim, value_dim, .. } = self.0.shape(layer);
        if q.shape() != [num_heads, head_dim] {
            let found = q.shape();
            return Err(refused(format!(
                "q of the shape {found:?} is not valid: expected [{num_heads}, {head_dim}]"
            )));
        }
        let q = q.values("q")?;
        let out = zeros(py, &[num_heads, value_dim])?;
        let mut writing = writing(&out)?;
        let to = slice_mut(&mut writing)?;
        self.0.with(py, |cache| Ok(attend(cache, q.into(), to)?))?;
        drop(writing);
        Ok(out)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(py: Python<'_>, texts: Vec<String>, max_bytes: Option<usize>) -> Result<Self, Failure> {
        pool::start()?;
        let budget = max_bytes.map_or_else(Budget::unlimited, Budget::new);
        let spec = spec::read(&texts)?;
        Ok(Self::of(py.detach(|| KvCache::within(spec, &budget))?))
    }

    /// The cache of a snapshot, with its options.
    #[staticmethod]
    fn from_snapshot(py: Python<'_>, snapshot: &[u8], max_bytes: Option<usize>) -> Result<Self, Failure> {
        pool::start()?;
        let cache = py.detach(|| {
            let cache = KvCache::from_snapshot(&mut &*snapshot)?;
            let Some(max) = max_bytes else { return Ok(cache) };
            let mut within = KvCache::within(cache.spec().clone(), &Budget::new(max))?;
            within.restore(&mut &*snapshot)?;
            Ok::<_, CacheError>(within)
        })?;
        Ok(Self::of(cache))
    }

    /// The cache of a file, with the options of its snapshot.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, max_bytes: Option<usize>) -> Result<Self, Failure> {
        pool::start()?;
        let cache = py.detach(|| {
            let cache = KvCache::load(&path)?;
            let Some(max) = max_bytes else { return Ok(cache) };
            let mut within = KvCache::within(cache.spec().clone(), &Budget::new(max))?;
            within.restore_from(&path)?;
            Ok::<_, CacheError>(within)
        })?;
        Ok(Self::of(cache))
    }

    #[staticmethod]
    fn options() -> Vec<(&'static str, &'static str)> {
        spec::options()
    }

    fn spec(&self, py: Python<'_>) -> Result<String, Failure> {
        self.0.with(py, |cache| Ok(cache.spec().to_string()))
    }

    fn codecs(&self, py: Python<'_>) -> Result<Vec<String>, Failure> {
        self.0.with(py, |cache| Ok(spec::codecs(cache.spec())))
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize, Failure> {
        self.0.with(py, |cache| Ok(cache.len()))
    }

    fn append(
        &self,
        py: Python<'_>,
        layer: usize,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (k, v) = (Vectors::new("k", k)?, Vectors::new("v", v)?);
        self.check_kv(layer, &k, &v)?;
        let (k, v) = (k.values("k")?, v.values("v")?);
        self.0.with_mut(py, |cache| Ok(cache.append(layer, k, v)?))
    }

    fn wanted_queries(&self, py: Python<'_>, layer: usize) -> Result<usize, Failure> {
        self.0.with(py, |cache| Ok(cache.wanted_queries(layer)?))
    }

    fn append_with_queries(
        &self,
        py: Python<'_>,
        layer: usize,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (q, k, v) = (Vectors::new("q", q)?, Vectors::new("k", k)?, Vectors::new("v", v)?);
        let tokens = self.check_kv(layer, &k, &v)?;
        let KvShape { num_heads, head_dim, .. } = self.0.shape(layer);
        let shown = Self::tokens("q", q.shape(), num_heads, head_dim)?;
        if shown > tokens {
            return Err(refused(format!(
                "q of {shown} tokens is not valid: expected at most {tokens}, as many as k and v have"
            )));
        }
        let (q, k, v) = (q.values("q")?, k.values("k")?, v.values("v")?);
        self.0.with_mut(py, |cache| Ok(cache.append_with_queries(layer, q, k, v)?))
    }

    fn attend<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        q: &Bound<'py, PyAny>,
    ) -> Result<Floats<'py>, Failure> {
        self.attend_with(py, layer, q, |cache, q, to| cache.attend(layer, q, to))
    }

    fn attend_selected<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        q: &Bound<'py, PyAny>,
        tokens: Vec<Bound<'py, PyAny>>,
    ) -> Result<Floats<'py>, Failure> {
        let list = |tokens: &Bound<'_, PyAny>| -> Result<Vec<u32>, Failure> {
            let narrow = |token: usize| {
                u32::try_from(token).map_err(|_| {
                    refused(format!("tokens with {token} are not valid: expected numbers below 2^32"))
                })
            };
            indexes("tokens", tokens)?.into_iter().map(narrow).collect()
        };
        let lists = tokens.iter().map(list).collect::<Result<Vec<_>, _>>()?;
        let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
        self.attend_with(py, layer, q, |cache, q, to| cache.attend_selected(layer, q, &lists, to))
    }

    fn attend_prefill<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        q: &Bound<'py, PyAny>,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
    ) -> Result<Floats<'py>, Failure> {
        let (q, k, v) = (Vectors::new("q", q)?, Vectors::new("k", k)?, Vectors::new("v", v)?);
        let KvShape { num_heads, head_dim, value_dim, .. } = self.0.shape(layer);
        let tokens = self.check_kv(layer, &k, &v)?;
        if Self::tokens("q", q.shape(), num_heads, head_dim)? != tokens {
            return Err(refused(format!(
                "q of {} tokens is not valid: expected {tokens}, as many as k and v have",
                q.shape()[0]
            )));
        }
        let q = q.values("q")?;
        let (k, v) = (k.values("k")?, v.values("v")?);
        let out = zeros(py, &[tokens, num_heads, value_dim])?;
        let mut writing = writing(&out)?;
        let to = slice_mut(&mut writing)?;
        self.0.with_mut(py, |cache| Ok(cache.attend_prefill(layer, q, k, v, to)?))?;
        drop(writing);
        Ok(out)
    }

    fn scores<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        head: usize,
        q: &Bound<'py, PyAny>,
    ) -> Result<Floats<'py>, Failure> {
        let q = Vectors::new("q", q)?;
        leading("q", q.shape(), self.0.shape(layer).head_dim)?;
        let q = q.values("q")?;
        let scores = self.0.with(py, |cache| Ok(cache.scores(layer, head, q)?))?;
        Ok(PyArray1::from_vec(py, scores).to_dyn().clone())
    }

    fn keys<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        kv_head: Option<usize>,
        start: usize,
        stop: usize,
        dtype: &str,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        with_dtype!(dtype, read_as::<_>(self, py, KeysOrValues::Keys, layer, kv_head, start..stop))
    }

    fn values<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        kv_head: Option<usize>,
        start: usize,
        stop: usize,
        dtype: &str,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        with_dtype!(dtype, read_as::<_>(self, py, KeysOrValues::Values, layer, kv_head, start..stop))
    }

    fn truncate(&self, py: Python<'_>, len: usize) -> Result<(), Failure> {
        self.0.with_mut(py, |cache| Ok(cache.truncate(len)?))
    }

    fn fork(&self, py: Python<'_>) -> Result<Self, Failure> {
        self.0.with(py, |cache| Ok(Self::of(cache.fork()?)))
    }

    fn reset(&self, py: Python<'_>) -> Result<(), Failure> {
        self.0.with_mut(py, |cache| {
            cache.reset();
            Ok(())
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, Failure> {
        let stats = self.0.with(py, |cache| Ok(cache.stats()))?;
        let dict = PyDict::new(py);
        for (name, count) in [
            ("tokens", stats.tokens),
            ("sinks", stats.sinks),
            ("hot", stats.hot),
            ("waiting_keys", stats.waiting_keys),
            ("warm", stats.warm),
            ("cold", stats.cold),
            ("evicted", stats.evicted),
            ("centred_heads", stats.centred_heads),
            ("mapped_heads", stats.mapped_heads),
            ("allocated_bytes", stats.allocated_bytes),
            ("shared_bytes", stats.shared_bytes),
            ("spilled_bytes", stats.spilled_bytes),
        ] {
            dict.set_item(name, count)?;
        }
        dict.set_item("bytes_per_token", stats.bytes_per_token())?;
        Ok(dict)
    }

    fn head_stats<'py>(&self, py: Python<'py>) -> Result<Vec<Bound<'py, PyDict>>, Failure> {
        let all = self.0.with(py, |cache| Ok(cache.head_stats().collect::<Vec<_>>()))?;
        let dict = |head: &tqkv::cache::HeadStats| {
            let dict = PyDict::new(py);
            dict.set_item("layer", head.layer)?;
            dict.set_item("kv_head", head.kv_head)?;
            dict.set_item("allocated_bytes", head.allocated_bytes)?;
            dict.set_item("means", head.means)?;
            dict.set_item("is_mapped", head.is_mapped)?;
            dict.set_item("centred_energy", head.centred_energy)?;
            dict.set_item("key_error", head.key_error)?;
            dict.set_item("value_error", head.value_error)?;
            Ok(dict)
        };
        all.iter().map(dict).collect()
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        let bytes = self.0.with(py, |cache| {
            let mut bytes = Vec::new();
            cache.snapshot(&mut bytes)?;
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn restore(&self, py: Python<'_>, snapshot: &[u8]) -> Result<(), Failure> {
        self.0.with_mut(py, |cache| Ok(cache.restore(&mut &*snapshot)?))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<(), Failure> {
        self.0.with(py, |cache| Ok(cache.save(&path)?))
    }

    fn restore_from(&self, py: Python<'_>, path: PathBuf) -> Result<(), Failure> {
        self.0.with_mut(py, |cache| Ok(cache.restore_from(&path)?))
    }
}

impl Cache {
    /// Number of tokens in keys and values.
    fn check_kv(&self, layer: usize, k: &Vectors<'_>, v: &Vectors<'_>) -> Result<usize, Failure> {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.0.shape(layer);
        let keys = Self::tokens("k", k.shape(), num_kv_heads, head_dim)?;
        let values = Self::tokens("v", v.shape(), num_kv_heads, value_dim)?;
        if keys == values {
            Ok(keys)
        } else {
            Err(refused(format!("v of {values} tokens is not valid: expected {keys}, as many as k has")))
        }
    }
}

/// Decoded keys or values of a KV head of a layer, `[tokens, dim]`, or of all, `[num_kv_heads, tokens, dim]`.
fn read_as<'py, T: Narrow>(
    cache: &Cache,
    py: Python<'py>,
    side: KeysOrValues,
    layer: usize,
    kv_head: Option<usize>,
    tokens: Range<usize>,
) -> Result<Bound<'py, PyAny>, Failure> {
    let KvShape { num_kv_heads, head_dim, value_dim, .. } = cache.0.shape(layer);
    let dim = match side {
        KeysOrValues::Keys => head_dim,
        KeysOrValues::Values => value_dim,
    };
    // Checks the range before memory is allocated.
    let last = if tokens.is_empty() { tokens.clone() } else { tokens.end..tokens.end };
    let first = kv_head.unwrap_or(0);
    cache.0.with(py, |cache| Ok(cache.keys(layer, first, last)?))?;
    let shape = [num_kv_heads, tokens.len(), dim];
    let out = zeros::<T>(py, if kv_head.is_some() { &shape[1..] } else { &shape })?;
    let mut writing = writing(&out)?;
    let to = slice_mut(&mut writing)?;
    cache.0.with(py, |cache| {
        if tokens.is_empty() {
            return Ok(());
        }
        let heads = to.par_chunks_mut(tokens.len() * dim).enumerate();
        heads.try_for_each(|(head, to)| {
            let held = match side {
                KeysOrValues::Keys => cache.keys(layer, first + head, tokens.clone())?,
                KeysOrValues::Values => cache.values(layer, first + head, tokens.clone())?,
            };
            T::narrow(to, &mut Vec::new(), |wide| wide.copy_from_slice(&held));
            Ok(())
        })
    })?;
    drop(writing);
    Ok(out.into_any())
}
