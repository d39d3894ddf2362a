//! Calls of a program that has this crate alone, files of blocks, and the examples of SPEC.md.

mod calls;
mod file;
mod spec;
