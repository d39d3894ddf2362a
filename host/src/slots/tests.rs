//! Codes and logits of tokens in order are those of the cache of a sequence, to the bit.

use super::codes::{self, prepare};
use super::exact;
use super::format::Side;
use super::rule::{Asked, Rule};
use super::store::Store;
use super::stream::Place;
use super::task::{Task, Track};
use crate::cache::life::PAGE_TOKENS;
use crate::cache::{CacheSpec, KvCache};
use half::f16;
use tqkv_core::CodecId;

const DIM: usize = 64;

/// Logits of one query over all slots of the first stream.
fn logits(keys: &Store, query: &[f32], slots: usize) -> Vec<f32> {
    let rule = Rule { scale: 1.0 / (DIM as f32).sqrt(), soft_cap: None, slots };
    let track = Track { stream: keys.stream(0).unwrap(), format: keys.format().unwrap(), head: 0 };
    let task = Task { rule: &rule, keys: track, values: track, asked: &[Asked::default()], queries: query };
    let (mut scratch, mut wide) = (codes::Scratch::default(), Vec::new());
    prepare(&task, query, &mut scratch);
    let scaled: Vec<f32> = query.iter().map(|x| x * rule.scale).collect();
    let logit = |slot: usize| match track.stream.place(slot) {
        Place::Exact(row) => {
            let mut logit = [0.0];
            exact::score(track, row..row + 1, &scaled, &mut logit, &mut wide);
            logit[0]
        }
        Place::Coded => {
            codes::score(track, (slot / PAGE_TOKENS, slot / PAGE_TOKENS), PAGE_TOKENS, &mut scratch);
            scratch.logits[slot % PAGE_TOKENS]
        }
        Place::Empty => f32::NAN,
    };
    (0..slots).map(logit).collect()
}

/// The code of a slot.
fn block_of(keys: &Store, slot: usize) -> Vec<u8> {
    let (stream, format) = (keys.stream(0).unwrap(), keys.format().unwrap());
    assert_eq!(stream.place(slot), Place::Coded, "slot {slot}");
    format.read(stream.page(0, slot / PAGE_TOKENS).unwrap(), &[slot % PAGE_TOKENS])
}

#[test]
fn codes_and_logits_of_tokens_in_order_are_those_of_a_sequence() {
    const TOKENS: usize = 300;
    let mut coded = 0;
    // Codes of quarters need a map, which is learnt in another way. Rows of f16 never leave here, and lie in
    // pages there, whose sums have another order.
    let codecs = CodecId::ALL.iter().copied();
    for id in codecs.filter(|id| !id.rotates_quarters() && *id != CodecId::F16) {
        for text in ["", "hot=0 sinks=0", "hot=5 sinks=1 centring=off"] {
            let spec = CacheSpec::new(1, 1, 1, DIM).codecs(id, id);
            let spec = if text.is_empty() { spec } else { spec.with(text).unwrap() };
            let mut store = Store::new(Side::Keys, &spec, DIM, 512, 1);
            if !store.divide(DIM, id) {
                continue;
            }
            let mut sequence = KvCache::new(spec).unwrap();
            let mut state = 7_u32;
            let mut value = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f16::from_f32((state >> 16) as f32 / 32768.0 - 1.0)
            };
            for slot in 0..TOKENS {
                let row: Vec<f16> = (0..DIM).map(|_| value()).collect();
                sequence.append(0, &row, &row).unwrap();
                store.write(slot, &row);
                store.cool();
            }
            for run in sequence.key_blocks(0, 0).unwrap() {
                let bytes = id.block_bytes(DIM).unwrap();
                for (slot, block) in (run.first..).zip(run.blocks.chunks_exact(bytes)) {
                    assert_eq!(block_of(&store, slot), block, "{id:?} {text}: token {slot}");
                }
            }
            let query: Vec<f32> = (0..DIM).map(|_| value().to_f32()).collect();
            let (own, others) = (logits(&store, &query, TOKENS), sequence.scores(0, 0, &query).unwrap());
            let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&own), bits(&others), "{id:?} {text}");
            coded += 1;
        }
    }
    assert!(coded > 20, "{coded} caches");
}
