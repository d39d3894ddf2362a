//! The operands and the result of attention over one part of the slots.

use super::format::SlotFormat;
use super::rule::{Asked, QueryRule};
use super::stream::Stream;
use tqkv_simd::page::Attention;

/// The keys or the values of one KV head in one stream.
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    /// The stream, with all its heads.
    pub stream: &'a Stream,
    /// The format of the heads.
    pub format: &'a SlotFormat,
    /// Index of the head.
    pub head: usize,
}

impl<'a> Track<'a> {
    /// The mean that codes are stored less of; empty if they have none.
    pub(super) fn mean(&self) -> &'a [f32] {
        self.stream.means.of(self.head)
    }
}

/// Keys, values and n queries (`[n, head_dim]`) with their settings.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) rule: &'a QueryRule,
    pub(super) keys: Track<'a>,
    pub(super) values: Track<'a>,
    pub(super) asked: &'a [Asked<'a>],
    pub(super) queries: &'a [f32],
}

/// Result of a part: the softmax state of each query, and weighted sums of values (`[n, value_dim]`).
pub(super) struct PartSums {
    pub(super) state: Vec<Attention>,
    pub(super) sums: Vec<f32>,
}

impl PartSums {
    /// The state before any slot: no weight, and sums of 0.
    pub(super) fn nothing(task: &Task<'_>) -> Self {
        let n = task.asked.len();
        Self { state: vec![Attention::EMPTY; n], sums: vec![0.0; n * task.values.format.dim] }
    }
}
