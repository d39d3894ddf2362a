//! States by hand, in every layout that llama.cpp writes.
#![allow(missing_docs, reason = "tests")]

mod basis;
mod common;
mod damaged;
mod golden;
mod layouts;
mod memory;
mod packs;
mod seeds;
mod stock;
