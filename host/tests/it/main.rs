//! Files of blocks, and the examples of SPEC.md.

mod file;
mod spec;
