//! The layout of a page, shared by the kernels and the host that allocates pages.
//!
//! A page holds [`SLOTS`] consecutive tokens of one sequence for every KV head. Keys and values have separate
//! pools, or one memory with a page of values after each page of keys. For one head a page holds the code bytes of all slots, then their scales. The codes of a block are
//! those of SPEC.md. Only the f16 scale is apart, so that rows start at multiples of 8 bytes and wide loads
//! can read them.
//!
//! ```text
//! pool:  page 0: [head 0][head 1]..  page 1: [head 0]..
//! pools whose pages alternate:  [keys of page 0][values of page 0][keys of page 1]..
//! head:  [codes of slot 0][codes of slot 1]..[codes of slot 63][scale 0]..[scale 63]
//! ```

use crate::threads::Threads;
use tqkv_core::code::Layout;

/// Tokens per page.
pub const SLOTS: u32 = 64;

/// The code width that stands for plain f16 rows without scales.
pub const HALF_BITS: u32 = 16;

/// The difference between the format of a trellis code and its width.
const PLANES: u32 = 32;

/// The number by which launches tell attention the layout of rows. Codecs of one layout share it.
///
/// # Panics
/// If no kernel reads the layout.
pub const fn format(layout: Layout) -> u32 {
    match layout {
        Layout::F16 => HALF_BITS,
        Layout::Dense { .. } | Layout::Bytes => layout.bits(),
        Layout::Planes(_) => PLANES + layout.bits(),
        _ => panic!("the layout has no kernels"),
    }
}

/// Code bits per coordinate of a format.
#[inline(always)]
pub const fn bits(format: u32) -> u32 {
    format % PLANES
}

/// Returns true if the format belongs to a trellis code.
#[inline(always)]
pub const fn is_trellis(format: u32) -> bool {
    format >= PLANES
}

/// Bytes of the codes of one vector.
#[inline(always)]
pub const fn row_bytes(dim: u32, bits: u32) -> u32 {
    dim * bits / 8
}

/// Returns true if rows of this width have scales.
#[inline(always)]
pub const fn has_scales(bits: u32) -> bool {
    bits != HALF_BITS
}

/// Bytes of one head in a page, a multiple of 16.
#[inline(always)]
pub const fn head_bytes(dim: u32, bits: u32) -> u32 {
    let scale = if has_scales(bits) { 2 } else { 0 };
    SLOTS * (row_bytes(dim, bits) + scale)
}

/// Offset of a slot's scale from the start of its head.
#[inline(always)]
pub const fn scale_offset(dim: u32, bits: u32, slot: u32) -> u32 {
    SLOTS * row_bytes(dim, bits) + 2 * slot
}

/// Offset of a head in a pool whose pages are `stride` bytes apart.
#[inline(always)]
pub const fn head_offset(page: u32, stride: u32, head: u32, dim: u32, bits: u32) -> u64 {
    page as u64 * stride as u64 + head as u64 * head_bytes(dim, bits) as u64
}

/// The pages of sequences, in the table of an engine. Whatever its entries are, a page that it gives is in the
/// pool.
#[derive(Clone, Copy)]
pub(crate) struct TableView<T: Threads> {
    /// `[sequences, max_pages]`, numbers of blocks.
    pub(crate) memory: T::Memory,
    pub(crate) max_pages: u32,
    /// The index of the last entry.
    pub(crate) last_entry: u32,
    /// A block has `1 << shift` pages, one after the other.
    pub(crate) shift: u32,
    /// The last page of the pool.
    pub(crate) last_page: u32,
}

impl<T: Threads> TableView<T> {
    /// The number of page `page` of a sequence.
    #[inline(always)]
    pub(crate) fn page(&self, sequence: u32, page: u32) -> u32 {
        let entry = sequence.wrapping_mul(self.max_pages).wrapping_add(page >> self.shift);
        let block = T::read(self.memory, 4 * u32::min(entry, self.last_entry));
        let within = page & ((1 << self.shift) - 1);
        u32::min(block << self.shift | within, self.last_page)
    }
}
