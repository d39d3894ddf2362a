//! The codec tested against its mathematics and its stored bytes: codebooks, rotation, distortion, laws, and
//! inputs that break codecs.
#![allow(missing_docs, reason = "a test crate")]

mod codebooks;
mod distortion;
mod edge;
mod golden;
mod laws;
mod reference;
mod rotation;
mod units;
