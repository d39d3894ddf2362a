//! Queries in the forms that rows and pages of codes are scored with.

use crate::cache::format::{CodedQueries, PageFormat};
use crate::cache::vectors::dot;

/// Appends the products of each mean with all queries (`[n, dim]`): `[means, n]`.
pub(crate) fn add_products<'a>(
    queries: &[f32],
    dim: usize,
    means: impl IntoIterator<Item = &'a [f32]>,
    products: &mut Vec<f32>,
) {
    for mean in means {
        products.extend(queries.chunks_exact(dim).map(|q| dot(q, mean)));
    }
}

/// Query heads that share a KV head, at most [`tqkv_simd::page::MAX_HEADS`].
#[derive(Debug, Default)]
pub(crate) struct HeadQueries {
    heads: usize,
    /// The queries of the model times the scale of the logits: `[heads, dim]`.
    plain: Vec<f32>,
    /// The same queries for mapped keys. Unused without a map.
    mapped: Vec<f32>,
    /// For each mean of the keys, the product <plain, mean> of each head.
    offsets: Vec<f32>,
    /// The queries in the form of each tier.
    coded: Vec<CodedQueries>,
}

impl HeadQueries {
    /// Takes queries (`[heads, dim]`) times the scale of the logits, for keys that are stored less one of these means.
    pub(crate) fn set<'a>(
        &mut self,
        (q, scale): (&[f32], f32),
        dim: usize,
        means: impl IntoIterator<Item = &'a [f32]>,
    ) {
        self.heads = q.len() / dim;
        self.plain.clear();
        self.plain.extend(q.iter().map(|x| x * scale));
        self.offsets.clear();
        add_products(&self.plain, dim, means, &mut self.offsets);
    }

    /// Prepares the queries for keys in pages of each tier; none where a tier has no page. `apply` brings queries to
    /// keys that have a map.
    pub(crate) fn code<'a>(
        &mut self,
        tiers: impl ExactSizeIterator<Item = Option<&'a PageFormat>>,
        apply: Option<impl FnOnce(&mut [f32])>,
    ) {
        let mut queries = &self.plain;
        if let Some(apply) = apply {
            self.mapped.clone_from(&self.plain);
            apply(&mut self.mapped);
            queries = &self.mapped;
        }
        self.coded.resize_with(tiers.len(), CodedQueries::default);
        for (format, coded) in tiers.zip(&mut self.coded) {
            if let Some(format) = format {
                format.set_queries(queries, coded);
            }
        }
    }

    /// Takes the memory for keys with this many means.
    pub(crate) fn hold(&mut self, means: usize) {
        self.offsets.reserve(means * self.heads);
    }

    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    pub(crate) fn plain(&self) -> &[f32] {
        &self.plain
    }

    /// Offsets for the scores of keys with this mean, one per head; empty for keys without one, and for all keys of a head
    /// that has none.
    pub(crate) fn offsets(&self, mean: Option<usize>) -> &[f32] {
        mean.and_then(|mean| self.offsets.get(mean * self.heads..(mean + 1) * self.heads)).unwrap_or_default()
    }

    /// The queries for pages of a tier.
    pub(crate) fn coded(&self, tier: usize) -> &CodedQueries {
        &self.coded[tier]
    }
}
