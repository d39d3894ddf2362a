//! The codec against its mathematics and its stored bytes: codebooks, rotation, distortion, inputs that break
//! codecs, laws.
#![allow(missing_docs, reason = "a test crate")]

mod codebooks;
mod distortion;
mod edge;
mod golden;
mod laws;
mod rotation;
