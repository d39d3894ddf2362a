//! Numbers of a program in the type that it holds them in: keys, values, queries and results.

use crate::error::{Failure, TqkvStatus};
use crate::number::one_of;
use crate::pointer::{In, Out};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::borrow::Cow;
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
    /// The upper halves of 32-bit floats.
    TqkvBf16 = 2,
}

pub(crate) const DTYPES: [TqkvDtype; 3] = [TqkvDtype::TqkvF32, TqkvDtype::TqkvF16, TqkvDtype::TqkvBf16];

/// An argument to read.
#[derive(Clone, Copy)]
pub(crate) enum Values {
    F32(In<f32>),
    F16(In<f16>),
    Bf16(In<bf16>),
}

/// An argument to write.
#[derive(Clone, Copy)]
pub(crate) enum Room {
    F32(Out<f32>),
    F16(Out<f16>),
    Bf16(Out<bf16>),
}

/// The type of a number; `what` is the argument that it is of.
fn dtype(what: &str, number: u32) -> Result<TqkvDtype, Failure> {
    one_of(&format!("dtype of {what}"), number, &DTYPES)
}

impl Values {
    pub(crate) fn new(
        what: &'static str,
        number: u32,
        pointer: *const c_void,
        len: usize,
    ) -> Result<Self, Failure> {
        Ok(match dtype(what, number)? {
            TqkvDtype::TqkvF32 => Self::F32(In::new(what, pointer.cast(), len)?),
            TqkvDtype::TqkvF16 => Self::F16(In::new(what, pointer.cast(), len)?),
            TqkvDtype::TqkvBf16 => Self::Bf16(In::new(what, pointer.cast(), len)?),
        })
    }

    /// The values.
    ///
    /// # Safety
    /// As [`In::get`].
    pub(crate) unsafe fn get<'a>(self) -> Floats<'a> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(values) => values.get().into(),
                Self::F16(values) => values.get().into(),
                Self::Bf16(values) => values.get().into(),
            }
        }
    }

    /// The values as f32, where they lie if they are that.
    ///
    /// # Safety
    /// As [`In::get`].
    pub(crate) unsafe fn wide<'a>(self) -> Result<Cow<'a, [f32]>, Failure> {
        Ok(match self {
            // SAFETY: the caller's promise, here and below.
            Self::F32(values) => Cow::Borrowed(unsafe { values.get() }),
            // SAFETY: as above.
            Self::F16(values) => Cow::Owned(widened(unsafe { values.get() })?),
            // SAFETY: as above.
            Self::Bf16(values) => Cow::Owned(widened(unsafe { values.get() })?),
        })
    }
}

impl Room {
    pub(crate) fn new(
        what: &'static str,
        number: u32,
        pointer: *mut c_void,
        len: usize,
    ) -> Result<Self, Failure> {
        Ok(match dtype(what, number)? {
            TqkvDtype::TqkvF32 => Self::F32(Out::new(what, pointer.cast(), len)?),
            TqkvDtype::TqkvF16 => Self::F16(Out::new(what, pointer.cast(), len)?),
            TqkvDtype::TqkvBf16 => Self::Bf16(Out::new(what, pointer.cast(), len)?),
        })
    }

    /// Refuses an input that shares bytes with it.
    pub(crate) fn apart_from(self, input: Values) -> Result<Self, Failure> {
        match input {
            Values::F32(values) => self.apart(values),
            Values::F16(values) => self.apart(values),
            Values::Bf16(values) => self.apart(values),
        }
    }

    /// The same for an input that holds no numbers.
    pub(crate) fn apart<U: Copy>(self, input: In<U>) -> Result<Self, Failure> {
        match self {
            Self::F32(out) => out.apart_from(input).map(Self::F32),
            Self::F16(out) => out.apart_from(input).map(Self::F16),
            Self::Bf16(out) => out.apart_from(input).map(Self::Bf16),
        }
    }

    /// How many values there is room for.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(out) => out.len(),
            Self::F16(out) => out.len(),
            Self::Bf16(out) => out.len(),
        }
    }

    /// Has `work` write f32, and rounds them to nearest; nothing is rounded where it fails.
    ///
    /// # Safety
    /// As [`Out::get`], as long as this lasts.
    pub(crate) unsafe fn fill(
        self,
        work: impl FnOnce(&mut [f32]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let Self::F32(out) = self {
            // SAFETY: the caller's promise.
            return work(unsafe { out.get() });
        }
        let mut wide = zeros(self.len())?;
        work(&mut wide)?;
        match self {
            Self::F32(_) => {}
            // SAFETY: the caller's promise, here and below.
            Self::F16(out) => unsafe { out.get() }.convert_from_f32_slice(&wide),
            // SAFETY: as above.
            Self::Bf16(out) => unsafe { out.get() }.convert_from_f32_slice(&wide),
        }
        Ok(())
    }
}

fn widened<T>(values: &[T]) -> Result<Vec<f32>, Failure>
where
    [T]: HalfFloatSliceExt,
{
    let mut wide = zeros(values.len())?;
    values.convert_to_f32_slice(&mut wide);
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
        Failure::new(TqkvStatus::TqkvNoMemory, format!("no memory: {bytes} bytes cannot be had"))
    })?;
    Ok(list)
}
