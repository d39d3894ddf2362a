//! Measures the kernels of this machine: the engine behind `tqkv bench`, criterion and xtask.
//!
//! | file | contents |
//! | --- | --- |
//! | [`run`] (`paired.rs`) | measures cases and their baselines in alternation |
//! | [`Workload`] (`workload.rs`) | the work of one case on one thread |
//! | [`q4_0`] | the external baseline: ggml's dot product |
//! | `read.rs` | the other baseline: plain reading of memory |
//!
//! Programs that attend must not use it: libraries may not depend on it.

mod paired;
pub mod q4_0;
mod read;
mod workload;

pub use paired::{BenchError, Case, Data, Op, Outcome, Report, cpu_name, run};
pub use workload::Workload;
