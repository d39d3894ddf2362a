//! A codec as a cache with a window sees it.

use tqkv::error::CacheError;

/// A codec: vectors go in, and what its codes give back comes out.
pub(crate) trait Source: std::fmt::Debug {
    /// Tokens of a full group, which are coded together.
    fn group(&self) -> usize {
        1
    }

    /// Learns from the first tokens of a layer, keys and values of `[n, num_kv_heads, dim]`.
    fn learn(&mut self, _layer: usize, _first: [&[f32]; 2]) {}

    /// Replaces rows of a layer's KV head, keys (side 0) or values (1), by what the codec gives back. Returns the bytes
    /// of their codes.
    fn pass(
        &mut self,
        side: usize,
        place: (usize, usize),
        rows: &mut [f32],
        dim: usize,
    ) -> Result<usize, CacheError>;
}
