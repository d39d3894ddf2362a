//! The solved numbers of a codebook.

/// Narrowest code.
pub(in crate::code) const MIN_BITS: usize = 2;

/// Widest scalar code.
pub(in crate::code) const MAX_BITS: usize = 5;

/// Widest nested code.
pub(super) const MAX_NESTED_BITS: usize = 4;

/// A solved codebook: the positive levels in units, ascending, the unit and the distortion. See [`Codebook`].
pub(super) struct Solution<'a> {
    pub(super) bytes: &'a [i8],
    pub(super) unit: f32,
    pub(super) relative_mse: f64,
}

/// The codebooks of a head dim.
pub(super) struct Solved {
    pub(super) dim: usize,
    pub(super) scalar: [Solution<'static>; MAX_BITS - MIN_BITS + 1],
    pub(super) nested: [Solution<'static>; MAX_NESTED_BITS - MIN_BITS + 1],
}
