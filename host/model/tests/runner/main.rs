//! The model runner: the shipped model against its figures, synthetic checkpoints against a slow reference, errors.

mod chat;
mod checkpoints;
mod errors;
mod gguf;
mod mutants;
mod paths;
mod sequences;
mod shipped;
mod sliding;
mod support;
