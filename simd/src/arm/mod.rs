//! Cortex-M with the DSP extension.

mod dsp;
mod dsp_loops;

pub use dsp::Dsp;
