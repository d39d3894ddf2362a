//! Calls of a program that uses only this crate, files of blocks, and the examples of SPEC.md.

mod calls;
mod file;
mod spec;
