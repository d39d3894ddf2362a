//! Pages: runs of encoded tokens of one KV head, and the store that holds them in order.

use super::format::{PAGE_TOKENS, PageFormat, Side};
use super::spec::Arithmetic;
use super::spill::{SpillFile, Spilled};
use crate::error::CacheError;
use std::borrow::Cow;
use std::collections::VecDeque;
use tqkv_core::{AnyCodec, EncodeError, ScaleMode, demote};
use tqkv_simd::Level;
use tqkv_simd::page::{Line, SLOT_STEP};

/// Where the lines of a page are.
#[derive(Clone, Debug)]
enum Memory {
    /// Blocks back to back: so few that whole lines of them would be larger than f16 rows.
    Loose(Vec<u8>),
    Held(Vec<Line>),
    Spilled(Spilled),
}

/// Up to [`PAGE_TOKENS`] blocks of one codec.
#[derive(Clone, Debug)]
struct Page {
    memory: Memory,
    cold: bool,
}

impl Page {
    /// Empty where the blocks are loose.
    fn lines(&self) -> &[Line] {
        match &self.memory {
            Memory::Loose(_) => &[],
            Memory::Held(lines) => lines,
            Memory::Spilled(spilled) => spilled.lines(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match &self.memory {
            Memory::Loose(blocks) => blocks.capacity(),
            Memory::Held(lines) => lines.capacity() * size_of::<Line>(),
            Memory::Spilled(_) => 0,
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
/// Every page but the last is full, so token `i` is slot `i % PAGE_TOKENS` of page
/// `i / PAGE_TOKENS`. Pages that were evicted leave a hole at the front. The last page has memory for as many tokens
/// as it needs, in steps, until what the codes save pays for a whole page: a cache is never larger than its f16 rows.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    warm: PageFormat,
    /// Differs from `warm` only where pages are demoted.
    cold: PageFormat,
    store: Option<ColdStore>,
    pages: VecDeque<Page>,
    /// Arrangement of the last page where it is warm.
    last: PageFormat,
    /// Bytes that are kept because there are pages, in none of them: the mean of keys.
    beside: usize,
    /// Pages evicted from the front.
    evicted: usize,
    /// Tokens, evicted ones included.
    len: usize,
}

/// Slots of one page.
pub(super) struct Run<'a> {
    pub(super) format: &'a PageFormat,
    pub(super) lines: Cow<'a, [Line]>,
    /// First slot.
    pub(super) slot: usize,
    pub(super) is_cold: bool,
}

impl Pages {
    pub(super) fn new(
        codec: AnyCodec,
        store: Option<ColdStore>,
        side: Side,
        arithmetic: Arithmetic,
        level: Level,
        beside: usize,
    ) -> Self {
        let warm = PageFormat::new(codec, side, arithmetic, level);
        let cold = match &store {
            Some(ColdStore::Demote(codec)) => PageFormat::new(**codec, side, arithmetic, level),
            Some(ColdStore::Spill(_)) | None => warm,
        };
        Self { warm, cold, store, pages: VecDeque::new(), last: warm, beside, evicted: 0, len: 0 }
    }

    pub(super) fn warm(&self) -> &PageFormat {
        &self.warm
    }

    pub(super) fn cold(&self) -> &PageFormat {
        &self.cold
    }

    /// Tokens, evicted ones included.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Index of the first token that is still there.
    pub(super) fn first(&self) -> usize {
        (self.evicted * PAGE_TOKENS).min(self.len)
    }

    /// Encodes vectors (`[n, dim]`) at the end.
    pub(super) fn push(&mut self, x: &[f32]) -> Result<(), CacheError> {
        let codec = self.warm.codec();
        let mut blocks = vec![0; x.len() / codec.dim() * codec.block_bytes()];
        encode(&self.warm, x, &mut blocks)?;
        self.push_blocks(&blocks);
        Ok(())
    }

    /// Puts blocks of the warm codec at the end.
    pub(super) fn push_blocks(&mut self, mut blocks: &[u8]) {
        let bytes = self.warm.codec().block_bytes();
        while !blocks.is_empty() {
            let slot = self.len % PAGE_TOKENS;
            if slot == 0 {
                self.pages.reserve_exact(1);
                self.pages.push_back(Page { memory: Memory::Loose(Vec::new()), cold: false });
            }
            let count = (PAGE_TOKENS - slot).min(blocks.len() / bytes);
            let (now, later) = blocks.split_at(count * bytes);
            self.len += count;
            self.write_last(slot, now);
            blocks = later;
        }
    }

    /// Writes blocks to the last page from `slot` on; `len` counts them already.
    fn write_last(&mut self, slot: usize, blocks: &[u8]) {
        let bytes = self.warm.codec().block_bytes();
        let needed = slot + blocks.len() / bytes;
        let (wanted, in_lines) = self.arrangement(needed);
        let Some(page) = self.pages.back_mut() else { return };
        match &mut page.memory {
            Memory::Held(lines) if in_lines && wanted.lines() <= lines.len() => {
                for (i, block) in blocks.chunks_exact(bytes).enumerate() {
                    self.last.write(lines, slot + i, block);
                }
            }
            memory => {
                let mut all = match memory {
                    Memory::Loose(loose) => std::mem::take(loose),
                    Memory::Held(_) | Memory::Spilled(_) => self.last.read_blocks(page.lines(), 0, slot),
                };
                all.truncate(slot * bytes);
                all.reserve_exact(blocks.len());
                all.extend_from_slice(blocks);
                self.last = wanted;
                page.memory = if in_lines {
                    Memory::Held(wanted.arrange(&all))
                } else {
                    all.shrink_to_fit();
                    Memory::Loose(all)
                };
            }
        }
    }

    /// How a last page of `needed` tokens lies: whole where the codes have saved that much, else as small as can be;
    /// and whether it is kept like that, or loose because even that is larger than f16 rows.
    fn arrangement(&self, needed: usize) -> (PageFormat, bool) {
        let bytes = |format: &PageFormat| format.lines() * size_of::<Line>();
        let lists = self.pages.capacity() * size_of::<Page>() + self.beside;
        let others = (self.pages.len() - 1) * bytes(&self.warm) + lists;
        let budget = self.f16_bytes().saturating_sub(others);
        let small = self.warm.of_slots(needed.next_multiple_of(SLOT_STEP).min(PAGE_TOKENS));
        // Codes as wide as f16 save nothing, and a full page is as small as it gets.
        let must = small.slots() == needed || self.saves_nothing();
        if bytes(&self.warm) <= budget { (self.warm, true) } else { (small, must || bytes(&small) <= budget) }
    }

    fn saves_nothing(&self) -> bool {
        self.warm.codec().block_bytes() >= 2 * self.warm.codec().dim()
    }

    /// What the tokens that are there would take as f16.
    fn f16_bytes(&self) -> usize {
        (self.len - self.first()) * 2 * self.warm.codec().dim()
    }

    /// Bytes that the codes have saved against f16.
    pub(super) fn saved_bytes(&self) -> usize {
        self.f16_bytes().saturating_sub(self.allocated_bytes() + self.beside)
    }

    /// Drops tokens from index `len` on. A cold page that is cut in the middle is brought back to
    /// the warm codec, so that new tokens can follow.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        if len >= self.len {
            return Ok(());
        }
        let last_page = self.pages.len();
        self.pages.truncate((len.div_ceil(PAGE_TOKENS)).saturating_sub(self.evicted));
        let kept = len % PAGE_TOKENS;
        if kept > 0
            && let Some(page) = self.pages.back_mut()
            && page.cold
        {
            let memory = Memory::Held(transcode(&self.cold, page.lines(), kept, &self.warm)?);
            *page = Page { memory, cold: false };
        }
        // Every page before the last one is whole.
        if last_page != self.pages.len() {
            self.last = self.warm;
        }
        self.len = len;
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
        (self.evicted, self.len, self.last) = (0, 0, self.warm);
    }

    /// Frees the pages that end at or before token `first`.
    pub(super) fn evict_before(&mut self, first: usize) {
        while (self.evicted + 1) * PAGE_TOKENS <= first.min(self.len) && self.pages.pop_front().is_some() {
            self.evicted += 1;
        }
    }

    /// Sends the full pages that end at or before token `before` to the cold tier.
    pub(super) fn cool_before(&mut self, before: usize) -> Result<(), CacheError> {
        let Some(store) = &self.store else { return Ok(()) };
        for (i, page) in self.pages.iter_mut().enumerate() {
            if (self.evicted + i + 1) * PAGE_TOKENS > before.min(self.len) {
                break;
            }
            if page.cold {
                continue;
            }
            let memory = match store {
                ColdStore::Demote(_) => {
                    Memory::Held(transcode(&self.warm, page.lines(), PAGE_TOKENS, &self.cold)?)
                }
                ColdStore::Spill(file) => Memory::Spilled(
                    file.append(page.lines()).map_err(|error| CacheError::Spill(error.to_string()))?,
                ),
            };
            *page = Page { memory, cold: true };
        }
        Ok(())
    }

    /// The page that holds token `index` (not evicted), from that token on.
    pub(super) fn run(&self, index: usize) -> Run<'_> {
        let page = &self.pages[index / PAGE_TOKENS - self.evicted];
        let is_last = index / PAGE_TOKENS + 1 == self.evicted + self.pages.len();
        let slot = index % PAGE_TOKENS;
        match &page.memory {
            Memory::Loose(blocks) => {
                let format = &self.last;
                Run { format, lines: Cow::Owned(format.arrange(blocks)), slot, is_cold: false }
            }
            Memory::Held(_) | Memory::Spilled(_) => {
                let format = match (page.cold, is_last) {
                    (true, _) => &self.cold,
                    (false, true) => &self.last,
                    (false, false) => &self.warm,
                };
                Run { format, lines: Cow::Borrowed(page.lines()), slot, is_cold: page.cold }
            }
        }
    }

    /// One past the last token that a page with token `index` holds.
    pub(super) fn page_end(&self, index: usize) -> usize {
        ((index / PAGE_TOKENS + 1) * PAGE_TOKENS).min(self.len)
    }

    /// Lines of the page that holds token `index`; empty where there is none.
    pub(super) fn lines(&self, index: usize) -> &[Line] {
        let page = (index / PAGE_TOKENS).checked_sub(self.evicted).and_then(|page| self.pages.get(page));
        page.map_or(&[], Page::lines)
    }

    /// Whether some page is cold.
    pub(super) fn any_cold(&self) -> bool {
        self.pages.front().is_some_and(|page| page.cold)
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
        let spilled =
            |page: &Page| matches!(page.memory, Memory::Spilled(_)).then(|| size_of_val(page.lines()));
        self.pages.iter().filter_map(spilled).sum()
    }
}

/// Encodes vectors, and where only a scale's correction pushes one out of f16,
/// keeps its plain norm.
pub(super) fn encode(format: &PageFormat, x: &[f32], blocks: &mut [u8]) -> Result<(), CacheError> {
    let (level, codec) = (format.level(), format.codec());
    let at_once = tqkv_simd::codec::encode(level, codec, x, blocks);
    match at_once.map_err(|failed| failed.error) {
        Err(EncodeError::OutOfRange) => {
            let options = codec.options().scale_mode(ScaleMode::Raw);
            let raw = AnyCodec::new(codec.id(), codec.dim(), options).map_err(|_| EncodeError::OutOfRange);
            let vectors = x.chunks_exact(codec.dim()).zip(blocks.chunks_exact_mut(codec.block_bytes()));
            raw.and_then(|raw| {
                vectors.into_iter().try_for_each(|(x, block)| {
                    encode_one(level, codec, x, block).or_else(|_| encode_one(level, &raw, x, block))
                })
            })
        }
        result => result,
    }
    .map_err(|error| CacheError::Encode(error.to_string()))
}

fn encode_one(level: Level, codec: &AnyCodec, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    tqkv_simd::codec::encode(level, codec, x, block).map_err(|failed| failed.error)
}

/// The first `count` tokens of a page of one format as a page of another: by dropping bits where both
/// are nested and the target is narrower, unchanged where the codec is the same, else by way of the
/// decoded vectors.
fn transcode(
    from: &PageFormat,
    page: &[Line],
    count: usize,
    to: &PageFormat,
) -> Result<Vec<Line>, CacheError> {
    let (codec, target) = (from.codec(), to.codec());
    let blocks = from.read_blocks(page, 0, count);
    let mut lines = vec![Line::ZERO; to.lines()];
    let nested = |codec: &AnyCodec| codec.id().is_nested();
    let drops = nested(codec) && nested(target) && target.id().bits() <= codec.id().bits();
    let (mut result, mut x) = (vec![0; target.block_bytes()], vec![0.0; codec.dim()]);
    for (slot, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
        if codec.id() == target.id() {
            result.copy_from_slice(block);
        } else if drops {
            demote(codec, block, target, &mut result)
                .map_err(|error| CacheError::Encode(error.to_string()))?;
        } else {
            codec.decode(block, &mut x).map_err(|error| CacheError::Encode(error.to_string()))?;
            encode(to, &x, &mut result)?;
        }
        to.write(&mut lines, slot, &result);
    }
    Ok(lines)
}
