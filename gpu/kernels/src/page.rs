//! The layout of a page, shared by the kernels and the host that allocates pages.
//!
//! A page holds [`SLOTS`] consecutive tokens of one sequence for every KV head. Keys and values have separate
//! pools. For one head it holds the code bytes of all slots, then their scales. The codes of a block are
//! those of SPEC.md. Only the f16 scale is apart, so that rows start at multiples of 8 bytes and wide loads
//! can read them.
//!
//! ```text
//! pool:  page 0: [head 0][head 1]..  page 1: [head 0]..
//! head:  [codes of slot 0][codes of slot 1]..[codes of slot 63][scale 0]..[scale 63]
//! ```

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

/// Bytes of one head in a page, a multiple of 16.
#[inline(always)]
pub const fn head_bytes(dim: u32, bits: u32) -> u32 {
    let scale = if bits == HALF_BITS { 0 } else { 2 };
    SLOTS * (row_bytes(dim, bits) + scale)
}

/// Offset of a slot's scale from the start of its head.
#[inline(always)]
pub const fn scale_offset(dim: u32, bits: u32, slot: u32) -> u32 {
    SLOTS * row_bytes(dim, bits) + 2 * slot
}

/// Offset of a head in the pool.
#[inline(always)]
pub const fn head_offset(page: u32, head: u32, num_kv_heads: u32, dim: u32, bits: u32) -> u64 {
    (page as u64 * num_kv_heads as u64 + head as u64) * head_bytes(dim, bits) as u64
}
