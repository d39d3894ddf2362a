//! [`Layout`]: heads and codecs of pages. [`Pages`] and [`BlockTable`]: where an engine keeps them.

use crate::GpuError;
use crate::formats::{accepted_codecs, accepted_head_dims};
use crate::launch::Memory;
use crate::{CODECS, HEAD_DIMS};
use cudarc::driver::sys::CUdeviceptr;
use tqkv_core::{CodecId, KvShape, Options};
use tqkv_gpu_kernels::page;

/// Most pages of a pool: places in it fit 32 bits.
pub(crate) const MOST_PAGES: usize = 1 << 26;

/// Most entries of a page table: kernels count their bytes in 32 bits.
pub(crate) const MOST_ENTRIES: usize = 1 << 29;

/// Pages begin at multiples of this, because kernels load 16 bytes at once.
const ALIGNMENT: usize = 16;

/// Heads and codecs of the pages of an engine, the same in all its layers.
///
/// ```
/// use tqkv_core::CodecId;
/// use tqkv_gpu::paged::Layout;
///
/// let layout = Layout::new(32, 8, 128).codecs(CodecId::S4, CodecId::S4);
/// // A block of 64 tokens, keys and values: 64 tokens, 8 heads, 2 x 66 bytes.
/// assert_eq!(layout.block_bytes(64)?, 64 * 8 * 2 * 66);
/// # Ok::<(), tqkv_gpu::GpuError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Layout {
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
}

impl Layout {
    /// 4-bit scalar codes.
    pub fn new(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        let (key, value, options) = (CodecId::S4, CodecId::S4, Options::DEFAULT);
        Self { num_heads, num_kv_heads, head_dim, key, value, options }
    }

    /// Sets the codecs of keys and values. Keys of `m2` become `t2` and those of `m3` become `t3`, as in
    /// [`GpuSpec::codecs`](crate::GpuSpec::codecs).
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

    /// Query heads per KV head.
    pub(crate) fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// The format numbers by which the kernels read keys and values.
    pub(crate) fn formats(&self) -> [u32; 2] {
        [self.key, self.value].map(|id| page::format(id.layout()))
    }

    /// Bytes of the keys, and of the values, of a page of 64 tokens.
    pub(crate) fn page_bytes(&self) -> [usize; 2] {
        let head = |id: CodecId| page::head_bytes(self.head_dim as u32, id.bits()) as usize;
        [self.key, self.value].map(|id| self.num_kv_heads * head(id))
    }

    /// Bytes of the keys and values of a block of `tokens` tokens.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`]: a shape without kernels, or a number of tokens that blocks cannot have.
    pub fn block_bytes(&self, tokens: usize) -> Result<usize, GpuError> {
        self.check()?;
        let [key, value] = self.page_bytes();
        Ok((key + value) << shift(tokens)?)
    }

    /// Checks that there are kernels for the layout.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    pub fn check(&self) -> Result<(), GpuError> {
        let refuse = |message: String| Err(GpuError::BadSpec(message));
        let shape = KvShape::new(1, self.num_heads, self.num_kv_heads, self.head_dim);
        if let Err(error) = shape.check() {
            return refuse(error.to_string());
        }
        if !HEAD_DIMS.contains(&self.head_dim) {
            let (dim, accepted) = (self.head_dim, accepted_head_dims());
            return refuse(format!("head dim {dim} has no kernels; expected {accepted}"));
        }
        for (side, id) in [("keys", self.key), ("values", self.value)] {
            if !CODECS.contains(&id) {
                let (name, accepted) = (id.name(), accepted_codecs());
                return refuse(format!("{side}: codec {name} has no kernels; expected {accepted}"));
            }
        }
        // A launch has a row of its grid for each head.
        if self.num_heads > 65_535 {
            return refuse(format!("num_heads: {} is too many; at most 65535", self.num_heads));
        }
        Ok(())
    }
}

/// The logarithm of the pages of a block of `tokens` tokens, to base 2.
pub(crate) fn shift(tokens: usize) -> Result<u32, GpuError> {
    let slots = page::SLOTS as usize;
    let pages = tokens / slots;
    if !tokens.is_multiple_of(slots) || !pages.is_power_of_two() || pages > 1 << 10 {
        return Err(GpuError::BadSpec(format!(
            "blocks of {tokens} tokens are not valid: expected 64, 128, 256 or another power of two up to 65536, \
             because kernels read 64 tokens at once"
        )));
    }
    Ok(pages.trailing_zeros())
}

/// One layer's blocks of keys and values, in memory that an engine owns.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    pub(super) addresses: [CUdeviceptr; 2],
    /// Bytes from a page to the next, of keys and of values.
    pub(super) strides: [u32; 2],
    /// Number of pages.
    pub(super) count: usize,
    pub(super) shift: u32,
}

impl Pages {
    /// Blocks in one memory: `blocks` blocks of `tokens` tokens, `stride` bytes apart, which is at least
    /// [`Layout::block_bytes`]. Behind the keys of 64 tokens are their values.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    ///
    /// # Safety
    /// `blocks` times `stride` bytes from `address` on are in memory of the device's context, until the device
    /// has finished all work that uses them. Nothing else writes them, except in the order of the stream.
    pub unsafe fn together(
        layout: &Layout,
        address: CUdeviceptr,
        blocks: usize,
        stride: usize,
        tokens: usize,
    ) -> Result<Self, GpuError> {
        let [key, value] = layout.page_bytes();
        let stride = Self::stride(stride, key + value, tokens)?;
        // The keys end at a multiple of 64 bytes.
        Self::new([address, address + key as CUdeviceptr], [stride; 2], blocks, tokens)
    }

    /// Blocks of keys in one memory and of values in another, each with a stride of its own.
    ///
    /// # Errors
    /// The errors of [`Pages::together`].
    ///
    /// # Safety
    /// The contract of [`Pages::together`] for each memory.
    pub unsafe fn apart(
        layout: &Layout,
        addresses: [CUdeviceptr; 2],
        blocks: usize,
        strides: [usize; 2],
        tokens: usize,
    ) -> Result<Self, GpuError> {
        let [key, value] = layout.page_bytes();
        let strides = [Self::stride(strides[0], key, tokens)?, Self::stride(strides[1], value, tokens)?];
        Self::new(addresses, strides, blocks, tokens)
    }

    /// The bytes from a page to the next, for blocks of `tokens` tokens that are `stride` bytes apart.
    fn stride(stride: usize, page_bytes: usize, tokens: usize) -> Result<u32, GpuError> {
        let shift = shift(tokens)?;
        let (of_page, least) = (stride >> shift, page_bytes << shift);
        match u32::try_from(of_page) {
            Ok(of_page) if stride >= least && stride.is_multiple_of(ALIGNMENT << shift) => Ok(of_page),
            _ => Err(GpuError::BadSpec(format!(
                "blocks that are {stride} bytes apart are not valid: expected at least {least} bytes, and a multiple of {}",
                ALIGNMENT << shift
            ))),
        }
    }

    fn new(
        addresses: [CUdeviceptr; 2],
        strides: [u32; 2],
        blocks: usize,
        tokens: usize,
    ) -> Result<Self, GpuError> {
        let shift = shift(tokens)?;
        if blocks == 0 || blocks > MOST_PAGES >> shift {
            return Err(GpuError::BadSpec(format!(
                "{blocks} blocks are not valid: expected 1 to {}",
                MOST_PAGES >> shift
            )));
        }
        if let Some(address) =
            addresses.iter().find(|address| !address.is_multiple_of(ALIGNMENT as CUdeviceptr))
        {
            return Err(GpuError::BadSpec(format!(
                "blocks at the address {address:#x} are not valid: expected a multiple of {ALIGNMENT}"
            )));
        }
        Ok(Self { addresses, strides, count: blocks << shift, shift })
    }

    pub(super) fn memory<'a>(&self) -> [Memory<'a>; 2] {
        self.addresses.map(Memory::Raw)
    }
}

/// Integers of an engine on the device, in order and without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    pub(super) bytes: usize,
}

impl Integers {
    /// `len` numbers of i32 at `address`.
    ///
    /// # Safety
    /// The contract of [`Raw::new`](crate::Raw::new).
    pub unsafe fn i32(address: CUdeviceptr, len: usize) -> Self {
        Self { address, len, bytes: 4 }
    }

    /// `len` numbers of i64 at `address`.
    ///
    /// # Safety
    /// The contract of [`Raw::new`](crate::Raw::new).
    pub unsafe fn i64(address: CUdeviceptr, len: usize) -> Self {
        Self { address, len, bytes: 8 }
    }

    /// Checks that these are at least `least` numbers of `bytes` bytes.
    pub(super) fn check(&self, what: &'static str, bytes: usize, least: usize) -> Result<(), GpuError> {
        if self.bytes != bytes {
            let [got, expected] = [self.bytes, bytes].map(|bytes| 8 * bytes);
            return Err(GpuError::BadSpec(format!("{what} of i{got} is not valid: expected i{expected}")));
        }
        if self.len < least {
            return Err(GpuError::WrongLength { what, got: self.len, expected: least });
        }
        Ok(())
    }
}

/// The blocks of sequences, `[sequences, max_blocks]` in i32. What is after the last block of a sequence is not
/// read, and may be any number.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable {
    /// The numbers of blocks.
    pub numbers: Integers,
    /// Entries of each sequence.
    pub max_blocks: usize,
}

impl BlockTable {
    pub(super) fn check(&self) -> Result<(), GpuError> {
        self.numbers.check("the block table", 4, self.max_blocks.max(1))?;
        if self.max_blocks == 0 || self.numbers.len > MOST_ENTRIES {
            return Err(GpuError::BadSpec(format!(
                "a block table of {} entries, {} of a sequence, is not valid: expected at least 1 of a sequence, and \
                 {MOST_ENTRIES} in all",
                self.numbers.len, self.max_blocks
            )));
        }
        Ok(())
    }
}
