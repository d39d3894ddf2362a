//! Stored chunks: their accuracy, their bytes, refused inputs and archives of complete caches.
#![allow(missing_docs, reason = "a test crate")]

mod archive;
mod chunks;
mod common;
mod follows;
mod golden_chunks;
mod refused;
