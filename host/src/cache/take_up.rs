//! New tokens of a layer: checked, given room, and appended by all heads or by none.

use super::budget::Reserved;
use super::head::Head;
use super::meter::{Event, count};
use super::norm_limits::{VectorPlace, check_vectors};
use super::scratch::{HeadScratch, ScratchPool};
use super::vectors::{Floats, Vectors};
use super::{Budget, KvCache, Layer, cut};
use crate::error::CacheError;
use crate::{memory, threads};
use rayon::prelude::*;

/// Below this number of vectors, waking threads costs more than it saves.
const PARALLEL_VECTORS: usize = 64;

/// Operations of at least this many tokens first check that their memory is available. They allocate in many
/// small pieces, and a small allocation cannot report failure.
const BULK: usize = 256;

impl KvCache {
    /// Checks `n` tokens of a layer and lets each head append its own with `work`. If one head fails, all
    /// heads are restored. `cools` says that `work` sends pages to colder tiers.
    pub(super) fn take_up(
        &mut self,
        layer: usize,
        n: usize,
        k: Floats<'_>,
        v: Floats<'_>,
        cools: bool,
        work: impl Fn(&mut Head, usize, Vectors<'_>, Vectors<'_>, &mut HeadScratch) -> Result<(), CacheError>
        + Sync,
    ) -> Result<(), CacheError> {
        let num_kv_heads = self.spec.shape_at(layer).num_kv_heads;
        let level = self.level();
        let Layer { heads, max_norms } = &mut self.layers[layer];
        let Some(before) = heads.first().map(Head::len) else { return Err(CacheError::NoCache { layer }) };
        self.spec.check_length(layer, before.saturating_add(n))?;
        let sides = self.spec.sides(layer, k, v);
        let first = VectorPlace { layer, token: before, num_kv_heads, sinks: self.spec.sinks_at(layer) };
        check_vectors(first, &sides, *max_norms, level)?;

        // A page that moved to the file may be unreadable later, so the heads are kept and put back on
        // failure. The copies share pages meanwhile. The same holds for a long chunk, most of which may be
        // encoded before a part is refused.
        let keeps = n >= BULK || (cools && heads.iter().any(Head::has_cold_tiers));
        let lists = if keeps { heads.iter().map(Head::list_bytes).sum() } else { 0 };
        let _lists = self.budget.reserve(lists)?;
        let kept = keeps.then(|| heads.clone());
        let room = make_room(heads, n, &self.budget)?;
        // Pages that found no room in the file earlier go there now. This changes no value.
        heads.iter_mut().try_for_each(|head| head.cool(before))?;

        let result = in_each_head(heads, n, &self.scratch, |(i, head), scratch| {
            let [k, v] = sides.map(|side| side.of_head(i, num_kv_heads));
            work(head, i, k, v, scratch)
                .map_err(|error| error.within(format_args!("layer {layer}, KV head {i}")))
        });
        match (&result, kept) {
            // Pages that nothing else holds are written in place.
            (Ok(()), kept) => drop(kept),
            (Err(_), Some(kept)) => *heads = kept,
            // The newest tokens are rows, or lie at the end of pages in memory, so this cut can read them.
            (Err(_), None) => cut(&mut *heads, before)?,
        }
        if keeps {
            drop(room);
            refill(heads, &self.budget);
        }
        result?;
        count(Event::Tokens, n);
        heads.iter_mut().for_each(settle);
        Ok(())
    }
}

/// Reserves what `n` more tokens may take, and makes room for their rows.
fn make_room<'a>(heads: &mut [Head], n: usize, budget: &'a Budget) -> Result<Reserved<'a>, CacheError> {
    let growth = if budget.is_limited() || n >= BULK {
        heads.iter().map(|head| head.keys.growth(n) + head.other.growth(n)).sum()
    } else {
        0
    };
    let room = budget.reserve(growth)?;
    if n >= BULK {
        memory::check(growth)?;
    }
    for head in heads {
        head.keys.make_room(n)?;
        head.other.make_room(n)?;
    }
    Ok(room)
}

/// Does the work of `n` tokens in each head, on several threads if there is enough of it.
fn in_each_head(
    heads: &mut [Head],
    n: usize,
    scratch: &ScratchPool,
    work: impl Fn((usize, &mut Head), &mut HeadScratch) -> Result<(), CacheError> + Sync,
) -> Result<(), CacheError> {
    let is_dear = heads.iter().any(|head| head.keys.is_dear() || head.other.is_dear());
    if (is_dear || n * heads.len() >= PARALLEL_VECTORS) && threads::several() {
        threads::share(|| {
            let heads = heads.par_iter_mut().enumerate();
            heads.try_for_each(|head| scratch.with(|scratch| work(head, scratch)))
        })
    } else {
        scratch.with(|scratch| heads.iter_mut().enumerate().try_for_each(|head| work(head, scratch)))
    }
}

/// Takes the memory of a ring that copies of its heads have kept. Without room for it, the ring allocates
/// later.
fn refill(heads: &mut [Head], budget: &Budget) {
    for head in heads {
        if let Ok(_room) = budget.reserve(head.missing_bytes()) {
            let _ = head.hold();
        }
    }
}

/// What may happen after new tokens, and does not change them: colder tiers, eviction, codes ahead of time.
fn settle(head: &mut Head) {
    head.cool_what_fits(head.len());
    head.evict();
    head.keys.encode_ahead();
    head.other.encode_ahead();
}
