//! Keys and values in the blocks of an engine, which owns the memory, the block tables and the lengths.
//!
//! | call | what it does |
//! | --- | --- |
//! | [`Paged::store`] | encodes tokens to places of blocks, and skips negative places |
//! | [`Paged::attend`] | attends over blocks by a block table |
//! | [`Paged::gather`] | decodes tokens of sequences |
//! | [`Pages::copy`] | copies blocks |
//!
//! This is `tqkv_gpu::paged` for main memory, with the same calls. A place is the number of a block times the tokens of a
//! block, plus the place of the token there, which engines call a slot mapping. All tokens are codes as soon as they are
//! stored. An engine may keep some of them exact as well ([`ExactTokens`]), for which [`tqkv_core::units`] has a rule. It may
//! attend to others elsewhere, and [`Paged::attend`] also gives the logarithm of the sum that it divided by.
//!
//! No number of the engine can make a call read or write outside of the memory that it was given: places and blocks that
//! are not there are skipped, and lengths are cut to the table. What a wrong number gives is attention over wrong tokens.
//!
//! Use [`crate::slots`] instead if the engine has no memory of its own, or if it wants exact tokens, means and tiers.
//!
//! The bytes of a block are arranged for the kernels of main memory, so they are not those of a block on a GPU, although
//! the codes in them are the same. [`Paged::block_bytes`] says how many there are.

mod attend;
mod pages;
mod step;
mod store;
mod task;
mod tokens;

pub use pages::Pages;
pub use step::{ExactTokens, Rule, Step};
pub use tqkv_simd::page::Line;

use crate::cache::format::{PageFormat, PageRole};
use crate::cache::spec::Arithmetic;
use crate::error::CacheError;
use crate::threads;
use tqkv_core::{AnyCodec, CodecId, KvShape, Options};
use tqkv_simd::Level;
use tqkv_simd::page::{MAX_SLOTS, SLOT_STEP};

/// Keys, or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys, which queries are scored against.
    Keys = 0,
    /// Values, which attention sums.
    Values = 1,
}

/// Heads, codecs and block size of an engine, the same in all its layers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Layout {
    /// Query heads.
    pub num_heads: usize,
    /// KV heads, which divide the query heads.
    pub num_kv_heads: usize,
    /// Coordinates of a head vector.
    pub head_dim: usize,
    /// Codec of keys.
    pub key: CodecId,
    /// Codec of values.
    pub value: CodecId,
    /// Rotation seed, scale mode, effort.
    pub options: Options,
    /// Tokens of a block: a multiple of 32 up to 512.
    pub block_tokens: usize,
}

impl Layout {
    /// 4-bit scalar codes in blocks of 128 tokens.
    pub fn new(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        let (key, value, options) = (CodecId::S4, CodecId::S4, Options::DEFAULT);
        Self { num_heads, num_kv_heads, head_dim, key, value, options, block_tokens: 128 }
    }

    /// Sets the codecs of keys and values. Keys of `m2` become `t2` and those of `m3` become `t3`, because blocks have no
    /// map.
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

    /// Sets the tokens of a block.
    #[must_use]
    pub fn block_tokens(mut self, tokens: usize) -> Self {
        self.block_tokens = tokens;
        self
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }
}

/// The work on blocks of a [`Layout`]. It holds no tokens, and costs about as much to make as a codec.
///
/// ```
/// use tqkv::CodecId;
/// use tqkv::paged::{Layout, Line, Paged, Pages, Rule, Step};
///
/// let paged = Paged::new(Layout::new(8, 2, 64).codecs(CodecId::T4, CodecId::S4).block_tokens(32))?;
/// // An engine's pool of six blocks in one layer.
/// let mut pool = vec![Line::ZERO; 6 * paged.block_lines()];
/// let mut pages = Pages::together(&paged, &mut pool[..], paged.block_lines())?;
/// // 40 tokens of a sequence that has the blocks 4 and 1.
/// let (k, v) = (vec![0.5f32; 40 * 2 * 64], vec![0.25f32; 40 * 2 * 64]);
/// let places: Vec<i64> = (0..40).map(|token| [4, 1][token / 32] * 32 + token as i64 % 32).collect();
/// assert_eq!(paged.store(&k, &v, &places, &mut pages)?, 0);
/// // Its next query.
/// let (q, mut out) = (vec![0.1f32; 8 * 64], vec![0.0f32; 8 * 64]);
/// let step = Step { table: &[4, 1], lengths: &[40], starts: &[] };
/// paged.attend(&q, &pages, &step, &Rule::default(), &mut out, None)?;
/// // The mean of equal values is one of them, but for the error of its code, about 0.0095 of the squared length.
/// let error: f32 = out.iter().map(|x| (x / 0.25 - 1.0).powi(2)).sum();
/// assert!(error < 0.02 * out.len() as f32);
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Paged {
    layout: Layout,
    /// Of keys and of values.
    formats: [PageFormat; 2],
}

impl Paged {
    /// The work of the fastest instruction set of this machine, or of the one that `TQKV_LEVEL` names.
    ///
    /// # Errors
    /// [`CacheError`]: heads, a head dim, codecs or a block size without kernels; a `TQKV_LEVEL` that this machine lacks.
    pub fn new(layout: Layout) -> Result<Self, CacheError> {
        Self::with_level(layout, Level::detect().map_err(CacheError::Level)?)
    }

    /// Same as [`Paged::new`], with this instruction set.
    ///
    /// # Errors
    /// The errors of [`Paged::new`].
    pub fn with_level(layout: Layout, level: Level) -> Result<Self, CacheError> {
        let Layout { num_heads, num_kv_heads, head_dim, block_tokens: tokens, .. } = layout;
        KvShape::new(1, num_heads, num_kv_heads, head_dim).check()?;
        if tokens == 0 || !tokens.is_multiple_of(SLOT_STEP) || tokens > MAX_SLOTS {
            return Err(CacheError::Blocks(format!(
                "blocks of {tokens} tokens are not valid: expected a multiple of {SLOT_STEP} up to {MAX_SLOTS}, because \
                 kernels read {SLOT_STEP} tokens at once"
            )));
        }
        threads::start()?;
        let format = |id: CodecId, role: PageRole| {
            let codec = AnyCodec::new(id, head_dim, layout.options);
            let codec = codec.map_err(|error| CacheError::Blocks(error.to_string()))?;
            let format = PageFormat::new(codec, role, Arithmetic::Int8, level).in_blocks(tokens);
            format.has_kernels().then_some(format).ok_or_else(|| {
                CacheError::Blocks(format!(
                    "codec {} has no kernels for blocks of head dim {head_dim}: expected one of those with integer sums",
                    id.name()
                ))
            })
        };
        Ok(Self {
            layout,
            formats: [format(layout.key, PageRole::Keys)?, format(layout.value, PageRole::Values)?],
        })
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of the keys and values of a block, a multiple of 64.
    pub fn block_bytes(&self) -> usize {
        self.block_lines() * size_of::<Line>()
    }

    /// [`Paged::block_bytes`] in lines of 64 bytes, the unit of page memory.
    pub fn block_lines(&self) -> usize {
        self.side_lines().iter().sum()
    }

    /// Lines of the keys, and of the values, of a block.
    pub fn side_lines(&self) -> [usize; 2] {
        self.formats.map(|format| format.lines() * self.layout.num_kv_heads)
    }

    fn format(&self, side: Side) -> &PageFormat {
        &self.formats[side as usize]
    }

    fn level(&self) -> Level {
        self.formats[0].level()
    }
}
