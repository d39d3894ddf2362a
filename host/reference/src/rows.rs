//! The table of formats.

use crate::format::Norm;
use crate::levels::Levels;
use crate::rotation::RotationKind::{self, Dense, DenseBf16, Hadamard};
use crate::theory;
use crate::{product, runs, scalar, split, turbo, uniform};

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
    Uniform { bits: usize },
    Floats(uniform::Floats),
    RotatedRuns,
}

/// A scalar code with an f32 norm.
const fn scalar(name: &'static str, bits: usize, is_wide: bool, rotation: RotationKind) -> Row {
    Row { name, kind: RowKind::Scalar(scalar::ScalarForm { bits, is_wide, rotation }) }
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
    scalar("tq1", 1, false, Dense),
    scalar("tq2", 2, false, Dense),
    scalar("tq3", 3, false, Dense),
    scalar("tq4", 4, false, Dense),
    scalar("tq4u8", 4, true, DenseBf16),
    Row { name: "turbo2", kind: RowKind::Turbo { bits: 2 } },
    Row { name: "turbo3", kind: RowKind::Turbo { bits: 3 } },
    Row { name: "turbo4", kind: RowKind::Turbo { bits: 4 } },
    product("turbo3k", [2, 1], Norm::F32, Hadamard),
    product("turbo4k", [3, 1], Norm::F32, Hadamard),
    scalar("turbo3v", 3, false, Hadamard),
    scalar("turbo4v", 4, false, Hadamard),
    Row { name: "c25", kind: RowKind::Split(split::SplitForm { wide: 3, narrow: 2 }) },
    Row { name: "c35", kind: RowKind::Split(split::SplitForm { wide: 4, narrow: 3 }) },
    Row { name: "u3", kind: RowKind::Uniform { bits: 3 } },
    Row { name: "u4", kind: RowKind::Uniform { bits: 4 } },
    Row { name: "u8", kind: RowKind::Uniform { bits: 8 } },
    Row { name: "f8", kind: RowKind::Floats(uniform::Floats::E4m3) },
    Row { name: "f8e5m2", kind: RowKind::Floats(uniform::Floats::E5m2) },
    Row { name: "q4_0r", kind: RowKind::RotatedRuns },
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
        let powers = |rotation| rotation != Hadamard || dim.is_power_of_two();
        let halves = tqkv_core::is_supported_head_dim(dim / 2);
        if !tqkv_core::is_supported_head_dim(dim) {
            return None;
        }
        match self.kind {
            RowKind::Scalar(form) => powers(form.rotation).then(|| form.block_bytes(dim)),
            RowKind::Product(form) => powers(form.rotation).then(|| form.block_bytes(dim)),
            RowKind::Turbo { bits } => Some(turbo::block_bytes(dim, bits)),
            RowKind::Split(form) => halves.then(|| form.block_bytes(dim)),
            RowKind::Uniform { bits } => Some(uniform::Uniform::block_bytes(dim, bits)),
            RowKind::Floats(_) => Some(uniform::Floats::block_bytes(dim)),
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
            RowKind::Turbo { bits } | RowKind::Uniform { bits } => bits as f64,
            RowKind::Split(form) => (form.wide + form.narrow) as f64 / 2.0,
            RowKind::Floats(_) => 8.0,
            RowKind::RotatedRuns => 4.0,
        }
    }

    /// True if vectors are rotated, so that errors do not depend on their contents.
    pub fn is_rotated(&self) -> bool {
        !matches!(self.kind, RowKind::Split(_) | RowKind::Uniform { .. } | RowKind::Floats(_))
    }

    /// True if channels are coded by their energy, which has to be learned ([`crate::Coder::learn`]).
    pub fn has_channels(&self) -> bool {
        matches!(self.kind, RowKind::Split(_))
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
            RowKind::Split(_) | RowKind::Uniform { .. } | RowKind::Floats(_) | RowKind::RotatedRuns => None,
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
            RowKind::Scalar(form) if form.is_wide => {
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
            RowKind::Uniform { .. } | RowKind::Floats(_) | RowKind::RotatedRuns => None,
        }
    }
}
