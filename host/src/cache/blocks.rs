//! Access to the encoded tokens of a cache, as the codec made them. Attention does not use it.

use super::side_of_head::SideOfHead;
use super::{Head, KvCache};
use crate::error::CacheError;
use tqkv_core::CodecId;

/// Tokens of one KV head in one codec.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoded {
    /// Codec of the blocks.
    pub codec: CodecId,
    /// Coordinates per block.
    pub dim: usize,
    /// Position of the first token.
    pub first: usize,
    /// Blocks back to back, as in a `.tqk` file.
    pub blocks: Vec<u8>,
}

impl KvCache {
    /// Blocks of the held encoded keys of a KV head, oldest first, one run per page. Centred keys are stored
    /// less their mean, and keys with a map are stored as they leave it.
    ///
    /// # Errors
    /// Layer or KV head out of range, or a page that cannot be read back.
    pub fn key_blocks(&self, layer: usize, kv_head: usize) -> Result<Vec<Encoded>, CacheError> {
        blocks(&self.head(layer, kv_head)?.keys)
    }

    /// Blocks of values, as [`KvCache::key_blocks`]. Latent vectors are both keys and values, so the result
    /// is the same.
    ///
    /// # Errors
    /// Those of [`KvCache::key_blocks`].
    pub fn value_blocks(&self, layer: usize, kv_head: usize) -> Result<Vec<Encoded>, CacheError> {
        blocks(Head::values(self.head(layer, kv_head)?))
    }
}

fn blocks(side: &SideOfHead) -> Result<Vec<Encoded>, CacheError> {
    let pages = side.pages();
    let mut runs = Vec::new();
    let mut from = pages.first();
    while from < pages.len() {
        let (run, to) = (pages.run(from)?, pages.page_end(from));
        let codec = run.format.codec();
        let blocks = run.format.read_blocks(&run.lines, 0..to - from);
        let first = side.sinks().len() + from;
        runs.push(Encoded { codec: codec.id(), dim: codec.dim(), first, blocks });
        from = to;
    }
    Ok(runs)
}
