//! Cortex-M with the DSP extension.

mod dsp;
mod dsp_loops;
mod dsp_sums;

pub use dsp::Dsp;
