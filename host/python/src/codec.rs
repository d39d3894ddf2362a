//! A codec of one head dim, over arrays of any leading shape.

use crate::arrays::{
    self, Narrow, Values, Vectors, leading, slice, slice_mut, target, with_dtype, writing, zeros,
};
use crate::batch;
use crate::errors::{Failure, refused, refused_in};
use crate::pool;
use numpy::{PyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tqkv::Level;
use tqkv::error::CacheError;
use tqkv_core::{AnyCodec, CodecId, Effort, Options, ScaleMode};

/// Encodes, decodes and scores blocks. Immutable.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Codec {
    codec: AnyCodec,
    level: Level,
}

impl Codec {
    pub(crate) fn of(codec: AnyCodec) -> Result<Self, Failure> {
        Ok(Self { codec, level: level()? })
    }

    pub(crate) fn parts(&self) -> (Level, &AnyCodec) {
        (self.level, &self.codec)
    }
}

/// The machine's instruction set, or the one that `TQKV_LEVEL` names.
fn level() -> Result<Level, Failure> {
    Ok(Level::detect().map_err(CacheError::Level)?)
}

/// The codec with this name.
pub(crate) fn id(name: &str) -> Result<CodecId, Failure> {
    CodecId::from_name(name).ok_or_else(|| {
        refused(format!("codec '{name}' is not valid: expected {}", Codec::names().join(", ")))
    })
}

/// The options for a seed, a scale mode and an effort.
pub(crate) fn options(seed: u64, scale_mode: &str, effort: &str) -> Result<Options, Failure> {
    let scales = || ScaleMode::ALL.map(ScaleMode::name).join(", ");
    let efforts = || Effort::ALL.map(Effort::name).join(", ");
    let scale_mode = ScaleMode::from_name(scale_mode)
        .ok_or_else(|| refused(format!("scale_mode '{scale_mode}' is not valid: expected {}", scales())))?;
    let effort = Effort::from_name(effort)
        .ok_or_else(|| refused(format!("effort '{effort}' is not valid: expected {}", efforts())))?;
    Ok(Options::DEFAULT.seed(seed).scale_mode(scale_mode).effort(effort))
}

#[pymethods]
impl Codec {
    #[new]
    fn new(name: &str, dim: usize, seed: u64, scale_mode: &str, effort: &str) -> Result<Self, Failure> {
        let options = options(seed, scale_mode, effort)?;
        let codec = AnyCodec::new(id(name)?, dim, options);
        Self::of(codec.map_err(|error| refused_in(&format!("codec {name} at dim {dim}"), error))?)
    }

    #[staticmethod]
    fn names() -> Vec<&'static str> {
        CodecId::ALL.iter().map(|id| id.name()).collect()
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.codec.id().name()
    }

    #[getter]
    fn dim(&self) -> usize {
        self.codec.dim()
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.codec.options().seed
    }

    #[getter]
    fn scale_mode(&self) -> &'static str {
        self.codec.options().scale_mode.name()
    }

    #[getter]
    fn effort(&self) -> &'static str {
        self.codec.options().effort.name()
    }

    #[getter]
    fn block_bytes(&self) -> usize {
        self.codec.block_bytes()
    }

    fn encode<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
        pool::start()?;
        let vectors = Vectors::new("x", x)?;
        let mut shape = leading("x", vectors.shape(), self.codec.dim())?.to_vec();
        shape.push(self.codec.block_bytes());
        let blocks = target::<u8>(py, out, &shape)?;
        let mut writing = writing(&blocks)?;
        let (values, to) = (vectors.values("x")?, slice_mut(&mut writing)?);
        py.detach(|| batch::encode(self.parts(), values, &[], to))
            .map_err(|failed| refused_in(&format!("vector {} of x", failed.index), failed.error))?;
        drop(writing);
        Ok(blocks)
    }

    fn decode<'py>(
        &self,
        py: Python<'py>,
        blocks: &Bound<'py, PyAny>,
        dtype: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        with_dtype!(dtype, decode_as::<_>(self, py, blocks, out))
    }

    fn scores<'py>(
        &self,
        py: Python<'py>,
        q: &Bound<'py, PyAny>,
        blocks: &Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyArrayDyn<f32>>, Failure> {
        pool::start()?;
        let vectors = Vectors::new("q", q)?;
        let q = queries("q", vectors.values("q")?)?;
        let blocks = arrays::bytes("blocks", blocks)?;
        let mut shape = leading("q", vectors.shape(), self.codec.dim())?.to_vec();
        shape.push(tokens("blocks", blocks.shape(), &self.codec)?);
        let scores = zeros::<f32>(py, &shape)?;
        let mut writing = writing(&scores)?;
        let (from, to) = (slice("blocks", &blocks)?, slice_mut(&mut writing)?);
        py.detach(|| batch::scores(self.parts(), &q, from, to));
        drop(writing);
        Ok(scores)
    }

    fn attend<'py>(
        &self,
        py: Python<'py>,
        q: &Bound<'py, PyAny>,
        k_blocks: &Bound<'py, PyAny>,
        v_blocks: &Bound<'py, PyAny>,
        value_codec: &Self,
        scale: f32,
    ) -> Result<Bound<'py, PyArrayDyn<f32>>, Failure> {
        pool::start()?;
        let vectors = Vectors::new("q", q)?;
        let q = queries("q", vectors.values("q")?)?;
        let k = arrays::bytes("k_blocks", k_blocks)?;
        let v = arrays::bytes("v_blocks", v_blocks)?;
        let mut shape = leading("q", vectors.shape(), self.codec.dim())?.to_vec();
        let keys = tokens("k_blocks", k.shape(), &self.codec)?;
        let values = tokens("v_blocks", v.shape(), &value_codec.codec)?;
        if keys != values || keys == 0 {
            return Err(refused(format!(
                "batch of {keys} keys and {values} values is not valid: expected as many of each, 1 or more"
            )));
        }
        if !scale.is_finite() {
            return Err(refused(format!("scale {scale} is not valid: expected a finite number")));
        }
        shape.push(value_codec.codec.dim());
        let results = zeros::<f32>(py, &shape)?;
        let mut writing = writing(&results)?;
        let blocks = [slice("k_blocks", &k)?, slice("v_blocks", &v)?];
        let to = slice_mut(&mut writing)?;
        let codecs = [&self.codec, &value_codec.codec];
        if !py.detach(|| batch::attend(self.level, codecs, scale, &q, blocks, to)) {
            return Err(refused(
                "a block with a scale of NaN or infinity is not valid: expected finite scales",
            ));
        }
        drop(writing);
        Ok(results)
    }
}

fn decode_as<'py, T: Narrow>(
    codec: &Codec,
    py: Python<'py>,
    blocks: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>, Failure> {
    pool::start()?;
    let blocks = arrays::bytes("blocks", blocks)?;
    let mut shape = leading("blocks", blocks.shape(), codec.codec.block_bytes())?.to_vec();
    shape.push(codec.codec.dim());
    let vectors = target::<T>(py, out, &shape)?;
    let mut writing = writing(&vectors)?;
    let (from, to) = (slice("blocks", &blocks)?, slice_mut(&mut writing)?);
    py.detach(|| batch::decode(codec.parts(), from, &[], to))
        .map_err(|failed| refused_in(&format!("block {}", failed.index), failed.error))?;
    drop(writing);
    Ok(vectors.into_any())
}

/// Queries as f32. They are few, so they are copied.
pub(crate) fn queries(what: &str, values: Values<'_>) -> Result<Vec<f32>, Failure> {
    let q = values.wide(0, values.len(), &mut Vec::new()).to_vec();
    if q.iter().all(|x| x.is_finite()) {
        Ok(q)
    } else {
        Err(refused(format!("{what} with NaN or infinity is not valid: expected finite values")))
    }
}

/// Number of blocks in an array `[tokens, block_bytes]`.
fn tokens(what: &str, shape: &[usize], codec: &AnyCodec) -> Result<usize, Failure> {
    match *shape {
        [tokens, bytes] if bytes == codec.block_bytes() => Ok(tokens),
        _ => {
            let bytes = codec.block_bytes();
            Err(refused(format!("{what} of the shape {shape:?} is not valid: expected [tokens, {bytes}]")))
        }
    }
}
