//! The header of a `.tqk` file, and the layout that follows from it.

use std::ops::Range;

use tqkv_core::{AnyCodec, CodecId, Options, ScaleMode};

use super::FileError;
use super::layout::{CHUNK_HEAD, CRC, FIXED_HEADER, FLAG_MEAN, MAGIC, MAX_CHUNK_PAYLOAD, VERSION, le};

/// Payload per chunk that [`Header::new`] aims at. Large chunks stream well; small chunks keep the check at
/// random access cheap.
const TARGET_CHUNK_PAYLOAD: usize = 1 << 18;

/// Upper bound of the bytes of a header.
#[cfg(feature = "object-store")]
pub(super) const MAX_HEADER: usize = FIXED_HEADER + 4 * tqkv_core::MAX_HEAD_DIM + CRC;

/// The description of the blocks in a `.tqk` file.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The codec of every block.
    pub codec: CodecId,
    /// The way in which scales were chosen. All modes decode alike, so this is only information.
    pub scale_mode: ScaleMode,
    /// Coordinates per vector.
    pub dim: usize,
    /// Number of blocks.
    pub count: u64,
    /// Seed of the rotation signs.
    pub seed: u64,
    /// Blocks in every chunk but the last, which may have fewer.
    pub blocks_per_chunk: u32,
    /// The vector `mu`, `[dim]`, that was subtracted before encoding and is added after decoding.
    pub mean: Option<Vec<f32>>,
}

impl Header {
    /// Makes a header for blocks of `codec`, with count 0 and chunks of about 256 KiB.
    pub fn new(codec: &AnyCodec, mean: Option<Vec<f32>>) -> Self {
        let Options { seed, scale_mode, .. } = codec.options();
        let blocks = (TARGET_CHUNK_PAYLOAD / codec.block_bytes()).max(1);
        Self {
            codec: codec.id(),
            scale_mode,
            dim: codec.dim(),
            count: 0,
            seed,
            blocks_per_chunk: u32::try_from(blocks).unwrap_or(u32::MAX),
            mean,
        }
    }

    /// The codec that decodes the blocks.
    ///
    /// # Errors
    /// [`FileError::UnsupportedHeadDim`].
    pub fn codec(&self) -> Result<AnyCodec, FileError> {
        let options = Options::DEFAULT.seed(self.seed).scale_mode(self.scale_mode);
        AnyCodec::new(self.codec, self.dim, options).map_err(|source| FileError::UnsupportedHeadDim {
            codec: self.codec,
            dim: self.dim,
            source,
        })
    }

    /// Number of chunks.
    pub(super) fn num_chunks(&self) -> u64 {
        self.count.div_ceil(u64::from(self.blocks_per_chunk).max(1))
    }

    /// Bytes of the header in the file, with its CRC-32.
    pub fn byte_len(&self) -> usize {
        FIXED_HEADER + self.mean.as_ref().map_or(0, |mean| 4 * mean.len()) + CRC
    }

    /// Bytes of the whole file. It is a u128, so the count of a hostile header cannot overflow it.
    pub(super) fn file_len(&self, block_bytes: usize) -> u128 {
        self.byte_len() as u128
            + u128::from(self.num_chunks()) * (CHUNK_HEAD + CRC) as u128
            + u128::from(self.count) * block_bytes as u128
    }

    /// The byte range of chunk `chunk`, which must exist, in a file whose length is known to fit.
    pub(super) fn chunk_range(&self, chunk: u64, block_bytes: usize) -> Range<u64> {
        let bytes = |blocks: usize| (CHUNK_HEAD + blocks * block_bytes + CRC) as u64;
        let start = self.byte_len() as u64 + chunk * bytes(self.blocks_per_chunk as usize);
        start..start + bytes(self.blocks_in(chunk))
    }

    /// Number of blocks in chunk `chunk`; 0 after the last one.
    pub(super) fn blocks_in(&self, chunk: u64) -> usize {
        let per = u64::from(self.blocks_per_chunk);
        let before = chunk.saturating_mul(per);
        self.count.saturating_sub(before).min(per) as usize
    }

    /// Checks everything but the CRC. Returns the bytes per block.
    pub(super) fn check(&self) -> Result<usize, FileError> {
        let block_bytes = self.codec()?.block_bytes();
        let payload = (self.blocks_per_chunk as usize).checked_mul(block_bytes);
        if self.blocks_per_chunk == 0 || payload.is_none_or(|bytes| bytes > MAX_CHUNK_PAYLOAD) {
            return Err(FileError::ChunkSize { blocks: self.blocks_per_chunk, block_bytes });
        }
        if let Some(mean) = &self.mean {
            if mean.len() != self.dim {
                return Err(FileError::InconsistentHeader("mean and head dim differ"));
            }
            if mean.iter().any(|m| !m.is_finite()) {
                return Err(FileError::NonFiniteMean);
            }
        }
        Ok(block_bytes)
    }

    /// The header's bytes.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, FileError> {
        let block_bytes = self.check()?;
        // `check` passed, so dim <= 1024 and a block is far below 4 GiB. The casts keep the value.
        let mut bytes = Vec::with_capacity(self.byte_len());
        let flags = if self.mean.is_some() { FLAG_MEAN } else { 0 };
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend((self.byte_len() as u32).to_le_bytes());
        bytes.push(self.codec.code());
        bytes.push(self.scale_mode.code());
        bytes.extend((self.dim as u16).to_le_bytes());
        bytes.extend((block_bytes as u32).to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend(self.blocks_per_chunk.to_le_bytes());
        for m in self.mean.iter().flatten() {
            bytes.extend(m.to_le_bytes());
        }
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Length of the header, from its first [`FIXED_HEADER`] bytes. Refuses other formats and versions, so
    /// that a reader never reads more than 4 KiB for a header.
    pub(super) fn announced_len(fixed: &[u8; FIXED_HEADER]) -> Result<usize, FileError> {
        if fixed[..8] != MAGIC {
            return Err(FileError::BadMagic);
        }
        let version = le!(u16, fixed, 8);
        if version != VERSION {
            return Err(FileError::UnsupportedVersion(version));
        }
        let flags = le!(u16, fixed, 10);
        if flags & !FLAG_MEAN != 0 {
            return Err(FileError::UnknownFlags(flags));
        }
        let dim = usize::from(le!(u16, fixed, 18));
        let mean = if flags & FLAG_MEAN != 0 { 4 * dim } else { 0 };
        let expected = FIXED_HEADER + mean + CRC;
        if le!(u32, fixed, 12) as usize != expected {
            return Err(FileError::InconsistentHeader(
                "header length does not fit the flags and the head dim",
            ));
        }
        Ok(expected)
    }

    /// Parses a header of the length that [`Self::announced_len`] returned. Also returns the bytes per block.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<(Self, usize), FileError> {
        let body = bytes.len() - CRC;
        if crc32fast::hash(&bytes[..body]) != le!(u32, bytes, body) {
            return Err(FileError::HeaderCrc);
        }
        let codec = CodecId::from_code(bytes[16]).ok_or(FileError::UnknownCodec(bytes[16]))?;
        let scale_mode = ScaleMode::from_code(bytes[17]).ok_or(FileError::UnknownScaleMode(bytes[17]))?;
        let mean = (le!(u16, bytes, 10) & FLAG_MEAN != 0).then(|| {
            let raw = bytes[FIXED_HEADER..body].chunks_exact(4);
            raw.map(|m| f32::from_le_bytes([m[0], m[1], m[2], m[3]])).collect()
        });
        let header = Self {
            codec,
            scale_mode,
            dim: usize::from(le!(u16, bytes, 18)),
            count: le!(u64, bytes, 24),
            seed: le!(u64, bytes, 32),
            blocks_per_chunk: le!(u32, bytes, 40),
            mean,
        };
        let block_bytes = header.check()?;
        if le!(u32, bytes, 20) as usize != block_bytes {
            return Err(FileError::InconsistentHeader(
                "bytes per block do not fit the codec and the head dim",
            ));
        }
        Ok((header, block_bytes))
    }
}
