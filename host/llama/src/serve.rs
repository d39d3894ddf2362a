//! The operations on a cache: checks, and the functions that run them.
//!
//! Each `can_*` checks an operation for the function beside it, and must refuse everything that this function
//! cannot do. The CPU runs a refused operation on a copy of the cache in f16.

#![allow(unsafe_code, reason = "operands are tensors of the host's")]

use crate::buffer::{self, HALF};
use crate::rotate;
use crate::settings::options;
use crate::tensor::View;
use crate::threads::Threads;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::sync::Once;
use tqkv::unstable::slots::{Asked, Format, Rule, Side, Store, Track, attend as attend_head};

/// Keys or values of an operation: views `[dim, slots, heads, streams]` of a tensor of the cache.
#[derive(Clone, Copy, Debug)]
struct Heads {
    side: Side,
    width: usize,
    dim: usize,
    slots: usize,
    heads: usize,
    streams: usize,
    first_stream: usize,
}

impl Heads {
    /// None where the view has another shape or other strides.
    ///
    /// # Safety
    /// The buffer of the tensor is valid.
    unsafe fn new(view: &View<'_>) -> Option<Self> {
        // SAFETY: the caller keeps this function's contract.
        if !unsafe { buffer::is_cached(view) } {
            return None;
        }
        let root = view.root();
        let [width, all_slots, ..] = root.shape();
        let [dim, slots, heads, streams] = view.shape();
        let stream_bytes = HALF * width * all_slots;
        let steps = [HALF, HALF * width, HALF * dim, stream_bytes];
        let counted = view.shape().into_iter().zip(view.get().nb.into_iter().zip(steps));
        let in_order = counted.into_iter().all(|(n, (step, wanted))| n == 1 || step == wanted);
        let whole = view.get().view_offs.is_multiple_of(stream_bytes.max(1)) && slots <= all_slots;
        if !in_order || !whole || dim * heads != width || view.strides::<f16>().is_none() {
            return None;
        }
        let first_stream = view.get().view_offs / stream_bytes;
        Some(Self { side: buffer::side(&root)?, width, dim, slots, heads, streams, first_stream })
    }
}

/// True if rows may be written to a cache.
///
/// # Safety
/// `op` is a tensor of the host; its sources and buffers are valid.
pub(crate) unsafe fn can_set_rows(op: &View<'_>) -> bool {
    // SAFETY: the caller keeps this function's contract.
    let is_cached = unsafe { buffer::is_cached(op) };
    let (Some(rows), Some(indices)) = (op.source(0), op.source(1)) else { return false };
    let numbers = rows.strides::<f32>().is_some() || rows.strides::<f16>().is_some();
    let places = indices.strides::<i64>().is_some() || indices.strides::<i32>().is_some();
    let [width, _, two, three] = op.shape();
    let flat = two == 1 && three == 1 && op.strides::<f16>().is_some();
    if !is_cached || !numbers || !places || !flat {
        return false;
    }
    if width == 1 && op.root().shape()[0] > 1 {
        static SAID: Once = Once::new();
        // SAFETY: the caller keeps this function's contract.
        let is_plain = unsafe { buffer::make_plain(op) };
        SAID.call_once(|| {
            eprintln!(
                "tqkv: without flash attention nothing is encoded and steps are slow: use -fa on (or auto)"
            );
        });
        return is_plain;
    }
    // When the host computes a part of its graph, the operands from other parts are copies without sources.
    // SAFETY: the caller keeps this function's contract.
    let cached = unsafe { buffer::cached(op) };
    if let (Some(turn), Some((cached, _))) = (rotate::turn_of(&rows), cached) {
        cached.store().set_turn(turn);
    }
    width == op.root().shape()[0]
}

/// Writes rows to a cache.
///
/// # Safety
/// Same as [`can_set_rows`]; the sources also lie in memory.
pub(crate) unsafe fn set_rows(op: &View<'_>) -> Option<()> {
    let (rows, indices) = (op.source(0)?, op.source(1)?);
    // SAFETY: the caller keeps this function's contract.
    let ((cached, at), indices) = unsafe { (buffer::cached(op)?, read_indices(&indices)?) };
    if indices.len() < rows.shape()[1] {
        return None;
    }
    if cached.is_plain() {
        // SAFETY: the values of a plain tensor lie in the buffer; nobody else uses them during the operation.
        let (to, step) = (unsafe { op.elements_mut::<f16>() }?, op.strides::<f16>()?[1]);
        // SAFETY: the caller keeps this function's contract.
        return unsafe {
            each_row(&rows, |i, row| {
                if let Some(to) = indices.get(i).and_then(|&row| to.get_mut(row * step)) {
                    *to = row.first().copied().unwrap_or(f16::ZERO);
                }
            })
        };
    }
    let mut store = cached.store();
    let first = at / (HALF * store.width());
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        each_row(&rows, |i, row| {
            if let Some(index) = indices.get(i) {
                store.write(first + index, row);
            }
        })
    }
}

/// Calls `visit` with the number and the values of each row, as f16.
///
/// # Safety
/// The tensor lies in memory.
unsafe fn each_row(rows: &View<'_>, mut visit: impl FnMut(usize, &[f16])) -> Option<()> {
    let [width, count, ..] = rows.shape();
    // SAFETY: the caller keeps this function's contract; `elements` checks the type.
    let (wide, narrow) = unsafe { (rows.elements::<f32>(), rows.elements::<f16>()) };
    let mut row = vec![f16::ZERO; width];
    for i in 0..count {
        match (wide, narrow) {
            (Some(wide), _) => {
                let step = rows.strides::<f32>()?[1];
                row.convert_from_f32_slice(wide.get(i * step..i * step + width)?);
            }
            (_, Some(narrow)) => {
                let step = rows.strides::<f16>()?[1];
                row.copy_from_slice(narrow.get(i * step..i * step + width)?);
            }
            _ => return None,
        }
        visit(i, &row);
    }
    Some(())
}

/// Row numbers of either type.
///
/// # Safety
/// The tensor lies in memory.
unsafe fn read_indices(indices: &View<'_>) -> Option<Vec<usize>> {
    let count = indices.shape()[0];
    // SAFETY: the caller keeps this function's contract; `elements` checks the type.
    let (long, short) = unsafe { (indices.elements::<i64>(), indices.elements::<i32>()) };
    match (long, short) {
        (Some(long), _) => long.get(..count)?.iter().map(|&i| usize::try_from(i).ok()).collect(),
        (_, Some(short)) => short.get(..count)?.iter().map(|&i| usize::try_from(i).ok()).collect(),
        _ => None,
    }
}

/// Operands of attention.
struct Attending<'a> {
    queries: View<'a>,
    keys: (View<'a>, Heads),
    values: (View<'a>, Heads),
    mask: Option<View<'a>>,
    sinks: Option<View<'a>>,
    scale: f32,
    max_bias: f32,
    soft_cap: f32,
}

impl<'a> Attending<'a> {
    /// None where the operation is not served.
    ///
    /// # Safety
    /// Same as [`can_attend`].
    unsafe fn new(op: &View<'a>) -> Option<Self> {
        let (queries, key, value) = (op.source(0)?, op.source(1)?, op.source(2)?);
        // SAFETY: the caller keeps this function's contract.
        let (keys, values) = unsafe { (Heads::new(&key)?, Heads::new(&value)?) };
        let (mask, sinks) = (op.source(3), op.source(4));
        let [dim, tokens, heads, streams] = queries.shape();
        let sides = keys.side == Side::Keys && values.side == Side::Values;
        let alike =
            keys.slots == values.slots && keys.heads == values.heads && keys.streams == values.streams;
        let asked = dim == keys.dim && heads.is_multiple_of(keys.heads.max(1)) && streams == keys.streams;
        let numbers = queries.strides::<f32>().is_some()
            && mask.is_none_or(|mask| {
                let [slots, queries, ..] = mask.shape();
                mask.strides::<f16>().is_some() && slots >= keys.slots && queries >= tokens
            })
            && sinks.is_none_or(|sinks| sinks.strides::<f32>().is_some() && sinks.shape()[0] == heads)
            && op.strides::<f32>().is_some();
        let (scale, max_bias, soft_cap) = (op.float(0), op.float(1), op.float(2));
        (sides && alike && asked && numbers).then_some(Self {
            queries,
            keys: (key, keys),
            values: (value, values),
            mask,
            sinks,
            scale,
            max_bias,
            soft_cap,
        })
    }

    /// Factor of the mask for a query head (ALiBi).
    fn slope(&self, head: usize) -> f32 {
        if self.max_bias <= 0.0 {
            return 1.0;
        }
        let heads = self.queries.shape()[2];
        let power = 1 << heads.ilog2();
        let base = |bias: f32| (-bias / power as f32).exp2();
        if head < power {
            base(self.max_bias).powi(head as i32 + 1)
        } else {
            base(self.max_bias / 2.0).powi(2 * (head - power) as i32 + 1)
        }
    }
}

/// True if attention over a cache is served. The rows of the cache are then divided into heads.
///
/// # Safety
/// `op` is a tensor of the host; its sources and buffers are valid.
pub(crate) unsafe fn can_attend(op: &View<'_>) -> bool {
    // SAFETY: the caller keeps this function's contract.
    let (Some(asked), Some(options)) = (unsafe { Attending::new(op) }, options()) else { return false };
    buffer::end_of_buffers();
    [(&asked.keys, options.spec.key), (&asked.values, options.spec.value)].into_iter().all(
        |((view, heads), id)| {
            // SAFETY: the caller keeps this function's contract.
            match unsafe { buffer::cached(view) } {
                Some((cached, _)) => cached.divide(heads.side, heads.dim),
                // Before the host allocates the buffer there is no row to divide.
                None => Store::format_of(heads.side, id, &options.spec, heads.width, heads.dim).is_some(),
            }
        },
    )
}

/// Most queries of a task, so that its working memory stays in the second-level cache.
const MOST_QUERIES: usize = 192;

/// Most tokens of an operation whose queries teach maps.
const SHOWN: usize = 64;

/// Queries of one KV head, which are attended to together.
#[derive(Clone, Copy, Debug)]
struct Task {
    stream: usize,
    head: usize,
    query_heads: (usize, usize),
    tokens: (usize, usize),
}

impl Task {
    /// The tasks of an operation, each with at most [`MOST_QUERIES`] queries.
    fn all(streams: usize, heads: usize, query_heads: usize, tokens: usize) -> Vec<Self> {
        let group = query_heads / heads.max(1);
        let together = (MOST_QUERIES / group.max(1)).max(1);
        let mut all = Vec::new();
        for stream in 0..streams {
            for head in 0..heads {
                for first in (0..group).step_by(MOST_QUERIES) {
                    let last = group.min(first + MOST_QUERIES);
                    for token in (0..tokens).step_by(together) {
                        let query_heads = (head * group + first, head * group + last);
                        let tokens = (token, tokens.min(token + together));
                        all.push(Self { stream, head, query_heads, tokens });
                    }
                }
            }
        }
        all
    }

    /// The queries in order, as pairs of token and query head.
    fn queries(&self) -> impl Iterator<Item = (usize, usize)> {
        let (first, last) = self.query_heads;
        (self.tokens.0..self.tokens.1).flat_map(move |token| (first..last).map(move |head| (token, head)))
    }
}

/// The operands of attention as slices, most with strides in elements.
struct Operands<'a> {
    rule: Rule,
    /// First stream of the keys, and of the values.
    first_streams: [usize; 2],
    queries: (&'a [f32], [usize; 4]),
    mask: Option<(&'a [f16], [usize; 4], [usize; 4])>,
    sinks: &'a [f32],
    slopes: Vec<f32>,
}

impl<'a> Operands<'a> {
    /// The mask of a query; empty if the operation has no mask. None if the mask lacks that query: without
    /// a mask it would see the slots of other sequences.
    fn mask(&self, stream: usize, token: usize, head: usize) -> Option<&'a [f16]> {
        let Some((mask, steps, shape)) = self.mask else { return Some(&[]) };
        let at = token * steps[1] + head % shape[2] * steps[2] + stream % shape[3] * steps[3];
        mask.get(at..at + self.rule.slots)
    }

    /// The queries of a task (`[n, dim]`), and their settings.
    fn gather(&self, task: &Task, dim: usize) -> Option<(Vec<f32>, Vec<Asked<'a>>)> {
        let (queries, steps) = self.queries;
        let (mut given, mut asked) = (Vec::new(), Vec::new());
        for (token, head) in task.queries() {
            let at = token * steps[1] + head * steps[2] + task.stream * steps[3];
            given.extend_from_slice(queries.get(at..at + dim)?);
            asked.push(Asked {
                mask: self.mask(task.stream, token, head)?,
                slope: self.slopes[head],
                sink: self.sinks.get(head).copied(),
            });
        }
        Some((given, asked))
    }

    /// Attends with the queries of one task; `out` is `[n, value_dim]`.
    fn attend(
        &self,
        task: &Task,
        (keys, values): (&Streams<'_>, &Streams<'_>),
        out: &mut [f32],
    ) -> Option<()> {
        let (given, asked) = self.gather(task, keys.format.dim())?;
        let tracks = (keys.track(task)?, values.track(task)?);
        attend_head(&self.rule, tracks, &asked, &given, out);
        Some(())
    }

    /// Shows the queries of some tokens to streams of keys that learn maps from them.
    fn show(&self, key: &mut Store, tasks: &[Task], tokens: usize) -> Option<()> {
        let dim = key.format()?.dim();
        for task in tasks {
            let stream = self.first_streams[0] + task.stream;
            if !key.is_learning(stream) {
                continue;
            }
            let (first, end) = task.tokens;
            for token in (first..end).filter(|token| token.is_multiple_of(tokens.div_ceil(SHOWN))) {
                let (given, asked) = self.gather(&Task { tokens: (token, token + 1), ..*task }, dim)?;
                key.show((stream, task.head), &self.rule, &asked, &given);
            }
        }
        Some(())
    }
}

/// The streams of one side of an operation.
struct Streams<'a> {
    store: &'a Store,
    format: &'a Format,
    first_stream: usize,
}

impl<'a> Streams<'a> {
    fn track(&self, task: &Task) -> Option<Track<'a>> {
        let stream = self.store.stream(self.first_stream + task.stream)?;
        Some(Track { stream, format: self.format, head: task.head })
    }
}

/// Attends to a cache, then encodes the rows that are older than its newest writes.
///
/// # Safety
/// Same as [`can_attend`]; the operands also lie in memory.
pub(crate) unsafe fn attend(op: &View<'_>, threads: &Threads) -> Option<()> {
    // SAFETY: the caller keeps this function's contract.
    let (asked, out) = unsafe { (Attending::new(op)?, op.elements_mut::<f32>()?) };
    let ((key, keys), (value, values)) = (&asked.keys, &asked.values);
    // SAFETY: the caller keeps this function's contract.
    let ((key, _), (value, _)) = unsafe { (buffer::cached(key)?, buffer::cached(value)?) };
    let [_, tokens, query_heads, streams] = asked.queries.shape();
    // SAFETY: the caller keeps this function's contract; nobody writes to operands during the operation.
    let operands = unsafe {
        Operands {
            rule: Rule { scale: asked.scale, soft_cap: asked.soft_cap, slots: keys.slots },
            first_streams: [keys.first_stream, values.first_stream],
            queries: (asked.queries.elements()?, asked.queries.strides::<f32>()?),
            mask: match &asked.mask {
                Some(mask) => Some((mask.elements()?, mask.strides::<f16>()?, mask.shape())),
                None => None,
            },
            sinks: asked.sinks.and_then(|sinks| sinks.elements()).unwrap_or_default(),
            slopes: (0..query_heads).map(|head| asked.slope(head)).collect(),
        }
    };
    if !key.divide(Side::Keys, keys.dim) || !value.divide(Side::Values, values.dim) {
        return None;
    }
    let (mut key, mut value) = (key.store(), value.store());
    let (key, value) = (&mut *key, &mut *value);
    let tasks = Task::all(streams, keys.heads, query_heads, tokens);
    let products = tokens * query_heads * keys.slots * (keys.dim + values.dim);
    let steps = op.strides::<f32>()?;
    threads.run(products, || {
        operands.run(&tasks, (key, value), out, steps)?;
        operands.show(key, &tasks, tokens)?;
        key.cool();
        value.cool();
        Some(())
    })
}

impl Operands<'_> {
    fn run(
        &self,
        tasks: &[Task],
        (key, value): (&Store, &Store),
        out: &mut [f32],
        steps: [usize; 4],
    ) -> Option<()> {
        let first = self.first_streams;
        let keys = Streams { store: key, format: key.format()?, first_stream: first[0] };
        let values = Streams { store: value, format: value.format()?, first_stream: first[1] };
        let dim = values.format.dim();
        let each = |task: &Task| {
            let mut outs = vec![0.0; task.queries().count() * dim];
            self.attend(task, (&keys, &values), &mut outs).map(|()| outs)
        };
        let outs: Option<Vec<_>> = if rayon::current_thread_index().is_some() {
            tasks.par_iter().map(each).collect()
        } else {
            tasks.iter().map(each).collect()
        };
        for (task, outs) in tasks.iter().zip(outs?) {
            for ((token, head), row) in task.queries().zip(outs.chunks_exact(dim)) {
                let at = head * steps[1] + token * steps[2] + task.stream * steps[3];
                out.get_mut(at..at + dim)?.copy_from_slice(row);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_without_its_mask_is_refused() {
        let mask = [f16::ZERO; 8];
        let operands = |mask| Operands {
            rule: Rule { scale: 1.0, soft_cap: 0.0, slots: 4 },
            first_streams: [0, 0],
            queries: (&[], [0; 4]),
            mask,
            sinks: &[],
            slopes: Vec::new(),
        };
        assert_eq!(operands(None).mask(0, 2, 0), Some(&[][..]));
        let short = operands(Some((&mask[..], [1, 4, 8, 8], [4, 2, 1, 1])));
        assert_eq!(short.mask(0, 1, 0), Some(&mask[4..]));
        assert_eq!(short.mask(0, 2, 0), None);
    }
}
