//! Pages: runs of encoded tokens of one KV head, and the store that holds them in order.

use super::level;
use super::spill::{SpillFile, Spilled};
use crate::error::CacheError;
use std::collections::VecDeque;
use tqkv_core::{AnyCodec, EncodeError, Family, Options, ScaleMode, demote};

/// Tokens a full page holds.
pub(super) const PAGE_TOKENS: usize = 128;

/// Where the blocks of a page are.
#[derive(Clone, Debug)]
enum Bytes {
    Memory(Vec<u8>),
    Spilled(Spilled),
}

/// Up to [`PAGE_TOKENS`] blocks of one codec, back to back.
#[derive(Clone, Debug)]
pub(super) struct Page {
    bytes: Bytes,
    cold: bool,
}

impl Page {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes,
            Bytes::Spilled(spilled) => spilled.bytes(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.capacity(),
            Bytes::Spilled(_) => 0,
        }
    }
}

/// What happens to pages that go cold.
#[derive(Clone, Debug)]
pub(super) enum ColdStore {
    Demote(Box<AnyCodec>),
    Spill(SpillFile),
}

/// All encoded tokens of one head's keys (or values), oldest first.
///
/// Every page but the last is full, so token `i` is block `i % PAGE_TOKENS` of page
/// `i / PAGE_TOKENS`. Pages that were evicted leave a hole at the front.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    codec: AnyCodec,
    cold: Option<ColdStore>,
    pages: VecDeque<Page>,
    /// Pages evicted from the front.
    evicted: usize,
    /// Tokens, evicted ones included.
    len: usize,
}

impl Pages {
    pub(super) fn new(codec: AnyCodec, cold: Option<ColdStore>) -> Self {
        Self { codec, cold, pages: VecDeque::new(), evicted: 0, len: 0 }
    }

    pub(super) fn codec(&self) -> &AnyCodec {
        &self.codec
    }

    /// Tokens, evicted ones included.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Index of the first token that is still there.
    pub(super) fn first(&self) -> usize {
        (self.evicted * PAGE_TOKENS).min(self.len)
    }

    /// Encodes one vector at the end.
    pub(super) fn push(&mut self, x: &[f32]) -> Result<(), CacheError> {
        let block_bytes = self.codec.block_bytes();
        let mut block = vec![0; block_bytes];
        encode(&self.codec, x, &mut block)?;
        if self.len.is_multiple_of(PAGE_TOKENS) {
            let bytes = Bytes::Memory(Vec::with_capacity(PAGE_TOKENS * block_bytes));
            self.pages.push_back(Page { bytes, cold: false });
        }
        if let Some(Page { bytes: Bytes::Memory(bytes), .. }) = self.pages.back_mut() {
            bytes.extend_from_slice(&block);
        }
        self.len += 1;
        Ok(())
    }

    /// Drops tokens from index `len` on. A cold page that is cut in the middle is brought back to
    /// the warm codec, so that new tokens can follow.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        if len >= self.len {
            return Ok(());
        }
        self.pages.truncate((len.div_ceil(PAGE_TOKENS)).saturating_sub(self.evicted));
        let kept = len % PAGE_TOKENS;
        let cold_codec = self.cold_codec();
        if kept > 0
            && let Some(page) = self.pages.back_mut()
        {
            let codec = if page.cold { cold_codec } else { self.codec };
            let mut bytes = page.bytes()[..kept * codec.block_bytes()].to_vec();
            if codec.id() != self.codec.id() {
                bytes = transcode(&codec, &bytes, &self.codec)?;
            }
            bytes.reserve_exact(PAGE_TOKENS * self.codec.block_bytes() - bytes.len());
            *page = Page { bytes: Bytes::Memory(bytes), cold: false };
        }
        self.len = len;
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
        (self.evicted, self.len) = (0, 0);
    }

    /// Frees the pages that end at or before token `first`.
    pub(super) fn evict_before(&mut self, first: usize) {
        while (self.evicted + 1) * PAGE_TOKENS <= first.min(self.len) && self.pages.pop_front().is_some() {
            self.evicted += 1;
        }
    }

    /// Sends the full pages that end at or before token `before` to the cold tier.
    pub(super) fn cool_before(&mut self, before: usize) -> Result<(), CacheError> {
        let Some(cold) = &self.cold else { return Ok(()) };
        for (i, page) in self.pages.iter_mut().enumerate() {
            if (self.evicted + i + 1) * PAGE_TOKENS > before.min(self.len) {
                break;
            }
            if page.cold {
                continue;
            }
            let bytes = match cold {
                ColdStore::Demote(to) => Bytes::Memory(transcode(&self.codec, page.bytes(), to)?),
                ColdStore::Spill(file) => Bytes::Spilled(
                    file.append(page.bytes()).map_err(|error| CacheError::Spill(error.to_string()))?,
                ),
            };
            *page = Page { bytes, cold: true };
        }
        Ok(())
    }

    /// Codec of cold pages; differs from the warm one only where pages are demoted.
    fn cold_codec(&self) -> AnyCodec {
        match &self.cold {
            Some(ColdStore::Demote(codec)) => **codec,
            _ => self.codec,
        }
    }

    /// The runs of blocks that hold tokens `from..to` (not evicted ones), page by page: index of the
    /// run's first token, its codec, its bytes.
    pub(super) fn runs(&self, from: usize, to: usize) -> impl Iterator<Item = (usize, AnyCodec, &[u8])> {
        let to = to.min(self.len);
        let first_page = from / PAGE_TOKENS;
        // `from` may lie past the last token, in the middle of its page.
        let end_page = if from < to { to.div_ceil(PAGE_TOKENS) } else { first_page };
        (first_page..end_page).map(move |index| {
            let page = &self.pages[index - self.evicted];
            let codec = if page.cold { self.cold_codec() } else { self.codec };
            let start = from.max(index * PAGE_TOKENS);
            let end = to.min((index + 1) * PAGE_TOKENS);
            let at = |token: usize| (token - index * PAGE_TOKENS) * codec.block_bytes();
            (start, codec, &page.bytes()[at(start)..at(end)])
        })
    }

    /// Tokens in cold pages.
    pub(super) fn cold_len(&self) -> usize {
        self.pages.iter().filter(|page| page.cold).count() * PAGE_TOKENS
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.pages.iter().map(Page::allocated_bytes).sum::<usize>()
            + self.pages.capacity() * size_of::<Page>()
    }

    /// Bytes of pages in the spill file.
    pub(super) fn spilled_bytes(&self) -> usize {
        let spilled = |page: &Page| matches!(page.bytes, Bytes::Spilled(_)).then(|| page.bytes().len());
        self.pages.iter().filter_map(spilled).sum()
    }
}

/// Encodes, and where only the scale's correction pushes it out of f16, keeps the plain norm.
fn encode(codec: &AnyCodec, x: &[f32], block: &mut [u8]) -> Result<(), CacheError> {
    match encode_at(codec, x, block) {
        Err(EncodeError::OutOfRange) => {
            let options = Options { scale_mode: ScaleMode::Raw, ..codec.options() };
            let raw = AnyCodec::new(codec.id(), codec.dim(), options).map_err(|_| EncodeError::OutOfRange);
            raw.and_then(|raw| encode_at(&raw, x, block))
        }
        result => result,
    }
    .map_err(|error| CacheError::Encode(error.to_string()))
}

/// Encodes one vector at the machine's level.
fn encode_at(codec: &AnyCodec, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    tqkv_simd::codec::encode(level(), codec, x, block).map_err(|failed| failed.error)
}

/// Blocks of one codec as blocks of another: by dropping bits where both are nested and the target
/// is narrower, else by way of the decoded vectors.
fn transcode(from: &AnyCodec, blocks: &[u8], to: &AnyCodec) -> Result<Vec<u8>, CacheError> {
    let nested = |codec: &AnyCodec| codec.id().family() == Family::Nested;
    let drops = nested(from) && nested(to) && to.id().bits() <= from.id().bits();
    let mut out = vec![0; blocks.len() / from.block_bytes() * to.block_bytes()];
    let mut x = vec![0.0; from.dim()];
    for (block, result) in blocks.chunks_exact(from.block_bytes()).zip(out.chunks_exact_mut(to.block_bytes()))
    {
        if drops {
            demote(from, block, to, result).map_err(|error| CacheError::Encode(error.to_string()))?;
        } else {
            from.decode(block, &mut x).map_err(|error| CacheError::Encode(error.to_string()))?;
            encode(to, &x, result)?;
        }
    }
    Ok(out)
}
