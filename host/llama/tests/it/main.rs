//! Tests of the back end. Those beside stock libraries of llama.cpp need:
//!
//! | variable | holds |
//! | --- | --- |
//! | `TQKV_LLAMA_LIBS` | folder of `libllama`, `libggml` and the CPU's back ends (npm `@node-llama-cpp/linux-x64`, `bins/linux-x64`) |
//! | `TQKV_LLAMA_HEADERS` | folders `llama.cpp` of the crate `llama-cpp-sys-2`, of each interface version, a colon between |
//! | `TQKV_LLAMA_MODEL` | a GGUF file |
//!
//! Without them they say so and pass; with `TQKV_REQUIRE_TOOLS` they fail.

mod cache;
mod layout;
mod programs;
mod tools;
