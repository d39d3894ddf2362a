//! RoPE of the host: keys that it turns in the cache, and how it turned keys before it wrote them.
//!
//! `can_rotate` checks an operation for [`rotate`], and must refuse everything that it cannot do.

#![allow(unsafe_code, reason = "operands are tensors of the host's")]

use crate::buffer;
use crate::declared::Declared;
use crate::host::{self, Operation};
use crate::said;
use crate::tensor::View;
use std::sync::atomic::{AtomicBool, Ordering};
use tqkv::unstable::slots::{self, RopeLayout, Shift, StoreSide};

/// `GGML_ROPE_TYPE_NEOX`
const NEOX: i32 = 2;

/// True if an operation rotates all keys of a cache, or a part of each, in place.
///
/// # Safety
/// `op` is a tensor of the host; its sources and buffers are valid.
pub(crate) unsafe fn can_rotate(op: &View<'_>) -> bool {
    let (Some(keys), Some(shifts)) = (op.source(0), op.source(1)) else { return false };
    // SAFETY: the caller keeps this function's contract.
    if !unsafe { buffer::is_cached(op) && buffer::is_cached(&keys) } {
        return false;
    }
    let root = op.root();
    let [width, slots, streams, _] = root.shape();
    let [dim, heads, rows, one] = keys.shape();
    let head_dim = width / heads.max(1);
    let Some(declared) = Declared::of(root.get().kind) else { return false };
    let bytes = |values: usize| declared.bytes(values).unwrap_or(0);
    let steps = [declared.block_bytes, bytes(head_dim), bytes(width)];
    let in_place = keys.get().view_offs == op.get().view_offs && keys.root().name() == root.name();
    let first = keys.get().view_offs / declared.block_bytes;
    let whole = head_dim * heads == width && first + dim <= head_dim && rows == slots * streams && one == 1;
    let in_order = keys.get().nb.iter().zip(steps).all(|(step, wanted)| *step == wanted);
    in_place
        && whole
        && in_order
        && turns_plainly(op, dim)
        && declared.block == 1
        && keys.get().kind == root.get().kind
        && shifts.strides::<i32>().is_some()
        && buffer::side(&root) == Some(StoreSide::Keys)
}

/// True if an operation `ROPE` turns pairs of a vector of `dim` values by one position per vector.
pub(crate) fn turns_plainly(op: &View<'_>, dim: usize) -> bool {
    let divisors = op.source(2).is_none_or(|divisors| divisors.strides::<f32>().is_some());
    let pairs = op.int(1) % 2 == 0 && (2..=dim).contains(&usize::try_from(op.int(1)).unwrap_or(0));
    divisors && pairs && (op.int(2) == 0 || op.int(2) == NEOX) && op.int(15) == 0
}

/// Rotates all keys of a cache by a shift of positions.
///
/// # Safety
/// Same as [`can_rotate`]; the shifts also lie in memory.
pub(crate) unsafe fn rotate(op: &View<'_>) -> Option<()> {
    let (keys, shifts) = (op.source(0)?, op.source(1)?);
    // SAFETY: the caller keeps this function's contract.
    let ((cached, _), shifts) = unsafe { (buffer::cached(op)?, shifts.elements::<i32>()?) };
    let head_dim = keys.root().shape()[0] / keys.shape()[1];
    let first = keys.get().view_offs / Declared::of(keys.get().kind)?.block_bytes;
    // SAFETY: the caller keeps this function's contract.
    let shift = unsafe { shift_of(op, head_dim, first)? };
    slots::rotate(&mut cached.store(), &shift, shifts);
    Some(())
}

/// What an operation `ROPE` does to keys, whose heads have this number of values and are turned from `first` on.
///
/// # Safety
/// The divisors of the operation lie in memory.
pub(crate) unsafe fn shift_of(op: &View<'_>, head_dim: usize, first: usize) -> Option<Shift> {
    let divisors = match op.source(2) {
        // SAFETY: the caller keeps this function's contract.
        Some(divisors) => unsafe { divisors.elements::<f32>()? }.to_vec(),
        None => Vec::new(),
    };
    let (dims, trained) = (usize::try_from(op.int(1)).ok()?, usize::try_from(op.int(4)).unwrap_or(0));
    let shift = Shift {
        head_dim,
        first,
        dims,
        halves: op.int(2) == NEOX,
        base: op.float(5),
        scale: op.float(6),
        extrapolated: op.float(7),
        factor: op.float(8),
        ramp: slots::ramp(dims, trained, op.float(5), [op.float(9), op.float(10)]),
        divisors,
        mixed: 0,
    };
    static WAS_SAID: AtomicBool = AtomicBool::new(false);
    if !shift.keeps_lengths() && !WAS_SAID.swap(true, Ordering::Relaxed) {
        said::print(
            "a shift of positions changes the length of this model's keys (YaRN), so each one encodes them again",
        );
    }
    Some(shift)
}

/// Most operations between RoPE and the write of keys.
const MOST_STEPS: usize = 8;

/// The RoPE that turned rows, found by the sources of their tensor.
fn rope_of<'a>(rows: &View<'a>) -> Option<View<'a>> {
    let host = host::host().ok()?;
    let mut steps = std::iter::successors(Some(*rows), |op| op.source(0)).take(MOST_STEPS);
    steps.find(|op| host.operation(op.get().op) == Operation::Rope)
}

/// The positions of rows in their sequences, one per row. None if no RoPE is among the sources of their tensor,
/// as where another device computed them, or its positions are not in the memory of the CPU.
///
/// # Safety
/// The sources of the rows lie in memory.
pub(crate) unsafe fn positions_of<'a>(rows: &View<'a>) -> Option<&'a [i32]> {
    let positions = rope_of(rows)?.source(1)?;
    // SAFETY: the caller keeps this function's contract; the buffers of the host's tensors are valid.
    unsafe {
        let kind = positions.root().get().buffer.as_ref()?.kind;
        host::host().ok().filter(|host| host.is_host(kind))?;
        // Models with several positions per token have the first of each token first.
        positions.elements::<i32>()?.get(..rows.shape()[1])
    }
}

/// How RoPE turned rows, found by the sources of their tensor; none if no RoPE is among them.
pub(crate) fn turn_of(rows: &View<'_>) -> Option<RopeLayout> {
    let rope = rope_of(rows)?;
    // Every mode but the plain one turns halves.
    Some(RopeLayout { dims: usize::try_from(rope.int(1)).ok()?, halves: rope.int(2) != 0 })
}
