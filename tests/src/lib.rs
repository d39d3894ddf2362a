//! Shared by the tests of all crates: inputs, exact oracles, laws that hold of any input, and how much is
//! covered.
//!
//! Tests live in `tests/it/`, one file a subject. Golden files are in `vectors/`; `cargo xtask vectors`
//! writes them and a test compares.

pub mod golden;
pub mod inputs;
pub mod laws;
pub mod oracle;
pub mod scope;

/// The code of the documents compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tutorial.md")]
#[doc = include_str!("../../docs/monitor.md")]
struct Documents;
