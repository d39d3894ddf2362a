//! The properties of a codec that the form of a block needs.

use super::codebook::Codebook;
use super::layout::Layout;
use super::scale::{Effort, ScaleMode};
use super::trellis::Trellis;

/// How a codec makes codes, and what they mean.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    /// How the bytes of its blocks lie.
    pub(crate) layout: Layout,
    /// The codebook of a scalar or nested codec.
    pub(crate) codebook: Option<&'static Codebook>,
    /// The code of a trellis codec.
    pub(crate) trellis: Option<&'static Trellis<'static>>,
    /// Sigmas in one unit of the levels.
    pub(crate) unit: f32,
    /// Which scale is stored.
    pub(crate) scale_mode: ScaleMode,
    /// How hard an encoder searches.
    pub(crate) effort: Effort,
}
