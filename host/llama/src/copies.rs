//! Copies between a cache and tensors of f32, with which the host shifts keys of a type that is no plain
//! float: it converts them to f32, rotates, and copies them back. Rows that come back as the RoPE among the sources
//! would turn them are turned in the cache instead, where their codes stay as they are.
//!
//! `can_copy` checks an operation for [`copy`], and must refuse everything that it cannot do.

#![allow(unsafe_code, reason = "operands are tensors of the host's")]

use crate::buffer;
use crate::declared::Declared;
use crate::host::{self, Operation};
use crate::rotate;
use crate::tensor::View;
use half::f16;
use tqkv::unstable::slots::{self, Shift, SlotStore, Turner};

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
            let part = HeadPart::new(op)?;
            put(&mut cached.store(), &part, source.elements::<f32>()?, shift_before(&source, &part));
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

/// Most operations between RoPE and the copy of keys.
const MOST_STEPS: usize = 8;

/// The shift that turned rows which are copied to a cache, and those of all rows; none if no RoPE is among the sources,
/// or if it changes lengths. The memory of the shifts may have another use by now, so [`put`] compares results.
///
/// # Safety
/// The sources of the tensor are valid, and their buffers.
unsafe fn shift_before<'a>(source: &View<'a>, part: &HeadPart) -> Option<(Shift, &'a [i32])> {
    let host = host::host().ok()?;
    let (mut op, mut mixed) = (*source, 0);
    for _ in 0..MOST_STEPS {
        op = match host.operation(op.get().op) {
            Operation::Rope => break,
            Operation::Nothing => op.source(0)?,
            Operation::Product => {
                mixed = op.source(0)?.shape()[0];
                op.source(1)?
            }
            _ => return None,
        };
    }
    let shifts = op.source(1).filter(|_| host.operation(op.get().op) == Operation::Rope)?;
    let is_served = rotate::turns_plainly(&op, part.dims) && (mixed < 2 || mixed.is_power_of_two());
    if !is_served || mixed > 1 && !part.dims.is_multiple_of(mixed) {
        return None;
    }
    // SAFETY: the caller keeps this function's contract; the kinds of the buffers say that they are memory.
    unsafe {
        for tensor in [Some(shifts), op.source(2)].into_iter().flatten() {
            host.is_host(tensor.root().get().buffer.as_ref()?.kind).then_some(())?;
        }
        let shift = Shift { mixed, ..rotate::shift_of(&op, part.head_dim, part.first)? };
        let shifts = shifts.elements::<i32>()?.get(..part.rows)?;
        (shift.keeps_lengths() && (mixed < 2 || shift.dims == part.dims)).then_some((shift, shifts))
    }
}

/// Writes a part of all rows. A row that did not change, or was only turned, keeps its code.
fn put(store: &mut SlotStore, part: &HeadPart, values: &[f32], shift: Option<(Shift, &[i32])>) {
    let mut held = vec![f16::ZERO; store.width()];
    let mut turned = shift.as_ref().map(|(shift, shifts)| (Turner::new(shift), *shifts));
    let (mut moves, mut others) = (vec![0; part.rows], Vec::new());
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
        let shift = turned.as_mut().and_then(|(turner, shifts)| {
            is_turned(turner, shifts[i], (&held, part), values).then_some(shifts[i])
        });
        match shift {
            Some(shift) => moves[i] = shift,
            None => others.push(i),
        }
    }
    if let Some((shift, _)) = &shift {
        slots::rotate(store, shift, &moves);
    }
    for others in others.chunks(TOGETHER) {
        for &i in others {
            store.read(i, &mut held);
            let values = &values[i * part.width()..];
            part.of(&mut held).zip(values).for_each(|(x, now)| *x = f16::from_f32(*now));
            store.write(i, &held);
        }
        store.cool();
    }
    store.cool();
}

/// True if a part of a row, as it is held, becomes these values when it is turned by a shift.
fn is_turned(turner: &mut Turner, shift: i32, (held, part): (&[f16], &HeadPart), values: &[f32]) -> bool {
    let mut key = vec![0.0; part.head_dim];
    let heads = held.chunks_exact(part.head_dim).zip(values.chunks_exact(part.dims));
    let (mut error, mut energy) = (0.0, 0.0);
    for (head, values) in heads {
        key.iter_mut().zip(head).for_each(|(x, half)| *x = half.to_f32());
        turner.turn(shift, &mut key);
        for (x, now) in key[part.first..].iter().zip(values) {
            error += (x - now).powi(2);
            energy += now.powi(2);
        }
    }
    error <= TURNED * TURNED * energy
}

/// What a row that the host left in place changes by at most when it turns the row twice in f32: a share of a
/// value, and a share of the largest of the row. A shift by one position changes the fastest pairs completely.
const RELATIVE: f32 = 1.0 / 1024.0;
const ABSOLUTE: f32 = 1e-5;

/// Largest error of a turned row, as a share of its length. Angles of f32 give less; another shift gives more.
const TURNED: f32 = 1.0 / 256.0;

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::CodecId;
    use tqkv::cache::CacheSpec;
    use tqkv::unstable::slots::StoreSide;

    const PART: HeadPart = HeadPart { head_dim: 64, first: 0, dims: 64, heads: 2, rows: 256 };

    fn rows(store: &SlotStore) -> Vec<f32> {
        let mut rows = vec![0.0; PART.rows * PART.width()];
        take(store, &PART, &mut rows);
        rows
    }

    /// Relative error of each row.
    fn errors(found: &[f32], wanted: &[f32]) -> Vec<f32> {
        let error = |(found, wanted): (&[f32], &[f32])| {
            let sum: f32 = found.iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum();
            (sum / wanted.iter().map(|x| x * x).sum::<f32>()).sqrt()
        };
        found.chunks(PART.width()).zip(wanted.chunks(PART.width())).map(error).collect()
    }

    #[test]
    fn rows_that_were_only_turned_keep_their_codes_and_others_are_written() {
        let spec = CacheSpec::new(1, 1, 1, PART.head_dim).hot(0);
        let mut store = SlotStore::new(StoreSide::Keys, &spec, PART.width(), PART.rows, 1);
        assert!(store.divide(PART.head_dim, CodecId::T2));
        let mut bits = 1u32;
        for row in 0..PART.rows {
            let mut value = || {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f16::from_f32((bits >> 16) as f32 / 32768.0 - 1.0)
            };
            store.write(row, &(0..PART.width()).map(|_| value()).collect::<Vec<_>>());
        }
        store.cool();
        let shift = Shift { first: PART.first, dims: PART.dims, mixed: 64, ..Shift::plain(PART.head_dim) };
        for time in 0..10 {
            let (mut turner, mut wanted) = (Turner::new(&shift), rows(&store));
            let mut shifts: Vec<i32> = (0..PART.rows).map(|row| if row < 40 { 0 } else { -64 }).collect();
            for (row, &shift) in wanted.chunks_mut(PART.width()).zip(&shifts) {
                row.chunks_mut(PART.head_dim).for_each(|head| turner.turn(shift, head));
            }
            // The memory of some shifts was used again, so that they say nothing about their rows.
            shifts[100..110].fill(0x3f80_0000);
            put(&mut store, &PART, &wanted, Some((shift.clone(), &shifts)));
            for (row, error) in errors(&rows(&store), &wanted).into_iter().enumerate() {
                let is_written = (100..110).contains(&row);
                assert!(error < if is_written { 1.0 } else { 1e-3 }, "row {row}, time {time}: {error}");
                assert!(!is_written || error > 0.05, "row {row} is encoded again: {error}");
            }
        }
    }
}
