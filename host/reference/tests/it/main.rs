//! Formats of other programs: their bytes, their errors compared with theory, and inputs that break them.
#![allow(missing_docs, reason = "a test crate")]

mod edge;
mod figures;
mod golden;
