//! Blocks in the memory of an engine.

use super::{Layout, Paged, Side};
use crate::attend::PageView;
use crate::error::CacheError;
use std::ops::Range;
use tqkv_core::KvError;
use tqkv_simd::page::Line;

/// One layer's blocks of keys and values. `M` is `&[Line]`, `&mut [Line]` or a list of lines.
#[derive(Clone, Copy, Debug)]
pub struct Pages<M> {
    /// The memory of keys, and that of values if it is another one.
    memory: (M, Option<M>),
    /// Lines from a block to the next, of keys and of values.
    strides: [usize; 2],
    /// First line of the keys, and of the values, in a block.
    first: [usize; 2],
    /// Lines of a KV head in a block.
    head_lines: [usize; 2],
    /// Lines of all KV heads.
    side_lines: [usize; 2],
    blocks: usize,
    layout: Layout,
}

impl<M: AsRef<[Line]>> Pages<M> {
    /// Blocks in one memory, `stride` lines apart, which is at least [`Paged::block_lines`]. The values of a block are after
    /// its keys. There are as many blocks as have room.
    ///
    /// # Errors
    /// [`CacheError::Blocks`] names what is wrong and what is accepted.
    pub fn together(paged: &Paged, memory: M, stride: usize) -> Result<Self, CacheError> {
        let ([keys, values], lines) = (paged.side_lines(), memory.as_ref().len());
        let blocks = count(lines, stride, keys + values)?;
        Ok(Self::new(paged, (memory, None), [stride; 2], [0, keys], blocks))
    }

    /// Blocks of keys in one memory and of values in another, each with a stride of its own.
    ///
    /// # Errors
    /// The errors of [`Pages::together`].
    pub fn apart(paged: &Paged, [keys, values]: [M; 2], strides: [usize; 2]) -> Result<Self, CacheError> {
        let lines = paged.side_lines();
        let blocks = count(keys.as_ref().len(), strides[0], lines[0])?;
        let of_values = count(values.as_ref().len(), strides[1], lines[1])?;
        Ok(Self::new(paged, (keys, Some(values)), strides, [0; 2], blocks.min(of_values)))
    }

    fn new(
        paged: &Paged,
        memory: (M, Option<M>),
        strides: [usize; 2],
        first: [usize; 2],
        blocks: usize,
    ) -> Self {
        let head_lines = paged.formats.map(|format| format.lines());
        let (side_lines, layout) = (paged.side_lines(), paged.layout);
        Self { memory, strides, first, head_lines, side_lines, blocks, layout }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The block and the slot of a place; none for one that is not there.
    pub(super) fn place(&self, place: i64) -> Option<(usize, usize)> {
        let place = usize::try_from(place).ok()?;
        let tokens = self.layout.block_tokens;
        let at = (place / tokens, place % tokens);
        (at.0 < self.blocks).then_some(at)
    }

    /// Refuses pages of another layout, whose codes mean something else.
    pub(super) fn check(&self, paged: &Paged) -> Result<(), CacheError> {
        if self.layout == paged.layout {
            return Ok(());
        }
        Err(CacheError::Blocks(
            "pages of another layout are not valid: expected those made with it".to_owned(),
        ))
    }

    /// The lines of one side of a block.
    fn range(&self, side: Side, block: usize) -> Range<usize> {
        let at = block * self.strides[side as usize] + self.first[side as usize];
        at..at + self.side_lines[side as usize]
    }

    /// The codes of a KV head in a block; none for a block that is not there.
    pub(super) fn view<'a>(
        &'a self,
        paged: &'a Paged,
        side: Side,
        block: usize,
        kv_head: usize,
    ) -> Option<PageView<'a>> {
        let lines = self.head_lines[side as usize];
        let all = self.lines(side, block)?;
        Some(PageView { format: paged.format(side), lines: &all[kv_head * lines..(kv_head + 1) * lines] })
    }

    /// The lines of all KV heads of one side of a block.
    fn lines(&self, side: Side, block: usize) -> Option<&[Line]> {
        let memory = match (&self.memory, side) {
            ((_, Some(values)), Side::Values) => values,
            ((keys, _), _) => keys,
        };
        (block < self.blocks).then(|| &memory.as_ref()[self.range(side, block)])
    }
}

impl<M: AsRef<[Line]> + AsMut<[Line]>> Pages<M> {
    /// Copies blocks, `(from, to)`, in this order.
    ///
    /// # Errors
    /// [`CacheError::Blocks`] for a block that is not there, before anything is copied.
    pub fn copy(&mut self, blocks: &[(usize, usize)]) -> Result<(), CacheError> {
        let there = self.blocks;
        if let Some(block) = blocks.iter().flat_map(|(from, to)| [*from, *to]).find(|block| *block >= there) {
            return Err(CacheError::Blocks(format!("block {block} is not there: there are {there}")));
        }
        for &(from, to) in blocks {
            for side in [Side::Keys, Side::Values] {
                let (from, to) = (self.range(side, from), self.range(side, to).start);
                self.memory(side).copy_within(from, to);
            }
        }
        Ok(())
    }

    fn memory(&mut self, side: Side) -> &mut [Line] {
        match (&mut self.memory, side) {
            ((_, Some(values)), Side::Values) => values.as_mut(),
            ((keys, _), _) => keys.as_mut(),
        }
    }

    /// The keys and the values of some blocks, which come in ascending order, for threads that write them.
    pub(super) fn blocks_mut(
        &mut self,
        blocks: impl Iterator<Item = usize> + Clone,
    ) -> Vec<[&mut [Line]; 2]> {
        let (strides, lines, keys) = (self.strides, self.side_lines, self.side_lines[0]);
        match &mut self.memory {
            (memory, None) => {
                let parts = parted(memory.as_mut(), blocks, strides[0], lines.iter().sum());
                parts.into_iter().map(|part| part.split_at_mut(keys).into()).collect()
            }
            (of_keys, Some(of_values)) => {
                let of_keys = parted(of_keys.as_mut(), blocks.clone(), strides[0], lines[0]);
                let of_values = parted(of_values.as_mut(), blocks, strides[1], lines[1]);
                of_keys.into_iter().zip(of_values).map(|(keys, values)| [keys, values]).collect()
            }
        }
    }
}

/// The number of blocks of `needed` lines, `stride` lines apart, in memory of `lines` lines.
fn count(lines: usize, stride: usize, needed: usize) -> Result<usize, CacheError> {
    if stride < needed || lines < needed {
        return Err(CacheError::Blocks(format!(
            "blocks that are {stride} lines apart in a memory of {lines} lines are not valid: expected at least {needed} of \
             64 bytes for both"
        )));
    }
    Ok((lines - needed) / stride + 1)
}

/// The first `lines` lines of these blocks, which come in ascending order.
fn parted(
    mut rest: &mut [Line],
    blocks: impl Iterator<Item = usize>,
    stride: usize,
    lines: usize,
) -> Vec<&mut [Line]> {
    let mut before = 0;
    blocks
        .map(|block| {
            let (_, behind) = std::mem::take(&mut rest).split_at_mut(block * stride - before);
            let (part, behind) = behind.split_at_mut(lines);
            (rest, before) = (behind, block * stride + lines);
            part
        })
        .collect()
}

/// Refuses a slice of another length.
pub(super) fn check(what: &'static str, got: usize, expected: usize) -> Result<(), CacheError> {
    if got == expected { Ok(()) } else { Err(KvError::Length { what, got, expected }.into()) }
}
