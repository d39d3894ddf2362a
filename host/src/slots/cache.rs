//! [`SlotCache`]: the keys and values of all layers.

use super::format::StoreSide;
use super::mask::Mask;
use super::operation::{Masks, Operation, Strided};
use super::policy;
use super::rope::{Turner, turn};
use super::rule::QueryRule;
use super::store::{self, SlotStore};
use crate::cache::spec::CacheSpec;
use crate::cache::vectors::Floats;
use crate::error::CacheError;
use crate::rope::Rope;
use crate::{memory, threads};
use half::f16;
use tqkv_core::{KvError, KvShape};
use tqkv_simd::Level;

/// Most slots of all streams together.
const MOST_SLOTS: usize = 1 << 24;

/// Number of multiplications below which waking threads costs more time than it saves.
const PARALLEL_PRODUCTS: usize = 1 << 20;

/// Keys and values in numbered slots. See [`crate::slots`].
#[derive(Clone, Debug)]
pub struct SlotCache {
    spec: CacheSpec,
    slots: usize,
    streams: usize,
    layers: Vec<SlotLayer>,
}

#[derive(Clone, Debug)]
struct SlotLayer {
    keys: SlotStore,
    values: SlotStore,
}

impl SlotCache {
    /// An empty cache with `slots` slots, which all sequences share. Address space for all of them is
    /// reserved; memory is taken as slots are written.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`] for a spec that slots cannot have or a number of slots, over all streams, that is
    /// not 1 to 2^24, and the errors of [`KvCache::new`](crate::cache::KvCache::new).
    pub fn new(spec: CacheSpec, slots: usize) -> Result<Self, CacheError> {
        Self::with_streams(spec, slots, 1)
    }

    /// An empty cache of several streams with `slots` slots each, for sequences that share nothing. A stream
    /// has its own exact rows, means and maps. Slots are counted over all streams: the first slot of
    /// stream i is `i * slots`.
    ///
    /// # Errors
    /// The same as [`SlotCache::new`].
    pub fn with_streams(mut spec: CacheSpec, slots: usize, streams: usize) -> Result<Self, CacheError> {
        policy::check(&spec)?;
        if !slots.checked_mul(streams).is_some_and(|all| (1..=MOST_SLOTS).contains(&all)) {
            return Err(CacheError::BadSpec(format!(
                "{streams} streams of {slots} slots: expected 1 to {MOST_SLOTS} slots in all"
            )));
        }
        threads::start()?;
        let level = spec.level.map_or_else(Level::detect, Ok).map_err(CacheError::Level)?;
        spec.level = Some(level);
        let mut layers = memory::list(spec.shape.num_layers)?;
        for layer in 0..spec.shape.num_layers {
            let KvShape { num_kv_heads, head_dim, value_dim, .. } = spec.shape_at(layer);
            let (key, value) = spec.codecs_at(layer);
            let mut keys = SlotStore::new(StoreSide::Keys, &spec, num_kv_heads * head_dim, slots, streams);
            let mut values =
                SlotStore::new(StoreSide::Values, &spec, num_kv_heads * value_dim, slots, streams);
            for (store, dim, id) in [(&mut keys, head_dim, key), (&mut values, value_dim, value)] {
                if !store.divide(dim, id) {
                    let why = format!("codec {} has no pages at the head dim {dim}", id.name());
                    return Err(CacheError::BadSpec(why));
                }
            }
            layers.push(SlotLayer { keys, values });
        }
        Ok(Self { spec, slots, streams, layers })
    }

    /// The spec of the cache, with the detected instruction set.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Number of slots in each stream.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Bytes that keys and values take, and all that is kept with them. Address space that nothing was
    /// written to does not count.
    pub fn allocated_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.keys.held_bytes() + layer.values.held_bytes()).sum()
    }

    /// Writes tokens to slots of one layer. `k` is `[n, num_kv_heads, head_dim]`, after RoPE, and `v` is
    /// `[n, num_kv_heads, value_dim]`, for the n slots. What the slots held before is gone. `positions` are
    /// those of the tokens in their sequences, from 0: tokens at positions below [`CacheSpec::sinks`] stay
    /// f16, whichever slots they are in. A slot that is given twice holds the later of its rows, as after two calls.
    ///
    /// Cost: each row is copied to f16. It is encoded by a later [`SlotCache::attend`].
    ///
    /// # Errors
    /// * The slices have the wrong length, or there is no such layer or slot.
    /// * [`CacheError::BadValue`]: a value is not finite or above 65,504. `token` counts the given slots.
    ///
    /// Nothing is written in these cases.
    pub fn write<'a>(
        &mut self,
        layer: usize,
        slots: &[usize],
        positions: &[usize],
        k: impl Into<Floats<'a>>,
        v: impl Into<Floats<'a>>,
    ) -> Result<(), CacheError> {
        let (k, v) = (k.into(), v.into());
        self.check_rows(layer, slots, positions, k, v)?;
        let SlotLayer { keys, values } = &mut self.layers[layer];
        keys.write_rows(slots, positions, k);
        values.write_rows(slots, positions, v);
        Ok(())
    }

    /// Checks the slots and lengths of rows of a layer.
    fn check(
        &self,
        layer: usize,
        slots: &[usize],
        k: Floats<'_>,
        v: Floats<'_>,
    ) -> Result<KvShape, CacheError> {
        self.spec.shape.check_layer(layer)?;
        let shape = self.spec.shape_at(layer);
        let n = shape.check_tokens(layer, k.len(), v.len())?;
        check_length("slots", slots.len(), n)?;
        self.check_slots(slots)?;
        Ok(shape)
    }

    /// Checks rows that are to be written to slots of a layer.
    fn check_rows(
        &self,
        layer: usize,
        slots: &[usize],
        positions: &[usize],
        k: Floats<'_>,
        v: Floats<'_>,
    ) -> Result<(), CacheError> {
        let shape = self.check(layer, slots, k, v)?;
        check_length("positions", positions.len(), slots.len())?;
        for (what, values, dim) in [("key", k, shape.head_dim), ("value", v, shape.value_dim)] {
            for row in 0..slots.len() * shape.num_kv_heads {
                if !values.part(row * dim, (row + 1) * dim).fits_f16() {
                    let (token, kv_head) = (row / shape.num_kv_heads, row % shape.num_kv_heads);
                    return Err(CacheError::BadValue { layer, what, token, kv_head });
                }
            }
        }
        Ok(())
    }

    fn check_slots(&self, slots: &[usize]) -> Result<(), CacheError> {
        let all = self.slots * self.streams;
        let wrong = slots.iter().find(|slot| **slot >= all);
        wrong.map_or(Ok(()), |&slot| Err(CacheError::Slot { slot, slots: all }))
    }

    /// Attends with one token per query of the mask. `q` is `[n, num_heads, head_dim]`, in f32, f16 or bf16. `out` is
    /// `[n, num_heads, value_dim]`. Then it encodes the rows of the layer that are older than the newest
    /// [`CacheSpec::hot`] of their stream, so that all queries of a step see the rows of that step in f16.
    ///
    /// A slot that was never written counts as zeros. A query that sees no slot gets zeros. The number of
    /// threads changes no bit of the result.
    ///
    /// # Errors
    /// * The slices have the wrong length, or there is no such layer or stream.
    /// * The mask is for another number of slots.
    /// * A query is not finite; the error names its layer and head.
    pub fn attend<'a>(
        &mut self,
        layer: usize,
        q: impl Into<Floats<'a>>,
        mask: &Mask,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.spec.shape.check_layer(layer)?;
        let shape = self.spec.shape_at(layer);
        let of = (shape, store::level(&self.spec));
        let q = &*q.into().queries(of, layer, mask.queries(), out.len())?;
        check_length("mask", mask.slots(), self.slots)?;
        if mask.stream() >= self.streams {
            let slots = self.slots * self.streams;
            return Err(CacheError::Slot { slot: mask.stream() * self.slots, slots });
        }
        let KvShape { num_heads, head_dim, value_dim, .. } = shape;
        let rows = Strided { values: mask.rows(), steps: [self.slots, 0, 0] };
        let operation = Operation {
            rule: QueryRule {
                scale: self.spec.scale_at(layer),
                soft_cap: self.spec.soft_cap,
                slots: mask.end(),
            },
            first_streams: [mask.stream(); 2],
            streams: 1,
            tokens: mask.queries(),
            query_heads: num_heads,
            queries: Strided { values: q, steps: [num_heads * head_dim, head_dim, 0] },
            masks: Some(Masks { rows, counts: [1, 1] }),
            sinks: self.spec.sink_logits_at(layer),
            slopes: &[],
        };
        let SlotLayer { keys, values } = &mut self.layers[layer];
        let steps = [num_heads * value_dim, value_dim, 0];
        let products = mask.queries() * num_heads * mask.end() * (head_dim + value_dim);
        let mut run = || operation.run((keys, values), &mut *out, steps);
        let is_parallel = products >= PARALLEL_PRODUCTS && threads::several();
        let done = if is_parallel { threads::share(run) } else { run() };
        // Never so, as all lengths were checked. But results that were not written must not look like results.
        let missing = KvError::Length { what: "out", got: out.len(), expected: mask.queries() * steps[0] };
        done.ok_or(missing.into())
    }

    /// Encodes the rows of a layer that are older than the newest [`CacheSpec::hot`] of their stream.
    /// [`SlotCache::attend`] does this by itself; a caller that writes without attending saves memory by it.
    ///
    /// # Errors
    /// There is no such layer.
    pub fn encode(&mut self, layer: usize) -> Result<(), CacheError> {
        self.spec.shape.check_layer(layer)?;
        let SlotLayer { keys, values } = &mut self.layers[layer];
        store::cool(keys, values);
        Ok(())
    }

    /// Copies slots in all layers: slot `from[i]` to slot `to[i]`, in that order. Codes are copied as they
    /// are, sinks stay sinks, and other exact rows count as new writes. A copy of an empty slot empties a slot, as
    /// [`SlotCache::forget`] does.
    ///
    /// In another stream, codes stay as they are if it can have their means: an empty stream takes over those of the
    /// source, and its maps, and another one gets them too while there is room. Else, and where a stream has other maps,
    /// rows are decoded, and encoded again later.
    ///
    /// # Errors
    /// There is no such slot, or the lists have different lengths. Nothing is copied then.
    pub fn copy(&mut self, from: &[usize], to: &[usize]) -> Result<(), CacheError> {
        check_length("slots", to.len(), from.len())?;
        self.check_slots(from)?;
        self.check_slots(to)?;
        self.stores().for_each(|store| store.copy_rows(from, to));
        Ok(())
    }

    /// Moves tokens of a layer by a number of positions, back if it is negative: those after a part that was removed,
    /// or a chunk that is used again at another place. Their keys are turned by `rope`, which tells how positions turn
    /// the keys of the layer. A slot that is given twice moves once. Sinks stay sinks.
    ///
    /// Codes stay as they are, because attention turns queries back instead, so that any number of shifts has no error
    /// of the codec. A stream keeps up to eight different moves of its codes. Where a shift makes more, the keys
    /// with the rarest moves are encoded again. Exact keys are turned, and rounded to f16.
    ///
    /// Cost: a pass over the slots, and attention prepares its queries once more for each move that codes have.
    ///
    /// # Errors
    /// * There is no such layer or slot.
    /// * [`CacheError::BadRope`]: `rope` turns values past the head dim, or by a frequency that is not finite.
    ///
    /// Nothing is moved in these cases.
    pub fn shift(
        &mut self,
        layer: usize,
        slots: &[usize],
        positions: i32,
        rope: &Rope,
    ) -> Result<(), CacheError> {
        self.spec.shape.check_layer(layer)?;
        self.check_slots(slots)?;
        let (head_dim, end) =
            (self.spec.shape_at(layer).head_dim, slots.iter().max().map_or(0, |last| last + 1));
        let turned = rope.inv_freq.len().checked_mul(2).and_then(|values| values.checked_add(rope.first));
        if turned.is_none_or(|turned| turned > head_dim) {
            let (first, pairs) = (rope.first, rope.inv_freq.len());
            let why =
                format!("of {pairs} pairs from value {first} on: expected at most the head dim, {head_dim}");
            return Err(CacheError::BadRope(why));
        }
        if let Some(frequency) = rope.inv_freq.iter().find(|frequency| !frequency.is_finite()) {
            return Err(CacheError::BadRope(format!(
                "with the frequency {frequency}: expected a finite one"
            )));
        }
        let mut shifts = memory::list(end)?;
        shifts.resize(end, 0);
        slots.iter().for_each(|slot| shifts[*slot] = positions);
        turn(&mut self.layers[layer].keys, &mut Turner::of_rope(head_dim, rope), &shifts);
        Ok(())
    }

    /// Empties slots in all layers, and frees their memory. A stream whose slots are all empty starts anew:
    /// it learns its means and maps again.
    ///
    /// # Errors
    /// There is no such slot. Nothing changes then.
    pub fn forget(&mut self, slots: &[usize]) -> Result<(), CacheError> {
        self.check_slots(slots)?;
        self.stores().for_each(|store| store.forget(slots));
        Ok(())
    }

    /// Empties all slots.
    pub fn clear(&mut self) {
        self.stores().for_each(SlotStore::clear);
    }

    /// Reads slots of a layer as f16: `k` is `[n, num_kv_heads, head_dim]`, `v` is `[n, num_kv_heads,
    /// value_dim]`. Exact rows are the ones that were written, codes are decoded, and empty slots are zeros.
    ///
    /// # Errors
    /// The slices have the wrong length, or there is no such layer or slot.
    pub fn read(
        &self,
        layer: usize,
        slots: &[usize],
        k: &mut [f16],
        v: &mut [f16],
    ) -> Result<(), CacheError> {
        self.check(layer, slots, Floats::F16(&*k), Floats::F16(&*v))?;
        let SlotLayer { keys, values } = &self.layers[layer];
        for (store, out) in [(keys, k), (values, v)] {
            let rows = slots.iter().zip(out.chunks_exact_mut(store.width()));
            rows.for_each(|(&slot, row)| store.read(slot, row));
        }
        Ok(())
    }

    /// Writes rows that [`SlotCache::read`] gave back to slots of a layer, those of a saved state for
    /// example. `positions` are those of [`SlotCache::write`]. A slot that already reads back as these values stays as
    /// it is, exact or code. Decoded rows become the same codes again in a stream that has no codes yet, in any slots,
    /// except for keys with a map and for vectors whose code f16 does not tell: one in a hundred, and in `i8` a quarter
    /// of those that are several times as long as their spread. Their means are searched, which succeeds if the first 64
    /// that leave gave the first mean of the saved stream.
    ///
    /// # Errors
    /// Those of [`SlotCache::write`]. Nothing is written then.
    pub fn restore(
        &mut self,
        layer: usize,
        slots: &[usize],
        positions: &[usize],
        k: &[f16],
        v: &[f16],
    ) -> Result<(), CacheError> {
        self.check_rows(layer, slots, positions, Floats::F16(k), Floats::F16(v))?;
        let SlotLayer { keys, values } = &mut self.layers[layer];
        keys.restore(slots, positions, k);
        values.restore(slots, positions, v);
        Ok(())
    }

    /// Keys and values of all layers.
    fn stores(&mut self) -> impl Iterator<Item = &mut SlotStore> {
        self.layers.iter_mut().flat_map(|layer| [&mut layer.keys, &mut layer.values])
    }
}

fn check_length(what: &'static str, got: usize, expected: usize) -> Result<(), CacheError> {
    if got == expected { Ok(()) } else { Err(KvError::Length { what, got, expected }.into()) }
}
