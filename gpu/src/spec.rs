//! [`GpuSpec`]: shape and codecs of a cache, and the limits of the kernels.

use crate::GpuError;
use crate::exact::ExactWindow;
use crate::paged::{Layout, MOST_ENTRIES, MOST_PAGES};
use crate::pages::SLOTS;
use tqkv_core::{CodecId, KvShape, Options, life};
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::viterbi::workspace_bytes;

pub use tqkv_gpu_kernels::codecs::{CODECS, HEAD_DIMS};

/// Most tokens of one call. Launches count vectors in 32 bits, and lists of tokens stay small.
pub const MAX_CHUNK: usize = 65_535;

/// Most vectors of one launch of trellis encoders. Each vector needs workspace; this number is several times
/// the vectors that a device encodes at once.
pub(crate) const TRELLIS_VECTORS: usize = 1 << 14;

/// Shape and codecs of a [`crate::GpuCache`].
///
/// ```
/// use tqkv_core::CodecId;
/// use tqkv_gpu::GpuSpec;
///
/// let spec = GpuSpec::new(32, 32, 8, 128).codecs(CodecId::S4, CodecId::S3).sequences(64, 32_768);
/// assert_eq!(spec.pool_bytes()?, 32 * 64 * 32_768 * 8 * (66 + 50));
/// assert_eq!(spec.exact_bytes(), 32 * 64 * 192 * 8 * (256 + 256));
/// # Ok::<(), tqkv_gpu::GpuError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GpuSpec {
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Coordinates of a head vector: one of [`HEAD_DIMS`].
    pub head_dim: usize,
    /// Codec of keys: one of [`CODECS`].
    pub key: CodecId,
    /// Codec of values: one of [`CODECS`].
    pub value: CodecId,
    /// Rotation seed, scale mode, effort.
    pub options: Options,
    /// Number of first tokens of a sequence that attention reads as f16.
    pub sinks: usize,
    /// Number of newest tokens that attention reads as f16.
    pub hot: usize,
    /// Number of sequences.
    pub num_sequences: usize,
    /// Most tokens of one sequence.
    pub max_tokens: usize,
    /// Tokens of all sequences together for which the pool has pages.
    pub pool_tokens: usize,
}

impl GpuSpec {
    /// 4-bit scalar codes, the first 4 tokens and the newest 64 in f16, and one sequence of up to 4096 tokens.
    pub fn new(num_layers: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            key: CodecId::S4,
            value: CodecId::S4,
            options: Options::DEFAULT,
            sinks: life::SINKS,
            hot: life::HOT,
            num_sequences: 1,
            max_tokens: 4096,
            pool_tokens: 4096,
        }
    }

    /// Sets the codecs of keys and values. No cache on a GPU has maps, so keys of `m2` become `t2` and those
    /// of `m3` become `t3`, which take as many bytes.
    #[must_use]
    pub fn codecs(mut self, key: CodecId, value: CodecId) -> Self {
        (self.key, self.value) = (key.of_one_width(), value);
        self
    }

    /// Sets seed, scale mode and effort.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the number of first tokens and of newest tokens of a sequence that attention reads as they were given,
    /// rounded to f16 once they are rotated. Their rows take memory besides the pool, and attention one more launch.
    /// With `exact(0, 0)` there are only codes.
    #[must_use]
    pub fn exact(mut self, sinks: usize, hot: usize) -> Self {
        (self.sinks, self.hot) = (sinks, hot);
        self
    }

    /// Sets the number of sequences and the tokens of each. The pool gets room for all of them at full
    /// length.
    #[must_use]
    pub fn sequences(mut self, num_sequences: usize, max_tokens: usize) -> Self {
        (self.num_sequences, self.max_tokens) = (num_sequences, max_tokens);
        self.pool_tokens = num_sequences.saturating_mul(max_tokens);
        self
    }

    /// Sets the number of tokens of the pool, if not every sequence will be full.
    #[must_use]
    pub fn pool_tokens(mut self, tokens: usize) -> Self {
        self.pool_tokens = tokens;
        self
    }

    /// Layers, heads, head dim.
    pub const fn shape(&self) -> KvShape {
        KvShape::new(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)
    }

    /// Heads and codecs.
    pub(crate) fn layout(&self) -> Layout {
        let Self { num_heads, num_kv_heads, head_dim, key, value, options, .. } = *self;
        Layout { num_heads, num_kv_heads, head_dim, key, value, options }
    }

    /// Pages of the pool.
    pub(crate) fn pages(&self) -> usize {
        self.pool_tokens.div_ceil(SLOTS)
    }

    /// Most pages of one sequence.
    pub(crate) fn max_pages(&self) -> usize {
        self.max_tokens.div_ceil(SLOTS)
    }

    /// The exact tokens of a sequence.
    pub(crate) fn kept(&self) -> ExactWindow {
        ExactWindow::new(self.sinks, self.hot, self.max_tokens)
    }

    /// Bytes of a page of f16 rows of keys or values.
    pub(crate) fn exact_page_bytes(&self) -> usize {
        self.num_kv_heads * page::head_bytes(self.head_dim as u32, page::HALF_BITS) as usize
    }

    /// Bytes of device memory for the f16 rows of all layers. Each sequence has whole pages of 64 tokens: those of
    /// the first tokens, and those of the newest and 63 more. With 4 and 64 it is three pages.
    pub fn exact_bytes(&self) -> usize {
        2 * self.num_layers * self.num_sequences * self.kept().pages() * self.exact_page_bytes()
    }

    /// Bytes of one layer's keys or values.
    pub(crate) fn side_bytes(&self, codec: CodecId) -> usize {
        self.pages() * self.num_kv_heads * page::head_bytes(self.head_dim as u32, codec.bits()) as usize
    }

    /// Bytes of device memory for the codes of keys and values of all layers.
    ///
    /// # Errors
    /// The errors of [`GpuSpec::check`].
    pub fn pool_bytes(&self) -> Result<usize, GpuError> {
        self.check()?;
        Ok(self.num_layers * (self.side_bytes(self.key) + self.side_bytes(self.value)))
    }

    /// Bytes of device memory that encoding needs in addition to the pool. Scalar codes need none. Trellis
    /// codes need 48 bytes per coordinate of a launch's vectors, which is 100 MB at head dim 128.
    pub fn workspace_bytes(&self) -> usize {
        self.side_workspace(self.key) + self.side_workspace(self.value)
    }

    /// The workspace of keys or values. Both are encoded at the same time, so each has its own.
    pub(crate) fn side_workspace(&self, codec: CodecId) -> usize {
        let vectors = self.tokens_a_launch() * self.num_kv_heads;
        if codec.trellis().is_some() { vectors * workspace_bytes(self.head_dim as u32) as usize } else { 0 }
    }

    /// Most tokens whose keys and values one launch encodes. It is at most the tokens of the pool.
    pub(crate) fn tokens_a_launch(&self) -> usize {
        let sides = [self.key, self.value].iter().filter(|id| id.trellis().is_some()).count();
        let most = TRELLIS_VECTORS.checked_div(sides * self.num_kv_heads).unwrap_or(MAX_CHUNK);
        most.max(1).min(self.pool_tokens)
    }

    /// Checks that a cache can be built. It needs no device.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    pub fn check(&self) -> Result<(), GpuError> {
        let refuse = |message: String| Err(GpuError::BadSpec(message));
        if let Err(error) = self.shape().check() {
            return refuse(error.to_string());
        }
        let counts = [
            ("num_sequences", self.num_sequences),
            ("max_tokens", self.max_tokens),
            ("pool_tokens", self.pool_tokens),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return refuse(format!("{name} is 0; it must be at least 1"));
        }
        self.layout().check()?;
        // Launch grids and 32-bit indices bound the counts. All limits are far above the counts that fit in
        // memory.
        let exact = self.kept();
        let limits = [
            ("num_sequences", self.num_sequences, 65_535),
            ("max_tokens", self.max_tokens, 1 << 30),
            ("pages of exact tokens", self.num_sequences.saturating_mul(exact.pages()), MOST_PAGES),
            // The merge counts the bytes of a row's parts in 32 bits, and exact tokens have some of these.
            ("num_heads with exact tokens", if exact.pages() > 0 { self.num_heads } else { 0 }, 8_000),
            ("pages of the pool", self.pages(), MOST_PAGES),
            ("page table entries", self.num_sequences.saturating_mul(self.max_pages()), MOST_ENTRIES),
        ];
        if let Some((name, count, limit)) = limits.iter().find(|(_, count, limit)| count > limit) {
            return refuse(format!("{name}: {count} is too many; at most {limit}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_kernel_is_named_with_what_has() {
        let good = GpuSpec::new(2, 8, 2, 128);
        good.check().unwrap();
        let message = |spec: GpuSpec| spec.check().unwrap_err().to_string();
        assert_eq!(
            message(GpuSpec { head_dim: 96, ..good.clone() }),
            "head dim 96 has no kernels; expected 64, 128, 256"
        );
        assert_eq!(
            message(good.clone().codecs(CodecId::S4, CodecId::F16)),
            "values: codec f16 has no kernels; expected s2, s3, s4, i8, t2, t3, t4"
        );
        for id in [CodecId::N2, CodecId::N3, CodecId::N4] {
            let said = message(good.clone().codecs(id, CodecId::S4));
            assert!(
                said.starts_with(&format!("keys: codec {} has no kernels; expected s2", id.name())),
                "{said}"
            );
        }
        assert_eq!(
            message(GpuSpec { num_kv_heads: 3, ..good.clone() }),
            "8 query heads do not divide among 3 KV heads"
        );
        assert_eq!(message(good.clone().sequences(0, 10)), "num_sequences is 0; it must be at least 1");
        assert!(message(good.clone().sequences(70_000, 10)).contains("at most 65535"));
        assert!(message(good.sequences(1, usize::MAX)).contains("too many"));
    }

    #[test]
    fn a_trellis_code_on_either_side_needs_workspace_for_whole_tokens() {
        let spec = GpuSpec::new(1, 24, 12, 128);
        assert_eq!(spec.workspace_bytes(), 0);
        for (key, value) in [(CodecId::S4, CodecId::T2), (CodecId::T4, CodecId::S4)] {
            let spec = spec.clone().codecs(key, value);
            assert_eq!(spec.tokens_a_launch(), 16_380 / 12);
            assert_eq!(spec.workspace_bytes(), 16_380 * 48 * 128);
        }
        let both = spec.clone().codecs(CodecId::T3, CodecId::T2);
        assert_eq!((both.tokens_a_launch(), both.workspace_bytes()), (682, 2 * 682 * 12 * 48 * 128));
        let wide = GpuSpec::new(1, 1 << 15, 1 << 15, 64).codecs(CodecId::T4, CodecId::T4);
        assert_eq!(wide.tokens_a_launch(), 1, "one token at least");
        assert_eq!(both.sequences(1, 10).tokens_a_launch(), 10, "no more than can ever be appended");
        assert_eq!(spec.tokens_a_launch(), 4096, "scalar codes need none");
    }

    #[test]
    fn the_pool_is_as_large_as_its_pages() {
        let spec = GpuSpec::new(3, 4, 2, 64).codecs(CodecId::S2, CodecId::I8).sequences(2, 65);
        // 130 tokens need 3 pages of 64, and a sequence has up to 2.
        assert_eq!((spec.pages(), spec.max_pages()), (3, 2));
        assert_eq!(spec.pool_bytes().unwrap(), 3 * 3 * 64 * 2 * (18 + 66));
        for id in CODECS {
            for dim in HEAD_DIMS {
                GpuSpec { head_dim: dim, ..spec.clone() }.codecs(id, id).check().unwrap();
            }
        }
    }
}
