//! The table of formats.

use crate::format::Norm;
use crate::levels::Levels;
use crate::rotation::RotationKind::{self, Dense, DenseBf16, Hadamard, Sylvester};
use crate::theory;
use crate::{fp4, product, runs, scalar, split, turbo, uniform};

/// A format: its name, and its conversion of vectors to bytes.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    name: &'static str,
    kind: RowKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RowKind {
    Scalar(scalar::ScalarForm),
    Product(product::ProductForm),
    Turbo { bits: usize },
    Split(split::SplitForm),
    Uniform { bits: usize, is_rotated: bool },
    ZeroPoint,
    Floats(uniform::Floats),
    OfTensor,
    Fp4(fp4::Fp4),
    RotatedRuns,
}

/// A scalar code with an f32 norm.
const fn scalar(name: &'static str, bits: usize, rotation: RotationKind) -> Row {
    let form = scalar::ScalarForm { bits, width: bits, norm: Norm::F32, keeps_norm: false, rotation };
    Row { name, kind: RowKind::Scalar(form) }
}

/// A scalar code whose decoded vectors keep the norm that is stored.
const fn of_kept_norm(
    name: &'static str,
    [bits, width]: [usize; 2],
    norm: Norm,
    rotation: RotationKind,
) -> Row {
    Row { name, kind: RowKind::Scalar(scalar::ScalarForm { bits, width, norm, keeps_norm: true, rotation }) }
}

/// A uniform code.
const fn uniform(name: &'static str, bits: usize, is_rotated: bool) -> Row {
    Row { name, kind: RowKind::Uniform { bits, is_rotated } }
}

/// A scalar code with a residual.
const fn product(
    name: &'static str,
    [bits, residual]: [usize; 2],
    norm: Norm,
    rotation: RotationKind,
) -> Row {
    Row { name, kind: RowKind::Product(product::ProductForm { bits, residual, norm, rotation }) }
}

/// Every format.
pub const ROWS: &[Row] = &[
    product("p2", [1, 1], Norm::F16, Dense),
    product("p3", [2, 1], Norm::F16, Dense),
    product("p4", [3, 1], Norm::F16, Dense),
    product("p4r2", [3, 2], Norm::F16, Dense),
    product("p4r3", [3, 3], Norm::F16, Dense),
    product("p4r4", [3, 4], Norm::F16, Dense),
    scalar("tq1", 1, Dense),
    scalar("tq2", 2, Dense),
    scalar("tq3", 3, Dense),
    scalar("tq4", 4, Dense),
    of_kept_norm("tq4u8", [4, 8], Norm::F32, DenseBf16),
    Row { name: "turbo2", kind: RowKind::Turbo { bits: 2 } },
    Row { name: "turbo3", kind: RowKind::Turbo { bits: 3 } },
    Row { name: "turbo4", kind: RowKind::Turbo { bits: 4 } },
    product("turbo3k", [2, 1], Norm::F32, Hadamard),
    product("turbo4k", [3, 1], Norm::F32, Hadamard),
    scalar("turbo3v", 3, Hadamard),
    scalar("turbo4v", 4, Hadamard),
    Row { name: "c25", kind: RowKind::Split(split::SplitForm { wide: 3, narrow: 2 }) },
    Row { name: "c35", kind: RowKind::Split(split::SplitForm { wide: 4, narrow: 3 }) },
    uniform("u3", 3, false),
    uniform("u4", 4, false),
    uniform("u8", 8, false),
    Row { name: "f8", kind: RowKind::Floats(uniform::Floats::E4m3) },
    Row { name: "f8e5m2", kind: RowKind::Floats(uniform::Floats::E5m2) },
    Row { name: "q4_0r", kind: RowKind::RotatedRuns },
    uniform("u3r", 3, true),
    uniform("u4r", 4, true),
    uniform("u8r", 8, true),
    Row { name: "fp8", kind: RowKind::OfTensor },
    Row { name: "nvfp4", kind: RowKind::Fp4(fp4::Fp4::Nv { tensor: 1.0 }) },
    Row { name: "mxfp4", kind: RowKind::Fp4(fp4::Fp4::Mx) },
    Row { name: "int4h", kind: RowKind::ZeroPoint },
    of_kept_norm("vtq3", [3, 3], Norm::F16, Sylvester),
    of_kept_norm("vtq4", [4, 4], Norm::F16, Sylvester),
];

impl Row {
    /// Name on the command line and in reports.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) const fn kind(&self) -> &RowKind {
        &self.kind
    }

    /// The row of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).copied()
    }

    /// Bytes of a block. `None` if there are no blocks of the head dim.
    pub fn block_bytes(&self, dim: usize) -> Option<usize> {
        let powers = |rotation| !matches!(rotation, Hadamard | Sylvester) || dim.is_power_of_two();
        let halves = tqkv_core::is_supported_head_dim(dim / 2);
        if !tqkv_core::is_supported_head_dim(dim) {
            return None;
        }
        match self.kind {
            RowKind::Scalar(form) => powers(form.rotation).then(|| form.block_bytes(dim)),
            RowKind::Product(form) => powers(form.rotation).then(|| form.block_bytes(dim)),
            RowKind::Turbo { bits } => Some(turbo::block_bytes(dim, bits)),
            RowKind::Split(form) => halves.then(|| form.block_bytes(dim)),
            RowKind::Uniform { bits, is_rotated } => {
                (!is_rotated || powers(Hadamard)).then(|| uniform::Uniform::block_bytes(dim, bits))
            }
            RowKind::ZeroPoint => powers(Hadamard).then(|| uniform::ZeroPoint::block_bytes(dim)),
            RowKind::Floats(_) => Some(uniform::Floats::block_bytes(dim)),
            RowKind::OfTensor => Some(dim),
            RowKind::Fp4(form) => dim.is_multiple_of(form.run()).then(|| form.block_bytes(dim)),
            RowKind::RotatedRuns => {
                powers(Hadamard).then(|| runs::block_bytes(dim)).filter(|_| dim >= runs::RUN)
            }
        }
    }

    /// Bits of the codes per value. The residual counts, norms and scales do not.
    pub fn rate(&self) -> f64 {
        match self.kind {
            RowKind::Scalar(form) => form.bits as f64,
            RowKind::Product(form) => (form.bits + form.residual) as f64,
            RowKind::Turbo { bits } | RowKind::Uniform { bits, .. } => bits as f64,
            RowKind::Split(form) => (form.wide + form.narrow) as f64 / 2.0,
            RowKind::Floats(_) | RowKind::OfTensor => 8.0,
            RowKind::ZeroPoint | RowKind::Fp4(_) | RowKind::RotatedRuns => 4.0,
        }
    }

    /// True if vectors are rotated, so that errors do not depend on their contents.
    pub fn is_rotated(&self) -> bool {
        match self.kind {
            RowKind::Scalar(_) | RowKind::Product(_) | RowKind::Turbo { .. } => true,
            RowKind::Uniform { is_rotated, .. } => is_rotated,
            RowKind::ZeroPoint | RowKind::RotatedRuns => true,
            RowKind::Split(_) | RowKind::Floats(_) | RowKind::OfTensor | RowKind::Fp4(_) => false,
        }
    }

    /// True if a coder has something to learn ([`crate::Coder::learn`]): which channels have the most energy, or the
    /// scale of the tensor.
    pub fn learns(&self) -> bool {
        matches!(self.kind, RowKind::Split(_) | RowKind::OfTensor | RowKind::Fp4(fp4::Fp4::Nv { .. }))
    }

    /// True if blocks give an unbiased estimate of dot products ([`crate::Coder::score`]).
    pub fn has_estimator(&self) -> bool {
        matches!(self.kind, RowKind::Product(_))
    }

    /// The paper's bound. For rows with an estimator it is Theorem 2, on squared errors of dot products; for
    /// others Theorem 1. `None` where the paper has no bound.
    pub fn bound(&self) -> Option<f64> {
        match self.kind {
            RowKind::Scalar(_) | RowKind::Turbo { .. } => Some(theory::error_bound(self.rate())),
            // The theorem covers signs only.
            RowKind::Product(form) => (form.residual == 1).then(|| theory::dot_bound(self.rate())),
            _ => None,
        }
    }

    /// True if the row accepts another rotation than its own.
    pub fn has_rotations(&self) -> bool {
        matches!(self.kind, RowKind::Scalar(_) | RowKind::Product(_))
    }

    /// The expected |x - x^|^2 / |x|^2 for random directions. `None` where there is no formula.
    pub fn expected_error(&self, dim: usize) -> Option<f64> {
        let of = |bits, dim| theory::lloyd_max(dim, bits);
        match self.kind {
            RowKind::Scalar(form) if form.keeps_norm => {
                Some(theory::of_kept_norm(&Levels::gaussian(form.bits), dim))
            }
            RowKind::Scalar(form) => of(form.bits, dim),
            RowKind::Product(form) => {
                of(form.bits, dim).map(|error| error * theory::residual_error(form.residual, dim))
            }
            // Padding with zeros keeps the law of 128 coordinates. The error that falls on the padding is
            // lost, so such head dims have no formula.
            RowKind::Turbo { bits } => dim
                .is_multiple_of(turbo::GROUP)
                .then(|| theory::of_kept_norm(&turbo::levels(bits), turbo::GROUP)),
            RowKind::Split(form) => {
                let (wide, narrow) = (of(form.wide, dim / 2)?, of(form.narrow, dim / 2)?);
                Some((wide + narrow) / 2.0)
            }
            _ => None,
        }
    }
}
