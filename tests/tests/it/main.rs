//! Tests across crates: caches against plain models of them, trellis codes, the documents and the workspace.
#![allow(missing_docs, reason = "a test crate")]

mod cache;
mod cache_accepted;
mod cache_kinds;
mod cache_life;
mod cache_memory;
mod cache_model;
mod cache_ring;
mod cache_shapes;
mod card;
mod circles;
mod documents;
mod lives;
mod prose;
mod publish;
mod quarters;
mod surface;
mod trellis;
mod workspace;
