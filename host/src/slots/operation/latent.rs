//! Attention over latents: rows of one vector that is the key of all heads, and whose first values are the value
//! of all heads (MLA). A part of the slots is decoded once for all queries of a task, which are many.

use super::{HeadTask, Operation};
use crate::attend::{Sums, tile};
use crate::cache::life::cap;
use crate::matmul::Accumulate as Into;
use crate::slots::attend::{TaskScratch, shares_spans, with_scratch};
use crate::slots::rule::{QueryMask, QueryRule, add_mask, alike, changes_any, shows_any};
use crate::slots::store::SlotStore;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::Level;

/// Most slots of a span, which one thread attends to.
const SPAN: usize = 1024;

/// Most slots that are decoded at once.
const TILE: usize = 64;

/// The queries of a task (`[n, dim]`, with the factor of logits) over the rows of one stream.
struct Latent<'a> {
    rule: &'a QueryRule,
    level: Level,
    store: &'a SlotStore,
    /// First row of the stream.
    first: usize,
    value_dim: usize,
    asked: &'a [QueryMask<'a>],
    queries: &'a [f32],
}

/// Working memory of a thread, kept from call to call.
#[derive(Default)]
struct LatentScratch {
    halves: Vec<f16>,
    rows: Vec<f32>,
    logits: Vec<f32>,
}

thread_local!(static SCRATCH: RefCell<LatentScratch> = RefCell::default());

impl Operation<'_> {
    /// Same as [`Operation::run`] for a layer of latents: the first `value_dim` values of a row are its value.
    /// None also if a row has several heads.
    ///
    /// In a thread of a rayon pool, the pool's threads share the work. Their number changes no bit.
    pub fn run_latents(
        &self,
        store: &mut SlotStore,
        value_dim: usize,
        out: &mut [f32],
        steps: [usize; 3],
    ) -> Option<()> {
        let dim = store.format()?.dim();
        if store.width() != dim || value_dim > dim {
            return None;
        }
        let tasks = self.tasks(1);
        tasks.each(value_dim, (out, steps), |task, results| self.latents(task, store, value_dim, results))?;
        self.show(store, &tasks)?;
        store.hold_latents();
        store.cool();
        Some(())
    }

    /// The results of one task: `[n, value_dim]`.
    fn latents(&self, task: &HeadTask, store: &SlotStore, value_dim: usize, out: &mut [f32]) -> Option<()> {
        let (rule, format) = (&self.rule, store.format()?);
        let first = (self.first_streams[0] + task.stream) * store.slots();
        self.with_queries(task, format.dim(), |queries, asked| {
            queries.iter_mut().for_each(|x| *x *= rule.scale);
            let latent = Latent { rule, level: format.level, store, first, value_dim, asked, queries };
            let slots = rule.slots.min(store.slots());
            let all = (slots.div_ceil(SPAN), shares_spans(asked.len()));
            with_scratch(|TaskScratch { spans, .. }| {
                let seen = spans.attend(all, (asked.len(), value_dim), |span, sums| {
                    if span == 0 {
                        sums.start(asked.iter().map(|asked| asked.sink));
                    }
                    latent.attend(span * SPAN..slots.min((span + 1) * SPAN), sums);
                });
                seen.finish(value_dim, |_| (), out);
            });
        })
    }
}

impl Latent<'_> {
    fn attend(&self, span: Range<usize>, seen: &mut Sums) {
        SCRATCH.with_borrow_mut(|scratch| {
            for from in span.clone().step_by(TILE) {
                self.attend_tile(from..span.end.min(from + TILE), seen, scratch);
            }
        });
    }

    /// Attends to slots that are decoded at once. Empty slots count as zeros.
    fn attend_tile(&self, slots: Range<usize>, seen: &mut Sums, scratch: &mut LatentScratch) {
        let shows = |asked: &QueryMask<'_>| {
            let mask = asked.mask_of(slots.start, slots.end);
            mask.len() < slots.len() || shows_any(mask)
        };
        if !alike(self.asked).any(|asked| shows(&asked[0])) {
            return;
        }
        let (n, count, dim) = (self.asked.len(), slots.len(), self.queries.len() / self.asked.len());
        let LatentScratch { halves, rows, logits } = scratch;
        halves.resize(count * dim, f16::ZERO);
        rows.resize(count * dim, 0.0);
        self.store.read(self.first + slots.start, halves);
        halves.convert_to_f32_slice(rows);
        let spoiled = take_not_finite(rows, dim);
        logits.resize(n * count, 0.0);
        tile::score(self.queries, rows, dim, logits, Into::Replace);
        for (logits, asked) in logits.chunks_exact_mut(count).zip(self.asked) {
            spoiled.iter().for_each(|&row| logits[row] = f32::NAN);
            if let Some(soft_cap) = self.rule.soft_cap {
                cap(logits, soft_cap);
            }
            let mask = asked.mask_of(slots.start, slots.end);
            if changes_any(mask) {
                add_mask(logits, mask, asked.slope);
            }
        }
        let Sums { state, plain, rotated, .. } = seen;
        tile::soften_all(self.level, logits, state, self.value_dim, [plain, rotated]);
        tile::add(logits, rows, (self.value_dim, dim), plain);
    }
}

/// Replaces rows (`[n, dim]`) that are not finite by zeros, and returns their numbers. 0 times such a row is NaN,
/// also where a mask hides it.
fn take_not_finite(rows: &mut [f32], dim: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
        if !row.iter().all(|x| x.is_finite()) {
            row.fill(0.0);
            found.push(i);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheSpec;
    use crate::slots::format::StoreSide;
    use crate::slots::operation::{Masks, Strided};
    use tqkv_core::CodecId;

    const DIM: usize = 48;
    const VALUE_DIM: usize = 32;
    const HEADS: usize = 3;
    const SLOTS: usize = 1300;
    const FULL: usize = 1150;

    fn wave(i: usize) -> f32 {
        ((i * 7919 % 1000) as f32 / 1000.0 - 0.5) * 2.0
    }

    fn row(slot: usize) -> Vec<f16> {
        (0..DIM).map(|i| f16::from_f32(wave(slot * DIM + i))).collect()
    }

    /// What two tokens see: the first all rows but one, the second the first half. Nobody sees row 5.
    fn masks() -> Vec<f16> {
        let see = |token: usize, slot: usize| slot < FULL / (token + 1) && slot != 5;
        let mask = (0..2).flat_map(|token| (0..SLOTS).map(move |slot| see(token, slot)));
        mask.map(|sees| if sees { f16::ZERO } else { f16::NEG_INFINITY }).collect()
    }

    fn attend(store: &mut SlotStore, queries: &[f32], masks: &[f16]) -> Vec<f32> {
        let operation = Operation {
            rule: QueryRule { scale: 0.5, soft_cap: None, slots: SLOTS },
            first_streams: [1, 1],
            streams: 1,
            tokens: 2,
            query_heads: HEADS,
            queries: Strided { values: queries, steps: [HEADS * DIM, DIM, 0] },
            masks: Some(Masks { rows: Strided { values: masks, steps: [SLOTS, 0, 0] }, counts: [1, 1] }),
            sinks: &[0.5, 1.0, 2.0],
            slopes: &[],
        };
        let mut out = vec![0.0; 2 * HEADS * VALUE_DIM];
        operation.run_latents(store, VALUE_DIM, &mut out, [HEADS * VALUE_DIM, VALUE_DIM, 0]).unwrap();
        out
    }

    /// The same over rows as they read back.
    fn expected(store: &SlotStore, queries: &[f32], masks: &[f16]) -> Vec<f32> {
        let mut rows = vec![f16::ZERO; SLOTS * DIM];
        store.read(SLOTS, &mut rows);
        let mut out = Vec::new();
        for (i, query) in queries.chunks_exact(DIM).enumerate() {
            let (token, mut total) = (i / HEADS, f64::from([0.5f32, 1.0, 2.0][i % HEADS]).exp());
            let mut sums = vec![0.0; VALUE_DIM];
            for (slot, row) in rows.chunks_exact(DIM).enumerate() {
                if masks[token * SLOTS + slot] == f16::NEG_INFINITY {
                    continue;
                }
                let dot: f64 = query.iter().zip(row).map(|(q, x)| f64::from(*q) * x.to_f64()).sum();
                let weight = (0.5 * dot).exp();
                total += weight;
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x.to_f64());
            }
            out.extend(sums.iter().map(|sum| (sum / total) as f32));
        }
        out
    }

    #[test]
    fn latents_are_keys_and_values_also_as_codes_and_beside_a_hidden_row_that_is_not_finite() {
        for id in [CodecId::F16, CodecId::I8, CodecId::S4] {
            let mut spec = CacheSpec::new(1, 1, 1, DIM);
            spec.hot = 100;
            let mut store = SlotStore::new(StoreSide::Keys, &spec, DIM, SLOTS, 2);
            assert!(store.divide(DIM, id));
            for slot in 0..FULL {
                store.write(SLOTS + slot, &row(slot));
            }
            store.write(SLOTS + 5, &[f16::NAN; DIM]);
            let queries: Vec<f32> = (0..2 * HEADS * DIM).map(|i| wave(3 * i + 1)).collect();
            let masks = masks();
            // The first call encodes what is old.
            attend(&mut store, &queries, &masks);
            let (mut back, written) = (vec![f16::ZERO; DIM], row(300));
            store.read(SLOTS + 300, &mut back);
            assert_eq!(back != written, id != CodecId::F16, "codes are read");
            let (found, expected) =
                (attend(&mut store, &queries, &masks), expected(&store, &queries, &masks));
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 2e-3, "{id:?}: {found} {expected}");
            }
            assert!(found.iter().any(|x| x.abs() > 0.01));
        }
    }
}
