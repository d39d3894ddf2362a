//! The model runner: the shipped model against its figures, synthetic checkpoints against a slow reference,
//! the integer model, errors.

mod architectures;
mod chat;
mod checkpoints;
mod configs;
mod errors;
mod eval;
mod flat;
mod gguf;
mod gguf_gemma;
mod mutants;
mod paths;
mod seeds;
mod sequences;
mod shipped;
mod sliding;
mod support;
mod weights;
