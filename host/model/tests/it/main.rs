//! The model runner: the shipped model compared with its figures, synthetic checkpoints compared with a slow
//! reference, the integer model, and errors.

mod architectures;
mod chat;
mod checkpoints;
mod coded;
mod coded_blocks;
mod configs;
mod errors;
mod eval;
mod flat;
mod gguf;
mod gguf_gemma;
mod gguf_kv;
mod kv;
mod mutants;
mod paths;
mod seeds;
mod sequences;
mod shipped;
mod sliding;
mod support;
mod tune;
mod weight_count;
mod weights;
