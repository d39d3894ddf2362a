//! Keys and values in the blocks of an engine in main memory. The package's module `tqkv.paged` calls it with arrays over the
//! memory of PyTorch's tensors.

use crate::arrays::{Vectors, reading, slice, slice_mut, writing};
use crate::codec::options;
use crate::errors::{Failure, refused};
use crate::pool;
use crate::spec::pair;
use numpy::{PyArrayDyn, PyReadonlyArrayDyn};
use pyo3::prelude::*;
use tqkv::paged::{ExactTokens, Layout, Line, Paged, Pages, Rule, Side, Step};

/// The work on blocks of a layout.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Blocks(Paged);

/// The dict that the constructor of the Python class passes. The names are the same there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Spec {
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) kv: String,
    pub(crate) seed: u64,
    pub(crate) scale_mode: String,
    pub(crate) effort: String,
}

type Bytes<'py> = Bound<'py, PyArrayDyn<u8>>;
type Numbers<'py> = Bound<'py, PyArrayDyn<i32>>;

/// Blocks and the bytes from one to the next.
type Pool<'py> = (Bytes<'py>, usize);

impl Blocks {
    fn pages<M: AsRef<[Line]>>(&self, memory: M, stride: usize) -> Result<Pages<M>, Failure> {
        Ok(Pages::together(&self.0, memory, stride / size_of::<Line>())?)
    }
}

/// Keys, values and places of exact tokens, and the number of places that may hold one.
type Exact<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyArrayDyn<i64>>, usize);

/// The memory as lines.
fn misaligned<E>(_: E) -> Failure {
    refused(
        "pages that are no multiple of 64 bytes, or do not begin at one, are not valid: expected those of torch.zeros",
    )
}

/// The numbers of the tables of a step.
struct Tables<'py>([PyReadonlyArrayDyn<'py, i32>; 3]);

impl<'py> Tables<'py> {
    fn new([table, lengths, starts]: [&Numbers<'py>; 3]) -> Result<Self, Failure> {
        Ok(Self([reading("table", table)?, reading("lengths", lengths)?, reading("starts", starts)?]))
    }

    fn step(&self) -> Result<Step<'_>, Failure> {
        let [table, lengths, starts] = &self.0;
        Ok(Step {
            table: slice("table", table)?,
            lengths: slice("lengths", lengths)?,
            starts: slice("starts", starts)?,
        })
    }
}

#[pymethods]
impl Blocks {
    #[new]
    fn new(py: Python<'_>, spec: Spec, block_tokens: usize) -> Result<Self, Failure> {
        pool::start()?;
        let (key, value) = pair(&spec.kv)?;
        let layout = Layout::new(spec.num_heads, spec.num_kv_heads, spec.head_dim)
            .codecs(key, value)
            .options(options(spec.seed, &spec.scale_mode, &spec.effort)?)
            .block_tokens(block_tokens);
        Ok(Self(py.detach(|| Paged::new(layout))?))
    }

    #[getter]
    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    /// Encodes tokens to places. Returns the number of vectors that became zeros.
    fn store(
        &self,
        py: Python<'_>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        places: &Bound<'_, PyArrayDyn<i64>>,
        pool: Pool<'_>,
    ) -> Result<usize, Failure> {
        let (k, v, places) = (Vectors::new("k", k)?, Vectors::new("v", v)?, reading("places", places)?);
        let (k, v, places) = (k.values("k")?, v.values("v")?, slice("places", &places)?);
        let mut memory = writing(&pool.0)?;
        let lines: &mut [Line] = bytemuck::try_cast_slice_mut(slice_mut(&mut memory)?).map_err(misaligned)?;
        let mut pages = self.pages(lines, pool.1)?;
        Ok(py.detach(|| self.0.store(k, v, places, &mut pages))?)
    }

    /// Attends with the queries of each row, and to exact tokens and learned sinks if there are any; writes results and
    /// logarithms of sums. `logits` are their scale and their soft cap.
    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn attend(
        &self,
        py: Python<'_>,
        q: &Bound<'_, PyAny>,
        pool: Pool<'_>,
        table: &Numbers<'_>,
        lengths: &Numbers<'_>,
        starts: &Numbers<'_>,
        exact: Option<Exact<'_>>,
        sinks: Option<Bound<'_, PyArrayDyn<f32>>>,
        logits: (Option<f32>, Option<f32>),
        out: &Bound<'_, PyArrayDyn<f32>>,
        lse: &Bound<'_, PyArrayDyn<f32>>,
    ) -> Result<(), Failure> {
        let (q, tables, memory) =
            (Vectors::new("q", q)?, Tables::new([table, lengths, starts])?, reading("pages", &pool.0)?);
        let lines: &[Line] = bytemuck::try_cast_slice(slice("pages", &memory)?).map_err(misaligned)?;
        let (q, step, pages) = (q.values("q")?, tables.step()?, self.pages(lines, pool.1)?);
        let rows = exact.as_ref().map(|(keys, values, places, _)| {
            let (keys, values) = (Vectors::new("exact keys", keys)?, Vectors::new("exact values", values)?);
            Ok::<_, Failure>((keys, values, reading("exact places", places)?))
        });
        let rows = rows.transpose()?;
        let of_rows = rows.as_ref().zip(exact.as_ref()).map(|((keys, values, places), (.., held))| {
            let (keys, values) = (keys.values("exact keys")?.into(), values.values("exact values")?.into());
            Ok::<_, Failure>(ExactTokens {
                keys,
                values,
                places: slice("exact places", places)?,
                held: *held,
            })
        });
        let of_rows = of_rows.transpose()?;
        let sinks = sinks.as_ref().map(|sinks| reading("sinks", sinks)).transpose()?;
        let sinks = sinks.as_ref().map_or(Ok(&[][..]), |sinks| slice("sinks", sinks))?;
        let (mut out, mut lse) = (writing(out)?, writing(lse)?);
        let (out, lse) = (slice_mut(&mut out)?, slice_mut(&mut lse)?);
        let (scale, soft_cap) = logits;
        let rule = Rule { exact: of_rows, sinks, scale, soft_cap, ..Rule::default() };
        Ok(py.detach(|| self.0.attend(q, &pages, &step, &rule, out, Some(lse)))?)
    }

    /// Decodes the first tokens of each sequence to rows from `firsts` on.
    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn gather(
        &self,
        py: Python<'_>,
        values: bool,
        pool: Pool<'_>,
        table: &Numbers<'_>,
        lengths: &Numbers<'_>,
        firsts: &Numbers<'_>,
        out: &Bound<'_, PyArrayDyn<f32>>,
    ) -> Result<(), Failure> {
        let side = if values { Side::Values } else { Side::Keys };
        let (tables, memory) = (Tables::new([table, lengths, firsts])?, reading("pages", &pool.0)?);
        let lines: &[Line] = bytemuck::try_cast_slice(slice("pages", &memory)?).map_err(misaligned)?;
        let (Step { table, lengths, starts: firsts }, pages) = (tables.step()?, self.pages(lines, pool.1)?);
        let step = Step { table, lengths, starts: &[] };
        let mut out = writing(out)?;
        let out = slice_mut(&mut out)?;
        Ok(py.detach(|| self.0.gather(side, &pages, &step, firsts, out))?)
    }
}
