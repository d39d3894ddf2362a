//! Formats of others: their bytes, their errors against the mathematics, and inputs that break them.
#![allow(missing_docs, reason = "a test crate")]

mod edge;
mod figures;
mod golden;
