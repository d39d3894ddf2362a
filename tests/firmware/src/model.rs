//! The flat file in flash, and memory for a model of its shape; `cargo xtask firmware --lm` writes the file.

use tqkv_lm::Shape;
use workload::lm::shape;

/// Aligned to words, for the DSP loops.
#[repr(C, align(4))]
struct Aligned<T: ?Sized>(T);

static BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!("../target/model.tqlm"));

/// The shipped model.
pub static FILE: &[u8] = &BYTES.0;

/// Its shape.
pub const SHAPE: Shape = shape(FILE_CONST);

const FILE_CONST: &[u8] = include_bytes!("../target/model.tqlm");

/// Words that it works in.
pub const WORK_WORDS: usize = SHAPE.work_words();
