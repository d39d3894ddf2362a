//! Views of the caller's rows. Nothing is gathered or converted before it is appended.

use crate::error::CacheError;
use crate::memory;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::borrow::Cow;
use tqkv_core::{KvShape, MAX_HEAD_DIM};
use tqkv_simd::Level;
use tqkv_simd::page::{narrow_rows, widen_rows};

/// Keys, values or queries in one of the types that engines use. Made from a slice of `f32`, [`half::f16`] or
/// [`half::bf16`].
///
/// Uncompressed tokens are f16, so keys and values in f16 are kept without conversion. Queries in f16 or bf16
/// are converted to f32, which is exact, in memory that the call takes. Results are always f32.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Floats<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper half of single precision.
    Bf16(&'a [bf16]),
}

macro_rules! from {
    ($($name:ident: $type:ty),*) => {$(
        impl<'a> From<&'a [$type]> for Floats<'a> {
            fn from(values: &'a [$type]) -> Self {
                Self::$name(values)
            }
        }

        impl<'a> From<&'a Vec<$type>> for Floats<'a> {
            fn from(values: &'a Vec<$type>) -> Self {
                Self::$name(values)
            }
        }

        impl<'a, const N: usize> From<&'a [$type; N]> for Floats<'a> {
            fn from(values: &'a [$type; N]) -> Self {
                Self::$name(values)
            }
        }
    )*};
}

from!(F32: f32, F16: f16, Bf16: bf16);

impl<'a> Floats<'a> {
    /// No values: in a cache of latent vectors, keys are also the values.
    pub const NONE: Self = Self::F32(&[]);

    /// Number of values.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Values `from..to`.
    pub(crate) fn part(self, from: usize, to: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[from..to]),
            Self::F16(values) => Self::F16(&values[from..to]),
            Self::Bf16(values) => Self::Bf16(&values[from..to]),
        }
    }

    /// Converts the values to f32, exactly.
    pub(crate) fn widen(self, level: Level, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(values),
            Self::F16(values) => widen_rows(level, values.reinterpret_cast(), out),
            Self::Bf16(values) => values.convert_to_f32_slice(out),
        }
    }

    /// The queries of `n` tokens of a layer as f32, once their number, that of the results (`out`) and their values
    /// are right. Those that are f32 are not copied.
    pub(crate) fn queries(
        self,
        (shape, level): (KvShape, Level),
        layer: usize,
        n: usize,
        out: usize,
    ) -> Result<Cow<'a, [f32]>, CacheError> {
        shape.check_queries(layer, n, self.len(), out)?;
        self.finite((shape, level), layer, 0)
    }

    /// Queries of a layer as f32, if they are finite. The first one is of query head `first`. Their number is that
    /// of some heads: kernels that convert them take no others.
    pub(crate) fn finite(
        self,
        (shape, level): (KvShape, Level),
        layer: usize,
        first: usize,
    ) -> Result<Cow<'a, [f32]>, CacheError> {
        let wide = if let Self::F32(values) = self {
            Cow::Borrowed(values)
        } else {
            let mut wide = memory::filled(self.len(), 0.0)?;
            self.widen(level, &mut wide);
            Cow::Owned(wide)
        };
        shape.check_finite(layer, first, &wide)?;
        Ok(wide)
    }

    /// Converts a row to bits of f16, rounded to nearest.
    pub(crate) fn narrow(self, level: Level, out: &mut [u16]) {
        match self {
            Self::F32(values) => narrow_rows(level, values, out),
            Self::F16(values) => out.copy_from_slice(values.reinterpret_cast()),
            Self::Bf16(_) => {
                let mut wide = [0.0; MAX_HEAD_DIM];
                let wide = &mut wide[..out.len()];
                self.widen(level, wide);
                narrow_rows(level, wide, out);
            }
        }
    }

    /// True if f16 has a finite number for every value.
    pub(crate) fn fits_f16(self) -> bool {
        let fits = |x: f32| x.abs() <= f16::MAX.to_f32();
        match self {
            Self::F32(values) => values.iter().copied().all(fits),
            Self::F16(values) => values.iter().all(|x| x.is_finite()),
            Self::Bf16(values) => values.iter().all(|x| fits(x.to_f32())),
        }
    }

    /// The norm of a row.
    pub(super) fn norm(self, level: Level) -> f32 {
        if let Self::F32(values) = self {
            return dot(values, values).sqrt();
        }
        let mut wide = [0.0; MAX_HEAD_DIM];
        let wide = &mut wide[..self.len()];
        self.widen(level, wide);
        dot(wide, wide).sqrt()
    }
}

/// Vectors at a fixed stride: one head out of all heads, or a part of each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors<'a> {
    all: Floats<'a>,
    stride: usize,
    first: usize,
    dim: usize,
}

impl<'a> Vectors<'a> {
    /// Takes `dim` values from `first` on, out of every `stride` values.
    pub(super) fn new(all: Floats<'a>, stride: usize, first: usize, dim: usize) -> Self {
        Self { all, stride, first, dim }
    }

    /// No vectors.
    pub(super) fn none(dim: usize) -> Self {
        Self::new(Floats::NONE, dim, 0, dim)
    }

    /// The vectors of one of `heads` heads.
    pub(super) fn of_head(self, head: usize, heads: usize) -> Self {
        Self { stride: self.stride * heads, first: self.stride * head + self.first, ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len() / self.stride
    }

    pub(super) fn rows(self) -> impl ExactSizeIterator<Item = Floats<'a>> {
        (0..self.len()).map(move |i| {
            let at = i * self.stride + self.first;
            self.all.part(at, at + self.dim)
        })
    }

    /// Tokens `from..to`.
    pub(super) fn part(self, from: usize, to: usize) -> Self {
        Self { all: self.all.part(from * self.stride, to * self.stride), ..self }
    }
}

/// Dot product of two slices of equal length. It has fixed lanes, so the compiler can vectorise it.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (left, right) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (x, y) in left.0.iter().zip(right.0) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    let four: [f32; 4] = std::array::from_fn(|i| (lanes[i] + lanes[i + 4]) + (lanes[i + 8] + lanes[i + 12]));
    let whole = (four[0] + four[2]) + (four[1] + four[3]);
    whole + left.1.iter().zip(right.1).map(|(p, q)| p * q).sum::<f32>()
}
