//! The cache on an NVIDIA GPU (feature `cuda`). Inputs and outputs are tensors of other libraries, through
//! DLPack.
//!
//! A lock makes calls from any threads safe in any order. It is taken after the interpreter is released.

use crate::codec::options;
use crate::dlpack;
use crate::errors::{Failure, refused};
use crate::held::broken;
use crate::spec::pair;
use pyo3::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tqkv_gpu::{GpuError, GpuSpec, Raw, Rows, Side};

/// Keys and values of many sequences on a GPU.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct GpuCache {
    cache: Mutex<tqkv_gpu::GpuCache>,
    spec: GpuSpec,
    ordinal: usize,
    /// The stream that the cache works on.
    stream: AtomicUsize,
}

/// The dict that the constructor of the Python class passes. The names are the same there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct GpuCacheSpec {
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    kv: String,
    sinks: usize,
    hot: usize,
    num_sequences: usize,
    max_tokens: usize,
    pool_tokens: Option<usize>,
    seed: u64,
    scale_mode: String,
    effort: String,
    device: usize,
    stream: usize,
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        refused(error.to_string())
    }
}

impl GpuCache {
    /// Uses the cache with the interpreter released.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut tqkv_gpu::GpuCache) -> Result<R, GpuError> + Send,
    ) -> Result<R, Failure> {
        py.detach(|| Ok(work(&mut *self.cache.lock().map_err(|_| broken())?)?))
    }

    /// A tensor `[rows, heads, head_dim]` on the cache's device.
    fn rows(
        &self,
        what: &str,
        tensor: &Bound<'_, PyAny>,
        rows: Option<usize>,
        heads: usize,
    ) -> Result<Raw, Failure> {
        let (raw, shape) = dlpack::tensor(what, tensor, self.ordinal, self.stream.load(Ordering::Relaxed))?;
        let dim = self.spec.head_dim;
        match *shape {
            [found, h, d] if rows.is_none_or(|rows| rows == found) && h == heads && d == dim => Ok(raw),
            _ => {
                let rows = rows.map_or_else(|| "tokens".to_owned(), |rows| rows.to_string());
                Err(refused(format!(
                    "{what} of the shape {shape:?} is not valid: expected [{rows}, {heads}, {dim}]"
                )))
            }
        }
    }

    /// Keys and values of `tokens` tokens. `None` accepts any number of tokens.
    fn kv(
        &self,
        tokens: Option<usize>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(Raw, Raw), Failure> {
        let heads = self.spec.num_kv_heads;
        Ok((self.rows("k", k, tokens, heads)?, self.rows("v", v, tokens, heads)?))
    }

    /// Queries and output.
    fn queries(
        &self,
        tokens: Option<usize>,
        q: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> Result<(Raw, Raw), Failure> {
        let heads = self.spec.num_heads;
        Ok((self.rows("q", q, tokens, heads)?, self.rows("out", out, tokens, heads)?))
    }
}

#[pymethods]
impl GpuCache {
    #[new]
    fn new(py: Python<'_>, spec: GpuCacheSpec) -> Result<Self, Failure> {
        let (key, value) = pair(&spec.kv)?;
        let mut made = GpuSpec::new(spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim)
            .codecs(key, value)
            .options(options(spec.seed, &spec.scale_mode, &spec.effort)?)
            .exact(spec.sinks, spec.hot)
            .sequences(spec.num_sequences, spec.max_tokens);
        if let Some(tokens) = spec.pool_tokens {
            made = made.pool_tokens(tokens);
        }
        let (ordinal, stream) = (spec.device, spec.stream);
        let (device, cache) = py.detach(|| {
            let device = dlpack::device(ordinal, stream)?;
            let cache = tqkv_gpu::GpuCache::new(&device, made.clone())?;
            Ok::<_, GpuError>((device, cache))
        })?;
        dlpack::warn(py, &device)?;
        Ok(Self { cache: Mutex::new(cache), spec: made, ordinal, stream: stream.into() })
    }

    /// Goes on on another stream, which must exist as long as the cache.
    fn follow(&self, py: Python<'_>, stream: usize) -> Result<(), Failure> {
        self.with(py, |cache| dlpack::follow(cache, stream))?;
        self.stream.store(stream, Ordering::Relaxed);
        Ok(())
    }

    fn len(&self, py: Python<'_>, sequence: usize) -> Result<usize, Failure> {
        self.with(py, |cache| Ok(cache.len(sequence)))
    }

    fn append(
        &self,
        py: Python<'_>,
        layer: usize,
        sequences: Vec<usize>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (k, v) = self.kv(Some(sequences.len()), k, v)?;
        self.with(py, |cache| cache.append(layer, &sequences, Rows::Raw(k), Rows::Raw(v)))
    }

    fn attend(
        &self,
        py: Python<'_>,
        layer: usize,
        sequences: Vec<usize>,
        q: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (q, out) = self.queries(Some(sequences.len()), q, out)?;
        self.with(py, |cache| cache.attend_some(layer, &sequences, Rows::Raw(q), out))
    }

    fn begin_step(&self, py: Python<'_>, sequences: Vec<usize>) -> Result<(), Failure> {
        self.with(py, |cache| cache.begin_step(&sequences))
    }

    fn append_step(
        &self,
        py: Python<'_>,
        layer: usize,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (k, v) = self.kv(None, k, v)?;
        self.with(py, |cache| cache.append_step(layer, Rows::Raw(k), Rows::Raw(v)))
    }

    fn attend_step(
        &self,
        py: Python<'_>,
        layer: usize,
        q: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let (q, out) = self.queries(None, q, out)?;
        self.with(py, |cache| cache.attend_step(layer, Rows::Raw(q), out))
    }

    fn end_step(&self, py: Python<'_>) -> Result<(), Failure> {
        self.with(py, tqkv_gpu::GpuCache::end_step)
    }

    fn reserve(&self, py: Python<'_>, tokens: usize) -> Result<(), Failure> {
        self.with(py, |cache| cache.reserve_scratch(tokens))
    }

    fn fork(&self, py: Python<'_>, source: usize, to: usize, tokens: usize) -> Result<(), Failure> {
        self.with(py, |cache| cache.fork(source, to, tokens))
    }

    fn truncate(&self, py: Python<'_>, sequence: usize, tokens: usize) -> Result<(), Failure> {
        self.with(py, |cache| cache.truncate(sequence, tokens))
    }

    fn decode(
        &self,
        py: Python<'_>,
        layer: usize,
        sequence: usize,
        values: bool,
        out: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let out = self.rows("out", out, Some(self.len(py, sequence)?), self.spec.num_kv_heads)?;
        let side = if values { Side::Values } else { Side::Keys };
        self.with(py, |cache| cache.decode(layer, sequence, side, out))
    }
}
