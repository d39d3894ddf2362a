//! The blocks of a life, in memory of the program.

use std::ffi::CString;
use std::ptr::null_mut;
use tqkv::paged::Line;
use tqkv_capi::*;

/// Blocks of the memory, and tokens of each.
pub(super) const BLOCKS: usize = 5;
pub(super) const BLOCK_TOKENS: usize = 32;

/// The work on blocks, and their memory.
pub(super) struct Blocks {
    pub(super) paged: *mut TqkvPaged,
    memory: Vec<Line>,
    /// Bytes of a block.
    pub(super) stride: usize,
}

impl Blocks {
    pub(super) fn new(shape: &str) -> Self {
        let spec = CString::new(format!("{shape} t4,s4")).expect("a text");
        let (mut paged, [mut keys, mut values]) = (null_mut(), [0; 2]);
        // SAFETY: the text ends with a zero, and the places can be written.
        unsafe {
            assert_eq!(tqkv_paged_create(spec.as_ptr(), BLOCK_TOKENS, &raw mut paged), TqkvStatus::TqkvOk);
            assert_eq!(tqkv_paged_block_bytes(paged, &raw mut keys, &raw mut values), TqkvStatus::TqkvOk);
        }
        let stride = keys + values;
        Self { paged, memory: vec![Line::ZERO; BLOCKS * stride / size_of::<Line>()], stride }
    }

    /// All of the memory.
    pub(super) fn pages(&mut self) -> TqkvPages {
        TqkvPages {
            memory: self.memory.as_mut_ptr().cast(),
            bytes: size_of_val(&self.memory[..]),
            stride: self.stride,
            values: null_mut(),
            values_bytes: 0,
            values_stride: 0,
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: made once, and freed once.
        unsafe { tqkv_paged_free(self.paged) }
    }
}
