//! The operations on a cache: checks, and the functions that run them.
//!
//! Each `can_*` checks an operation for the function next to it, and must refuse everything that this
//! function cannot do. The CPU runs a refused operation on a copy of the cache in f16.

#![allow(unsafe_code, reason = "operands are tensors of the host's")]

use crate::buffer;
use crate::declared::Declared;
use crate::layers;
use crate::rotate;
use crate::said;
use crate::settings::options;
use crate::tensor::View;
use crate::threads::Threads;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::sync::Once;
use tqkv::unstable::slots::{Masks, Operation, QueryRule, SlotStore, StoreSide, Strided};

/// Keys or values of an operation: views `[dim, slots, heads, streams]` of a tensor of the cache.
#[derive(Clone, Copy, Debug)]
struct CachedHeads {
    side: StoreSide,
    width: usize,
    dim: usize,
    slots: usize,
    heads: usize,
    streams: usize,
    first_stream: usize,
}

impl CachedHeads {
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
        let declared = Declared::of(root.get().kind).filter(|_| view.get().kind == root.get().kind)?;
        let row_bytes = declared.bytes(width)?;
        let stream_bytes = row_bytes * all_slots;
        let steps = [declared.block_bytes, row_bytes, declared.bytes(dim)?, stream_bytes];
        let counted = view.shape().into_iter().zip(view.get().nb.into_iter().zip(steps));
        let in_order = counted.into_iter().all(|(n, (step, wanted))| n == 1 || step == wanted);
        let whole = view.get().view_offs.is_multiple_of(stream_bytes.max(1)) && slots <= all_slots;
        if !in_order || !whole || dim * heads != width {
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
    let Some(declared) = Declared::of(op.get().kind) else { return false };
    let flat = two == 1 && three == 1 && op.get().nb[0] == declared.block_bytes;
    if !is_cached || !numbers || !places || !flat {
        return false;
    }
    if width == 1 && op.root().shape()[0] > 1 {
        static SAID: Once = Once::new();
        // SAFETY: the caller keeps this function's contract.
        let is_plain = unsafe { buffer::make_plain(op) };
        SAID.call_once(|| {
            said::print(
                "without flash attention nothing is encoded and steps are slow: use -fa on (or auto)",
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
    // SAFETY: the caller keeps this function's contract.
    unsafe { buffer::note_write(op, &cached) };
    if cached.is_plain() {
        let (declared, step) = (cached.declared(), op.get().nb[1]);
        // SAFETY: the values of a plain tensor lie in the buffer; nobody else uses them during the operation.
        let to = unsafe { op.bytes_mut(declared.block_bytes) }?;
        // SAFETY: the caller keeps this function's contract.
        return unsafe {
            each_row(&rows, |i, row| {
                let place = indices.get(i).map_or(usize::MAX, |row| row * step);
                let end = place.saturating_add(declared.block_bytes);
                if let (Some(to), Some(value)) = (to.get_mut(place..end), row.get(..1)) {
                    declared.write(value, to);
                }
            })
        };
    }
    let mut store = cached.store();
    cached.restored().settle(&mut store);
    let first = at / cached.declared().bytes(store.width())?;
    // SAFETY: the caller keeps this function's contract.
    if let Some(positions) = unsafe { rotate::positions_of(&rows) } {
        let written = indices.iter().zip(positions).map(|(index, position)| (first + index, *position));
        cached.sinks().note(cached.layer(), store.sinks(), written);
    }
    let sinks = cached.sinks();
    let of_slots = store.slots();
    let is_sink = |row: usize, most| sinks.has(cached.layer(), row).unwrap_or(row % of_slots < most);
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        each_row(&rows, |i, row| {
            if let Some(index) = indices.get(i) {
                let is_sink = is_sink(first + index, store.sinks());
                store.write_as(first + index, is_sink, row);
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

/// Where the values of attention are.
#[derive(Clone, Copy)]
enum ValuePlace<'a> {
    /// In a tensor of their own.
    Apart(View<'a>, CachedHeads),
    /// The first values of each key, this number of them, are its value (MLA).
    InKeys(usize),
}

/// True if the values of some keys are views of the first values of each key.
fn are_in_keys((key, keys): (&View<'_>, &CachedHeads), value: &View<'_>) -> bool {
    let ([dim, slots, heads, streams], alike) = (value.shape(), value.root().name() == key.root().name());
    let in_order = value.get().nb.iter().zip(key.get().nb).all(|(step, wanted)| *step == wanted);
    let shape = (slots, heads, streams) == (keys.slots, keys.heads, keys.streams) && dim <= keys.dim;
    alike && in_order && shape && heads == 1 && value.get().view_offs == key.get().view_offs
}

/// Operands of attention.
struct Attending<'a> {
    queries: View<'a>,
    keys: (View<'a>, CachedHeads),
    values: ValuePlace<'a>,
    mask: Option<View<'a>>,
    sinks: Option<View<'a>>,
    scale: f32,
    max_bias: f32,
    soft_cap: Option<f32>,
}

impl<'a> Attending<'a> {
    /// None where the operation is not served.
    ///
    /// # Safety
    /// Same as [`can_attend`].
    unsafe fn new(op: &View<'a>) -> Option<Self> {
        let (queries, key, value) = (op.source(0)?, op.source(1)?, op.source(2)?);
        // SAFETY: the caller keeps this function's contract.
        let keys = unsafe { CachedHeads::new(&key) }?;
        let values = if are_in_keys((&key, &keys), &value) {
            ValuePlace::InKeys(value.shape()[0])
        } else {
            // SAFETY: the caller keeps this function's contract.
            ValuePlace::Apart(value, unsafe { CachedHeads::new(&value) }?)
        };
        let (mask, sinks) = (op.source(3), op.source(4));
        let [dim, tokens, heads, streams] = queries.shape();
        let alike = keys.side == StoreSide::Keys
            && match values {
                ValuePlace::InKeys(_) => true,
                ValuePlace::Apart(_, values) => {
                    values.side == StoreSide::Values
                        && (keys.slots, keys.heads, keys.streams)
                            == (values.slots, values.heads, values.streams)
                }
            };
        let asked = dim == keys.dim && heads.is_multiple_of(keys.heads.max(1)) && streams == keys.streams;
        let numbers = queries.strides::<f32>().is_some()
            && mask.is_none_or(|mask| {
                let [slots, queries, ..] = mask.shape();
                mask.strides::<f16>().is_some() && slots >= keys.slots && queries >= tokens
            })
            && sinks.is_none_or(|sinks| sinks.strides::<f32>().is_some() && sinks.shape()[0] == heads)
            && op.strides::<f32>().is_some();
        let (scale, max_bias, soft_cap) = (op.float(0), op.float(1), op.float(2));
        (alike && asked && numbers).then_some(Self {
            queries,
            keys: (key, keys),
            values,
            mask,
            sinks,
            scale,
            max_bias,
            soft_cap: Some(soft_cap).filter(|cap| *cap != 0.0),
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
    layers::end_of_model();
    let values = match &asked.values {
        ValuePlace::Apart(view, heads) => Some((view, heads)),
        ValuePlace::InKeys(_) => None,
    };
    std::iter::once((&asked.keys.0, &asked.keys.1)).chain(values).all(|(view, heads)| {
        // SAFETY: the caller keeps this function's contract.
        match unsafe { buffer::cached(view) } {
            Some((cached, _)) => cached.divide(heads.side, heads.dim),
            // Before the host allocates the buffer there is no row to divide.
            None => Declared::of(view.get().kind).is_some_and(|declared| {
                let id = options.held.codec(heads.side, &declared, (0, 1));
                SlotStore::format_of(heads.side, id, &options.held.spec, heads.width, heads.dim).is_some()
            }),
        }
    })
}

/// Attends to a cache, then encodes the rows that are older than its newest writes.
///
/// # Safety
/// Same as [`can_attend`]; the operands also lie in memory.
pub(crate) unsafe fn attend(op: &View<'_>, threads: &Threads) -> Option<()> {
    // SAFETY: the caller keeps this function's contract.
    let (asked, out) = unsafe { (Attending::new(op)?, op.elements_mut::<f32>()?) };
    let (key, keys) = &asked.keys;
    // SAFETY: the caller keeps this function's contract.
    let (key, _) = unsafe { buffer::cached(key) }?;
    let [_, tokens, query_heads, streams] = asked.queries.shape();
    let slopes: Vec<f32> = (0..query_heads).map(|head| asked.slope(head)).collect();
    // SAFETY: the caller keeps this function's contract; nobody writes to operands during the operation.
    let operation = unsafe {
        let queries = (asked.queries.elements()?, asked.queries.strides::<f32>()?);
        let masks = match &asked.mask {
            Some(mask) => {
                // Queries lie token by token in a mask, and head by head elsewhere.
                let ([_, token, head, stream], [_, _, heads, streams]) =
                    (mask.strides::<f16>()?, mask.shape());
                let rows = Strided { values: mask.elements()?, steps: [token, head, stream] };
                Some(Masks { rows, counts: [heads, streams] })
            }
            None => None,
        };
        let [_, token, head, stream] = queries.1;
        Operation {
            rule: QueryRule { scale: asked.scale, soft_cap: asked.soft_cap, slots: keys.slots },
            first_streams: match asked.values {
                ValuePlace::Apart(_, values) => [keys.first_stream, values.first_stream],
                ValuePlace::InKeys(_) => [keys.first_stream; 2],
            },
            streams,
            tokens,
            query_heads,
            queries: Strided { values: queries.0, steps: [token, head, stream] },
            masks,
            sinks: asked.sinks.and_then(|sinks| sinks.elements()).unwrap_or_default(),
            slopes: &slopes,
        }
    };
    if !key.divide(StoreSide::Keys, keys.dim) {
        return None;
    }
    let [_, head, token, stream] = op.strides::<f32>()?;
    let (steps, products) = ([token, head, stream], tokens * query_heads * keys.slots);
    match asked.values {
        ValuePlace::InKeys(dim) => {
            let (mut store, mut restored) = (key.store(), key.restored());
            restored.settle(&mut store);
            let store = &mut *store;
            threads.run(products * (keys.dim + dim), || operation.run_latents(store, dim, out, steps))?;
            (!restored.may_spoil(out)).then_some(())
        }
        ValuePlace::Apart(value, values) => {
            // SAFETY: the caller keeps this function's contract.
            let (value, _) = unsafe { buffer::cached(&value) }?;
            if !value.divide(StoreSide::Values, values.dim) {
                return None;
            }
            let (mut first, mut second) = (key.store(), value.store());
            let mut restored = [key.restored(), value.restored()];
            restored[0].settle(&mut first);
            restored[1].settle(&mut second);
            let both = (&mut *first, &mut *second);
            threads.run(products * (keys.dim + values.dim), || operation.run(both, out, steps))?;
            (!restored.iter().any(|restored| restored.may_spoil(out))).then_some(())
        }
    }
}
