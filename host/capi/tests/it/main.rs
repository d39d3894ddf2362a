//! The C interface as a C program calls it, complete states of caches, and the headers.
#![allow(missing_docs, reason = "a test crate")]

mod abi;
mod attend;
mod common;
mod header;
mod misuse;
mod paged;
mod random;
#[cfg(feature = "session")]
mod session;
mod slots;
mod state;
