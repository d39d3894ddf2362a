//! Calls of a program that uses only this crate, files of blocks, caches of slots, and the examples of
//! SPEC.md.

mod calls;
mod file;
mod paged;
mod slots;
mod spec;
