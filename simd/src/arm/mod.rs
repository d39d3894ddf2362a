//! Cortex-M with the DSP extension, or with Helium.

mod dsp;
mod dsp_loops;
mod dsp_sums;
#[cfg(feature = "helium")]
mod helium;
mod products;

pub use dsp::Dsp;
#[cfg(feature = "helium")]
pub use helium::Helium;
