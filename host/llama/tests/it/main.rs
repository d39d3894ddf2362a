//! Tests of the back end. Tests with stock libraries of llama.cpp need these variables:
//!
//! | variable | holds |
//! | --- | --- |
//! | `TQKV_LLAMA_LIBS` | folders of `libllama`, `libggml` and the CPU's back ends, a colon between (1) |
//! | `TQKV_LLAMA_HEADERS` | one folder of headers per interface version, a colon between (2) |
//! | `TQKV_LLAMA_MODEL` | a GGUF file |
//!
//! 1. `bins/linux-x64` of the npm package `@node-llama-cpp/linux-x64`. Tests run on the first
//!    folder, and those of refusals on all. A folder may have its own headers in `include`, and a
//!    C library with `ld-linux-x86-64.so.2`.
//! 2. `llama.cpp` of the crate `llama-cpp-sys-2`.
//!
//! A test that misses a variable says so and passes. With `TQKV_REQUIRE_LLAMA` it fails.

mod declared;
mod families;
mod layout;
mod programs;
mod recurrent;
mod refusals;
mod states;
mod tools;
