//! Stored chunks: how near they come back, their bytes, what is refused, whole caches put away.
#![allow(missing_docs, reason = "a test crate")]

mod archive;
mod chunks;
mod common;
mod golden_chunks;
mod refused;
