//! Tests across crates: caches against plain models of them, and trellis codes.
#![allow(missing_docs, reason = "a test crate")]

mod cache;
mod cache_accepted;
mod cache_bytes;
mod cache_kinds;
mod cache_large_pairs;
mod cache_life;
mod cache_memory;
mod cache_model;
mod cache_narrowing;
mod cache_ring;
mod cache_selected;
mod cache_shapes;
mod cache_values;
mod lives;
mod quarters;
mod token_page;
mod trellis;
