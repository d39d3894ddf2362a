//! A back end of ggml that owns only the KV cache.
//!
//! Stock builds of llama.cpp with loadable back ends load it by `GGML_BACKEND_PATH`. Its device takes the
//! cache of every layer, holds it in codes and attends to the codes. Weights stay with the CPU. README.md
//! next to this folder is the guide for users.

pub mod abi;
mod backend;
mod buffer;
mod copies;
pub mod declared;
mod device;
pub mod host;
mod layers;
pub mod options;
mod os;
mod policy;
mod rotate;
mod said;
mod serve;
mod settings;
mod sinks;
mod states;
mod tensor;
mod threads;

pub use device::ggml_backend_init;
