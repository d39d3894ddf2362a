//! Queries in the forms that rows and pages of codes are scored with.

use crate::cache::format::{CodedQueries, PageFormat};
use crate::cache::vectors::dot;
use std::ops::Range;

/// What the logits of a head's keys depend on besides their codes.
pub(crate) trait KeyForms {
    /// Coordinates of a key.
    fn dim(&self) -> usize;

    /// The means that keys are stored less of.
    fn means(&self) -> impl Iterator<Item = &[f32]>;

    /// Indices of the maps that held keys went through; one where there is none.
    fn maps(&self) -> Range<usize>;

    /// What brings queries to the keys of a map; none where there is none.
    fn map(&self, map: usize) -> Option<impl Fn(&mut [f32])>;

    /// Number of tiers.
    fn tiers(&self) -> usize;

    /// The pages of a tier.
    fn format(&self, tier: usize) -> &PageFormat;

    /// True if a tier has pages.
    fn is_used(&self, tier: usize) -> bool;
}

/// Query heads that share a KV head, at most [`tqkv_simd::page::MAX_HEADS`].
#[derive(Debug, Default)]
pub(crate) struct HeadQueries {
    heads: usize,
    /// The queries of the model times the scale of the logits: `[heads, dim]`.
    plain: Vec<f32>,
    /// The same queries for mapped keys of one map. Unused without a map.
    mapped: Vec<f32>,
    /// For each mean of the keys, the product <plain, mean> of each head.
    offsets: Vec<f32>,
    /// The queries in the form of each map and tier, `[maps, tiers]`.
    coded: Vec<CodedQueries>,
    tiers: usize,
}

impl HeadQueries {
    /// Prepares queries (`[heads, dim]`) for the keys of a head.
    pub(crate) fn set(&mut self, keys: &impl KeyForms, q: &[f32], scale: f32) {
        let dim = keys.dim();
        self.heads = q.len() / dim;
        self.plain.clear();
        self.plain.extend(q.iter().map(|x| x * scale));
        self.offsets.clear();
        for mean in keys.means() {
            self.offsets.extend(self.plain.chunks_exact(dim).map(|q| dot(q, mean)));
        }
        self.tiers = keys.tiers();
        if self.tiers == 0 {
            return;
        }
        let maps = keys.maps();
        self.coded.resize_with(maps.end * self.tiers, CodedQueries::default);
        for (map, coded) in self.coded.chunks_exact_mut(self.tiers).enumerate().skip(maps.start) {
            let mut queries = &self.plain;
            if let Some(apply) = keys.map(map) {
                self.mapped.clone_from(&self.plain);
                apply(&mut self.mapped);
                queries = &self.mapped;
            }
            for (tier, coded) in coded.iter_mut().enumerate() {
                if keys.is_used(tier) {
                    keys.format(tier).set_queries(queries, coded);
                }
            }
        }
    }

    /// Takes the memory for the queries of `heads` query heads, any tier, and this number of means.
    pub(crate) fn hold(&mut self, keys: &impl KeyForms, heads: usize, means: usize) {
        let queries = vec![0.0; heads * keys.dim()];
        self.set(keys, &queries, 1.0);
        self.offsets.reserve(means * heads);
        for (tier, coded) in self.coded.iter_mut().enumerate() {
            keys.format(tier).set_queries(&queries, coded);
        }
    }

    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    pub(crate) fn plain(&self) -> &[f32] {
        &self.plain
    }

    /// Offsets for the scores of keys with this mean, one per head; empty for keys without one.
    pub(crate) fn offsets(&self, mean: Option<usize>) -> &[f32] {
        mean.map_or(&[], |mean| &self.offsets[mean * self.heads..(mean + 1) * self.heads])
    }

    /// The queries for pages of a map and a tier.
    pub(crate) fn coded(&self, map: usize, tier: usize) -> &CodedQueries {
        &self.coded[map * self.tiers + tier]
    }
}
