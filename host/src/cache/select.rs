//! Picks the tokens that a single query attends to, by the means of their keys (`select=`).
//!
//! The logit of a mean is the mean of the logits of its keys. Each head of a group compares the logits with its own
//! largest one, and a run of tokens counts as much as its best mean for the head that wants it most.

use super::head::Head;
use super::life::PAGE_TOKENS;
use super::scratch::PickScratch;
use super::summaries::{GRAIN, PAGE_GRAINS, Summaries};
use super::token_lists::RUN;
use crate::attend::add_products;
use tqkv_simd::page::MAX_HEADS;

/// Means of a run.
const RUN_GRAINS: usize = RUN / GRAIN;

impl Head {
    /// Picks about `count` encoded tokens for queries (`[group, dim]`), in runs of [`RUN`], and with them all sinks
    /// and uncompressed tokens. Encoded tokens of a page that is not full are among them. Returns false if those are
    /// all tokens.
    pub(super) fn pick(&self, q: &[f32], count: usize, scratch: &mut PickScratch) -> bool {
        let Some(summaries) = &self.keys.summaries else { return false };
        let (sinks, full) = (self.keys.sinks().len(), summaries.pages() * PAGE_TOKENS);
        let last = self.keys.pages().len() - full;
        let (runs, wanted) = (full / RUN, (count.saturating_sub(last) / RUN).max(1));
        if runs <= wanted {
            return false;
        }
        scratch.worth.clear();
        scratch.worth.resize(runs, f32::NEG_INFINITY);
        let query_dim = self.keys.codec().dim() + self.position().map_or(0, |side| side.codec().dim());
        for q in q.chunks(MAX_HEADS * query_dim) {
            self.weigh(summaries, (q, query_dim), scratch);
        }
        let PickScratch { worth, runs: order, tokens, .. } = scratch;
        order.clear();
        order.extend(0..runs as u32);
        let worth = |run: u32| worth[run as usize];
        order.select_nth_unstable_by(wanted - 1, |&a, &b| worth(b).total_cmp(&worth(a)).then(a.cmp(&b)));
        order.truncate(wanted);
        order.sort_unstable();
        tokens.clear();
        tokens.extend(0..sinks as u32);
        for run in &*order {
            let first = (sinks + *run as usize * RUN) as u32;
            tokens.extend(first..first + RUN as u32);
        }
        tokens.extend((sinks + full) as u32..self.len() as u32);
        true
    }

    /// Raises what each run counts to what it counts for these queries (`[heads, query_dim]`), at most [`MAX_HEADS`].
    fn weigh(&self, summaries: &Summaries, (q, query_dim): (&[f32], usize), scratch: &mut PickScratch) {
        let means = self.keys.means();
        let PickScratch { scaled, coded, room, coded_positions, position_room, offsets, best, worth, .. } =
            scratch;
        let dim = self.keys.codec().dim();
        let (heads, runs) = (q.len() / query_dim, worth.len());
        let positions = self.position().and_then(|side| side.summaries.as_ref());
        if let Some(positions) = positions {
            self.scale_part(q.chunks_exact(query_dim).map(|q| &q[dim..]), scaled);
            positions.set_queries(scaled, coded_positions);
        }
        self.scale_part(q.chunks_exact(query_dim).map(|q| &q[..dim]), scaled);
        summaries.set_queries(scaled, coded);
        offsets.clear();
        add_products(scaled, dim, means.values(), offsets);
        best.clear();
        best.resize(heads * runs, f32::NEG_INFINITY);
        summaries.scores((coded, heads), room, |first, logits| {
            if let Some(positions) = positions {
                positions.scores_from(first, (coded_positions, heads), position_room);
                logits.iter_mut().zip(&*position_room).for_each(|(logit, position)| *logit += position);
            }
            let n = logits.len() / heads;
            for (h, logits) in logits.chunks_exact_mut(n).enumerate() {
                for (page, logits) in (first..).zip(logits.chunks_exact_mut(PAGE_GRAINS)) {
                    let offset = means.index(page).map_or(0.0, |mean| offsets[mean * heads + h]);
                    logits.iter_mut().for_each(|logit| *logit += offset);
                }
                self.cap(logits);
                let first = h * runs + first * PAGE_TOKENS / RUN;
                for (best, logits) in best[first..].iter_mut().zip(logits.chunks_exact(RUN_GRAINS)) {
                    *best = logits
                        .iter()
                        .fold(f32::NEG_INFINITY, |best, &logit| if logit > best { logit } else { best });
                }
            }
        });
        for best in best.chunks_exact(runs) {
            let largest = best.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            worth.iter_mut().zip(best).for_each(|(worth, best)| *worth = worth.max(best - largest));
        }
    }

    /// Parts of queries times the scale of the logits.
    fn scale_part<'a>(&self, parts: impl Iterator<Item = &'a [f32]>, scaled: &mut Vec<f32>) {
        scaled.clear();
        parts.for_each(|part| scaled.extend(part.iter().map(|x| x * self.rule.scale)));
    }
}
