//! Shared by the cross-crate tests: inputs, exact oracles, and laws that hold of any input.
//!
//! Tests live in `tests/`, one file a subject. Golden files are in `vectors/`; `cargo xtask vectors` writes
//! them and a test compares.

pub mod golden;
pub mod inputs;
pub mod laws;
pub mod oracle;

/// The code of the documents compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tutorial.md")]
#[doc = include_str!("../../docs/monitor.md")]
struct Documents;
