//! Shared by the tests of all crates: inputs, exact oracles, laws for any input, and the extent of tests.
//!
//! Tests are in `tests/it/`, one file per subject. Golden files are in `vectors/`. `cargo xtask vectors`
//! writes them, and a test compares them.

pub mod files;
pub mod golden;
pub mod inputs;
pub mod laws;
pub mod oracle;
pub mod scope;

/// The code in the documents compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/tutorial.md")]
#[doc = include_str!("../../docs/maps.md")]
#[doc = include_str!("../../docs/monitor.md")]
struct Documents;
