//! Keys, values, queries and results in the number type of the program.

use crate::error::{Failure, TqkvStatus};
use crate::pointer::Call;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ffi::c_void;
use tqkv::cache::Floats;

/// The type of keys, values, queries and results.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvDtype {
    /// 32-bit floats.
    TqkvF32 = 0,
    /// IEEE 16-bit floats.
    TqkvF16 = 1,
    /// bf16: the upper halves of 32-bit floats.
    TqkvBf16 = 2,
}

const DTYPES: [TqkvDtype; 3] = [TqkvDtype::TqkvF32, TqkvDtype::TqkvF16, TqkvDtype::TqkvBf16];

/// An argument that is written.
pub(crate) enum Room<'c> {
    F32(&'c mut [f32]),
    F16(&'c mut [f16]),
    Bf16(&'c mut [bf16]),
}

/// The type of a number. `what` names the argument.
pub(crate) fn dtype(what: &str, number: u32) -> Result<TqkvDtype, Failure> {
    one_of(&format!("dtype of {what}"), number, &DTYPES)
}

/// The element of `all` at this number. `all` is in the order in which the header numbers them.
pub(crate) fn one_of<T: Copy>(what: &str, number: u32, all: &[T]) -> Result<T, Failure> {
    let found = usize::try_from(number).ok().and_then(|index| all.get(index));
    let last = all.len() - 1;
    found.copied().ok_or_else(|| Failure::argument(format!("{what} is {number}, expected 0 to {last}")))
}

/// An argument that is read: a pointer and a number of values.
pub(crate) fn values<'c>(
    call: &'c Call,
    what: &'static str,
    number: u32,
    (pointer, len): (*const c_void, usize),
) -> Result<Floats<'c>, Failure> {
    Ok(match dtype(what, number)? {
        TqkvDtype::TqkvF32 => call.slice::<f32>(what, pointer.cast(), len)?.into(),
        TqkvDtype::TqkvF16 => call.slice::<f16>(what, pointer.cast(), len)?.into(),
        TqkvDtype::TqkvBf16 => call.slice::<bf16>(what, pointer.cast(), len)?.into(),
    })
}

impl<'c> Room<'c> {
    pub(crate) fn new(
        call: &'c Call,
        what: &'static str,
        number: u32,
        pointer: *mut c_void,
        len: usize,
    ) -> Result<Self, Failure> {
        Ok(match dtype(what, number)? {
            TqkvDtype::TqkvF32 => Self::F32(call.room(what, pointer.cast(), len)?),
            TqkvDtype::TqkvF16 => Self::F16(call.room(what, pointer.cast(), len)?),
            TqkvDtype::TqkvBf16 => Self::Bf16(call.room(what, pointer.cast(), len)?),
        })
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(out) => out.len(),
            Self::F16(out) => out.len(),
            Self::Bf16(out) => out.len(),
        }
    }

    /// Lets `work` write f32, then rounds the values to nearest. If `work` fails, no value is rounded.
    pub(crate) fn fill(self, work: impl FnOnce(&mut [f32]) -> Result<(), Failure>) -> Result<(), Failure> {
        let len = self.len();
        match self {
            Self::F32(out) => work(out),
            Self::F16(out) => computed(len, work).map(|wide| out.convert_from_f32_slice(&wide)),
            Self::Bf16(out) => computed(len, work).map(|wide| out.convert_from_f32_slice(&wide)),
        }
    }
}

/// A new buffer of f32 that `work` has filled.
fn computed(len: usize, work: impl FnOnce(&mut [f32]) -> Result<(), Failure>) -> Result<Vec<f32>, Failure> {
    let mut wide = zeros(len)?;
    work(&mut wide)?;
    Ok(wide)
}

/// Makes `len` zeros.
fn zeros(len: usize) -> Result<Vec<f32>, Failure> {
    let mut zeros = room(len)?;
    zeros.resize(len, 0.0);
    Ok(zeros)
}

/// Makes an empty list with room for `len` values.
pub(crate) fn room<T>(len: usize) -> Result<Vec<T>, Failure> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        Failure::new(TqkvStatus::TqkvNoMemory, format!("no memory: the system cannot provide {bytes} bytes"))
    })?;
    Ok(list)
}
