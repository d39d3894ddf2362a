//! The flat file in flash, and memory for a model of its shape. `cargo xtask firmware --lm` writes the file.

use tqkv_lm::Shape;
use workload::lm::shape;

#[cfg(not(feature = "four"))]
macro_rules! file {
    () => {
        include_bytes!("../../target/model.tqlm")
    };
}

#[cfg(feature = "four")]
macro_rules! file {
    () => {
        include_bytes!("../../target/model4.tqlm")
    };
}

/// Aligned to words, for the loops of [`workload::FASTEST`].
#[repr(C, align(4))]
struct Aligned<T: ?Sized>(T);

// It has a separate section, because a memory map may have a place for it.
#[unsafe(link_section = ".rodata.model")]
static BYTES: Aligned<[u8; FILE_CONST.len()]> = Aligned(*file!());

/// The shipped model.
pub static FILE: &[u8] = &BYTES.0;

/// The shape of the shipped model.
pub const SHAPE: Shape = shape(FILE_CONST);

const FILE_CONST: &[u8] = file!();

/// Words of working memory for the shipped model.
pub const WORK_WORDS: usize = SHAPE.work_words();
