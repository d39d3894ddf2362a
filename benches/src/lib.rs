//! How fast the kernels of this machine are: the engine behind `tqkv bench`, criterion and xtask.
//!
//! | file | what |
//! | --- | --- |
//! | [`Case`] (`case.rs`) | what can be measured |
//! | [`run`] (`paired.rs`) | cases against their baselines, sampled in turns |
//! | [`Workload`] (`workload.rs`) | the work of one case on one thread |
//! | [`q4_0`] | the baseline from outside: ggml's dot product |
//! | `read.rs` | the other one: plain reading of memory |
//!
//! Not for use in a program that attends, and no library depends on it. It is published because the command
//! needs it.

mod case;
mod paired;
pub mod q4_0;
mod read;
mod workload;

pub use case::{BenchError, Case, Data, Op};
pub use paired::{Outcome, Report, cpu_name, run};
pub use workload::Workload;
