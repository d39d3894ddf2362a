//! Copies between a cache and tensors of f32, with which the host shifts keys of a type that is no plain
//! float: it converts them to f32, rotates, and copies them back.
//!
//! `can_copy` checks an operation for [`copy`], and must refuse everything that it cannot do.

#![allow(unsafe_code, reason = "operands are tensors of the host's")]

use crate::buffer;
use crate::declared::Declared;
use crate::tensor::View;
use half::f16;
use tqkv::unstable::slots::SlotStore;

/// Rows that are written before the oldest of them are encoded.
const TOGETHER: usize = 256;

/// A part of every head of every row: a view `[dims, heads, rows]` of a tensor of the cache.
#[derive(Clone, Copy, Debug)]
struct HeadPart {
    head_dim: usize,
    /// First value of the part in its head.
    first: usize,
    dims: usize,
    heads: usize,
    rows: usize,
}

impl HeadPart {
    /// None where the view has another shape or other strides.
    fn new(view: &View<'_>) -> Option<Self> {
        let root = view.root();
        let declared = Declared::of(root.get().kind).filter(|_| view.get().kind == root.get().kind)?;
        let ([width, slots, streams, _], [dims, heads, rows, one]) = (root.shape(), view.shape());
        let head_dim = width.checked_div(heads).filter(|dim| dim * heads == width)?;
        let steps = [declared.block_bytes, declared.bytes(head_dim)?, declared.bytes(width)?];
        let in_order = view.get().nb.iter().zip(steps).all(|(step, wanted)| *step == wanted);
        let first = view.get().view_offs / declared.block_bytes * declared.block;
        let is_inside = view.get().view_offs.is_multiple_of(declared.block_bytes) && first + dims <= head_dim;
        let is_all = rows == slots * streams && one == 1 && dims.is_multiple_of(declared.block);
        (in_order && is_inside && is_all).then_some(Self { head_dim, first, dims, heads, rows })
    }

    /// The values of the part in a row.
    fn of<'a>(&self, row: &'a mut [f16]) -> impl Iterator<Item = &'a mut f16> {
        let (first, end) = (self.first, self.first + self.dims);
        row.chunks_exact_mut(self.head_dim).flat_map(move |head| &mut head[first..end])
    }

    /// Values per row of the part.
    fn width(&self) -> usize {
        self.dims * self.heads
    }
}

/// True if a tensor is `[dims, heads, rows]` of f32 without gaps.
fn is_dense(tensor: &View<'_>, part: &HeadPart) -> bool {
    let wanted = [1, part.dims, part.width(), part.width() * part.rows];
    tensor.shape() == [part.dims, part.heads, part.rows, 1] && tensor.strides::<f32>() == Some(wanted)
}

/// True if an operation copies a part of all rows of a cache to a tensor of f32, or from one.
///
/// # Safety
/// `op` is a tensor of the host; its sources and buffers are valid.
pub(crate) unsafe fn can_copy(op: &View<'_>) -> bool {
    let Some(source) = op.source(0) else { return false };
    // SAFETY: the caller keeps this function's contract.
    let (to, from) = unsafe { (buffer::is_cached(op), buffer::is_cached(&source)) };
    let (cache, other) = if to { (op, &source) } else { (&source, op) };
    to != from && HeadPart::new(cache).is_some_and(|part| is_dense(other, &part))
}

/// Copies a part of all rows of a cache to a tensor of f32, or from one.
///
/// # Safety
/// Same as [`can_copy`]; the other tensor also lies in memory.
pub(crate) unsafe fn copy(op: &View<'_>) -> Option<()> {
    let source = op.source(0)?;
    // SAFETY: the caller keeps this function's contract; nobody else uses the other tensor meanwhile.
    unsafe {
        if buffer::is_cached(op) {
            let (cached, _) = buffer::cached(op)?;
            put(&mut cached.store(), &HeadPart::new(op)?, source.elements::<f32>()?);
        } else {
            let (cached, _) = buffer::cached(&source)?;
            take(&cached.store(), &HeadPart::new(&source)?, op.elements_mut::<f32>()?);
        }
    }
    Some(())
}

/// Reads a part of all rows.
fn take(store: &SlotStore, part: &HeadPart, out: &mut [f32]) {
    let mut row = vec![f16::ZERO; store.width()];
    for (i, out) in out.chunks_exact_mut(part.width()).enumerate() {
        store.read(i, &mut row);
        out.iter_mut().zip(part.of(&mut row)).for_each(|(to, x)| *to = x.to_f32());
    }
}

/// Writes a part of all rows. A row that did not change keeps its code.
fn put(store: &mut SlotStore, part: &HeadPart, values: &[f32]) {
    let mut held = vec![f16::ZERO; store.width()];
    let mut written = 0;
    for (i, values) in values.chunks_exact(part.width()).enumerate() {
        store.read(i, &mut held);
        let most = held.iter().fold(0.0f32, |most, x| most.max(x.to_f32().abs()));
        let is_same = |(x, now): (&mut f16, &f32)| {
            let x = x.to_f32();
            (x - now).abs() <= (x.abs() * RELATIVE).max(most * ABSOLUTE)
        };
        if part.of(&mut held).zip(values).all(is_same) {
            continue;
        }
        part.of(&mut held).zip(values).for_each(|(x, now)| *x = f16::from_f32(*now));
        store.write(i, &held);
        written += 1;
        if written % TOGETHER == 0 {
            store.cool();
        }
    }
    store.cool();
}

/// What a row that the host left in place changes by at most when it turns the row twice in f32: a share of a
/// value, and a share of the largest of the row. A shift by one position changes the fastest pairs completely.
const RELATIVE: f32 = 1.0 / 1024.0;
const ABSOLUTE: f32 = 1e-5;
