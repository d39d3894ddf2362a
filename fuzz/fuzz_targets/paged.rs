//! Takes bytes as the choices of a life of the blocks of an engine: sequences that store, share, copy and free blocks, and
//! attend in batches. Attention is that of f64, and numbers that are wrong leave no trace.
#![no_main]

#[macro_use]
mod choices;

#[path = "../../host/tests/it/paged/lives.rs"]
mod lives;

live!(lives);
