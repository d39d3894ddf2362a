//! The cache without a host: random writes, masks and queries against sums in f64.

use super::random::Random;
use half::f16;
use tqkv::CodecId;
use tqkv::cache::CacheSpec;
use tqkv::cache::KeyMap;
use tqkv::unstable::slots::{
    QueryMask, QueryRule, RopeLayout, Shift, SlotStore, StoreSide, StreamSide, attend, rotate,
};

const SLOTS: usize = 2300;
const HEADS: usize = 2;
const DIM: usize = 64;

fn store(side: StoreSide, id: CodecId, hot: usize) -> SlotStore {
    let mut store = SlotStore::new(side, &CacheSpec::new(1, 1, 1, DIM).hot(hot), HEADS * DIM, SLOTS, 2);
    assert!(store.divide(DIM, id));
    store
}

/// A store of keys whose streams learn maps.
fn mapped(id: CodecId, hot: usize) -> SlotStore {
    let mut spec = CacheSpec::new(1, 1, 1, DIM).hot(hot);
    spec.key_map = KeyMap::Pairs;
    let mut store = SlotStore::new(StoreSide::Keys, &spec, HEADS * DIM, SLOTS, 2);
    assert!(store.divide(DIM, id));
    store
}

/// The scale is small, so that all keys get attention.
const PLAIN: QueryRule = QueryRule { scale: 0.01, soft_cap: None, slots: SLOTS };

/// Shows `n` queries to each head of each stream. Their coordinate i is multiplied by `loudness(i)`.
fn teach(store: &mut SlotStore, random: &mut Random, n: usize, loudness: impl Fn(usize) -> f32) {
    for (stream, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let queries: Vec<f32> = (0..n * DIM).map(|i| random.normal() * loudness(i % DIM)).collect();
        store.show((stream, head), &PLAIN, &vec![QueryMask::default(); n], &queries);
    }
}

fn rows(store: &SlotStore, stream: usize) -> Vec<f32> {
    let mut rows = vec![f16::ZERO; SLOTS * HEADS * DIM];
    store.read(stream * SLOTS, &mut rows);
    rows.iter().map(|x| x.to_f32()).collect()
}

/// Attention of one query, computed in f64.
fn exact(
    rule: &QueryRule,
    asked: &QueryMask<'_>,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    head: usize,
) -> Vec<f64> {
    let vector = |rows: &[f32], slot: usize| {
        let at = (slot * HEADS + head) * DIM;
        rows[at..at + DIM].iter().map(|&x| f64::from(x)).collect::<Vec<f64>>()
    };
    let mut weights: Vec<f64> = (0..rule.slots)
        .map(|slot| {
            let dot: f64 = vector(keys, slot).iter().zip(q).map(|(k, &q)| k * f64::from(q)).sum();
            let mut logit = dot * f64::from(rule.scale);
            if let Some(cap) = rule.soft_cap.map(f64::from) {
                logit = cap * (logit / cap).tanh();
            }
            (logit + f64::from(asked.slope) * asked.mask[slot].to_f64()).exp()
        })
        .collect();
    let sum: f64 = weights.iter().sum::<f64>() + asked.sink.map_or(0.0, |sink| f64::from(sink).exp());
    weights.iter_mut().for_each(|weight| *weight /= if sum == 0.0 { 1.0 } else { sum });
    let mut out = vec![0.0; DIM];
    for (slot, weight) in weights.iter().enumerate() {
        out.iter_mut().zip(vector(values, slot)).for_each(|(o, v)| *o += weight * v);
    }
    out
}

fn check_steps((key, value): (CodecId, CodecId), hot: usize, tolerance: f64) {
    check_steps_of(store(StoreSide::Keys, key, hot), (key, value), hot, tolerance);
}

fn check_steps_of(mut keys: SlotStore, (key, value): (CodecId, CodecId), hot: usize, tolerance: f64) {
    let mut random = Random(key as u64 + hot as u64);
    let mut values = store(StoreSide::Values, value, hot);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for step in 0..40 {
        for _ in 0..random.below(300) {
            let row = random.below(2 * SLOTS);
            let mut vector = |mean: f32| -> Vec<f16> {
                (0..HEADS * DIM).map(|i| f16::from_f32(random.normal() + mean * (i % 5) as f32)).collect()
            };
            let (key, value) = (vector(0.3), vector(0.0));
            keys.write(row, &key);
            values.write(row, &value);
        }
        if step % 3 > 0 {
            if keys.is_learning(0) || keys.is_learning(1) {
                teach(&mut keys, &mut random, 8, |i| if i % 32 < 8 { 4.0 } else { 1.0 });
            }
            keys.cool();
            values.cool();
        }
        let (stream, head, n) =
            (random.below(2), random.below(HEADS), [1 + random.below(8), 1 + random.below(40)][step % 2]);
        let rule = QueryRule {
            scale: 0.125,
            soft_cap: [None, Some(15.0)][random.below(2)],
            slots: 1 + random.below(SLOTS),
        };
        let density = 1 + random.below(4);
        let mut mask = || if random.below(density) == 0 { f16::ZERO } else { f16::NEG_INFINITY };
        let masks: Vec<Vec<f16>> = (0..n).map(|_| (0..rule.slots).map(|_| mask()).collect()).collect();
        let sinks: Vec<Option<f32>> = (0..n).map(|i| (i % 2 == 0).then(|| random.normal())).collect();
        let asked: Vec<QueryMask<'_>> =
            masks.iter().zip(&sinks).map(|(mask, &sink)| QueryMask { mask, slope: 1.0, sink }).collect();
        let q: Vec<f32> = (0..n * DIM).map(|_| random.normal()).collect();
        let mut out = vec![f32::NAN; n * DIM];
        let of = |store| StreamSide {
            stream: SlotStore::stream(store, stream).unwrap(),
            format: store.format().unwrap(),
            head,
        };
        attend(&rule, (of(&keys), of(&values)), &asked, &q, &mut out);
        let mut again = vec![f32::NAN; n * DIM];
        threads.install(|| attend(&rule, (of(&keys), of(&values)), &asked, &q, &mut again));
        assert_eq!(out, again, "the same bits from any number of threads");
        let (k, v) = (rows(&keys, stream), rows(&values, stream));
        for (i, out) in out.chunks_exact(DIM).enumerate() {
            let wanted = exact(&rule, &asked[i], &q[i * DIM..(i + 1) * DIM], &k, &v, head);
            let error: f64 = out.iter().zip(&wanted).map(|(&o, w)| (f64::from(o) - w).powi(2)).sum();
            // Values are about 1, so this is nearly a relative error.
            let error = (error / DIM as f64).sqrt();
            assert!(error <= tolerance, "{key:?},{value:?} hot {hot} step {step} query {i}: {error}");
        }
    }
}

#[test]
fn attention_over_random_slots_and_masks_is_that_of_f64() {
    check_steps((CodecId::F16, CodecId::F16), 64, 1e-5);
    for hot in [0, 7, 64] {
        for id in [CodecId::I8, CodecId::S4, CodecId::T2] {
            check_steps((id, id), hot, 0.03);
        }
        // One side is always exact, so that a coded slot of the other side is never alike.
        check_steps((CodecId::F16, CodecId::I8), hot, 0.03);
        check_steps((CodecId::S4, CodecId::F16), hot, 0.03);
    }
}

#[test]
fn attention_over_mapped_keys_is_that_of_f64() {
    for hot in [0, 7, 64] {
        for (key, tolerance) in [(CodecId::T2, 0.03), (CodecId::M2, 0.03), (CodecId::M3, 0.03)] {
            check_steps_of(mapped(key, hot), (key, CodecId::T2), hot, tolerance);
        }
    }
}

/// Squared error of logits of keys, over their variance, where four pairs of queries are loud.
fn logit_error(mut keys: SlotStore, loud: impl Fn(usize) -> bool) -> f64 {
    let mut random = Random(77);
    let loudness = |i: usize| if loud(i) { 8.0 } else { 1.0 };
    let mut written = Vec::new();
    for slot in 0..600 {
        let row: Vec<f16> = (0..HEADS * DIM).map(|_| f16::from_f32(random.normal())).collect();
        keys.write(slot, &row);
        written.extend(row.iter().map(|x| x.to_f32()));
    }
    teach(&mut keys, &mut random, 20, loudness);
    keys.cool();
    let held = rows(&keys, 0);
    let (mut error, mut energy) = (0.0, 0.0);
    for _ in 0..20 {
        let query: Vec<f32> = (0..DIM).map(|i| random.normal() * loudness(i)).collect();
        for (held, written) in held.chunks_exact(DIM).zip(written.chunks_exact(DIM)) {
            let logit = |key: &[f32]| key.iter().zip(&query).map(|(k, q)| f64::from(k * q)).sum::<f64>();
            error += (logit(held) - logit(written)).powi(2);
            energy += logit(written).powi(2);
        }
    }
    error / energy
}

#[test]
fn a_map_moves_the_error_of_keys_away_from_loud_pairs() {
    let halves = |i: usize| i % (DIM / 2) < 4;
    let neighbours = |i: usize| i / 2 < 4;
    let plain = logit_error(store(StoreSide::Keys, CodecId::T2, 0), halves);
    let of_halves = logit_error(mapped(CodecId::T2, 0), halves);
    assert!(of_halves < 0.5 * plain, "{of_halves} and {plain}");
    // Pairs of another kind than expected gain less.
    let unturned = logit_error(mapped(CodecId::T2, 0), neighbours);
    let mut keys = mapped(CodecId::T2, 0);
    keys.set_turn(RopeLayout { dims: DIM, halves: false });
    let turned = logit_error(keys, neighbours);
    assert!(turned < 0.5 * plain && turned < 0.9 * unturned, "{turned}, {unturned} and {plain}");
    let quarters = logit_error(mapped(CodecId::M2, 0), halves);
    assert!(quarters < 0.9 * of_halves, "{quarters} and {of_halves}");
}

#[test]
fn mapped_keys_wait_for_queries() {
    let mut random = Random(3);
    let mut keys = mapped(CodecId::T2, 16);
    for slot in 0..300 {
        keys.write(slot, &(0..HEADS * DIM).map(|_| f16::from_f32(random.normal())).collect::<Vec<_>>());
    }
    let written = rows(&keys, 0);
    let changed = |keys: &SlotStore| written.iter().zip(rows(keys, 0)).filter(|(a, b)| **a != *b).count();
    keys.cool();
    // Queries among few rows do not count.
    let few = QueryRule { slots: 40, ..PLAIN };
    keys.show((0, 0), &few, &[QueryMask::default(); 30], &[1.0; 30 * DIM]);
    teach(&mut keys, &mut random, 15, |_| 1.0);
    keys.cool();
    assert!(keys.is_learning(0) && changed(&keys) == 0);
    teach(&mut keys, &mut random, 1, |_| 1.0);
    keys.cool();
    assert!(!keys.is_learning(0) && keys.is_learning(1) && changed(&keys) > 200 * HEADS * DIM);
    // Rows of a state that come back where the maps are keep their codes.
    let mut state = vec![f16::ZERO; 300 * HEADS * DIM];
    keys.read(0, &mut state);
    let rows: Vec<usize> = (0..300).collect();
    keys.restore(&rows, &rows, &state);
    let mut again = vec![f16::ZERO; state.len()];
    keys.read(0, &mut again);
    assert!(state == again);
    keys.clear();
    assert!(keys.is_learning(0));
}

#[test]
fn rows_are_exact_until_they_leave_and_close_afterwards() {
    let mut random = Random(5);
    let mut store = store(StoreSide::Values, CodecId::T4, 16);
    let mut written = vec![vec![f16::ZERO; HEADS * DIM]; SLOTS];
    for _ in 0..500 {
        let slot = random.below(SLOTS);
        written[slot] = (0..HEADS * DIM).map(|_| f16::from_f32(random.normal())).collect();
        store.write(slot, &written[slot]);
        let mut row = vec![f16::ZERO; HEADS * DIM];
        store.read(slot, &mut row);
        assert_eq!(row, written[slot]);
        store.cool();
    }
    let held = rows(&store, 0);
    let (mut exact, mut error, mut energy) = (0, 0.0, 0.0);
    for (held, written) in held.chunks_exact(HEADS * DIM).zip(&written) {
        let difference: f32 = held.iter().zip(written).map(|(h, w)| (h - w.to_f32()).powi(2)).sum();
        exact += usize::from(difference == 0.0 && written.iter().any(|x| *x != f16::ZERO));
        error += difference;
        energy += written.iter().map(|x| x.to_f32().powi(2)).sum::<f32>();
    }
    // The newest 16, up to three that wait for a group of four, and the first four.
    assert!((16..=23).contains(&exact), "{exact}");
    assert!(error < 0.01 * energy, "{error} of {energy}");
    assert!(store.held_bytes() < SLOTS * HEADS * DIM * 2, "{}", store.held_bytes());
}

#[test]
fn rows_of_a_saved_state_become_the_same_codes_again() {
    const ROWS: usize = 420;
    for (side, hot, mean) in [
        (StoreSide::Values, 64, 0.0),
        (StoreSide::Keys, 0, 0.0),
        (StoreSide::Keys, 64, 0.5),
        (StoreSide::Keys, 64, 8.0),
    ] {
        for id in [CodecId::I8, CodecId::S4, CodecId::T4, CodecId::T2] {
            let mut random = Random(id as u64);
            let mut saved = store(side, id, hot);
            for row in 0..ROWS {
                let value = |i: usize| random.normal() + if i % 7 == 3 { mean } else { 0.2 * mean };
                saved.write(row, &(0..HEADS * DIM).map(value).map(f16::from_f32).collect::<Vec<_>>());
                saved.cool();
            }
            let mut state = vec![f16::ZERO; ROWS * HEADS * DIM];
            saved.read(0, &mut state);
            let mut restored = store(side, id, hot);
            let rows: Vec<usize> = (0..ROWS).collect();
            restored.restore(&rows, &rows, &state);
            let mut again = vec![f16::ZERO; state.len()];
            restored.read(0, &mut again);
            let vectors = state.chunks_exact(DIM).zip(again.chunks_exact(DIM));
            let others = vectors.filter(|(saved, again)| saved != again).count();
            // f16 rounds a large key by as much as half of a step of eight-bit codes.
            let most = if mean < 1.0 {
                4
            } else if id == CodecId::I8 {
                210
            } else {
                12
            };
            assert!(others <= most, "{side:?} {id:?} mean {mean}: {others} of {}", ROWS * HEADS);
        }
    }
}

#[test]
fn a_row_that_cannot_be_encoded_stays_exact() {
    let mut store = store(StoreSide::Values, CodecId::S4, 0);
    let mut row = vec![f16::ONE; HEADS * DIM];
    row[3] = f16::INFINITY;
    for slot in 10..20 {
        store.write(slot, if slot == 12 { &row } else { &[f16::ONE; HEADS * DIM] });
    }
    store.cool();
    let mut held = vec![f16::ZERO; HEADS * DIM];
    store.read(12, &mut held);
    assert_eq!(held, row);
    store.clear();
    store.read(12, &mut held);
    assert!(held.iter().all(|x| *x == f16::ZERO));
}

/// Relative error of keys after `shifts` shifts by 8 positions back. The reference is keys that were rotated
/// once and never encoded.
fn shift_error(coded: SlotStore, shift: &Shift, shifts: usize) -> f32 {
    let mut random = Random(9);
    let (mut coded, mut exact) = (coded, store(StoreSide::Keys, CodecId::F16, 0));
    for slot in 0..SLOTS {
        let row: Vec<f16> = (0..HEADS * DIM).map(|_| f16::from_f32(random.normal())).collect();
        coded.write(slot, &row);
        exact.write(slot, &row);
    }
    if coded.is_learning(0) {
        teach(&mut coded, &mut random, 20, |i| if i % (DIM / 2) < 8 { 2.0 } else { 1.0 });
    }
    coded.cool();
    for _ in 0..shifts {
        rotate(&mut coded, shift, &[-8; 2 * SLOTS]);
    }
    let once = Shift { factor: shift.factor.powi(shifts as i32), ..shift.clone() };
    rotate(&mut exact, &once, &vec![-8 * shifts as i32; 2 * SLOTS]);
    let (a, b) = (rows(&coded, 0), rows(&exact, 0));
    let error: f32 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    (error / b.iter().map(|x| x * x).sum::<f32>()).sqrt()
}

#[test]
fn shifts_lose_nothing() {
    for id in [CodecId::I8, CodecId::S4, CodecId::T4, CodecId::T2] {
        for keys in [|id| store(StoreSide::Keys, id, 0), |id| mapped(id, 0)] {
            let errors = [0, 1, 10, 100].map(|shifts| shift_error(keys(id), &Shift::plain(DIM), shifts));
            println!("{}: {errors:.5?}", id.name());
            assert!(errors.iter().all(|error| (error / errors[0] - 1.0).abs() < 0.01), "{id:?}: {errors:?}");
        }
    }
}

/// Codes of keys that get longer with each shift are encoded again.
#[test]
fn shifts_that_change_lengths_lose_what_as_many_encodings_lose() {
    let shift = Shift { factor: 1.01, ..Shift::plain(DIM) };
    for id in [CodecId::I8, CodecId::S4, CodecId::T4, CodecId::T2] {
        let errors = [0, 1, 10].map(|shifts| shift_error(store(StoreSide::Keys, id, 0), &shift, shifts));
        println!("{}: {errors:.5?}", id.name());
        // Squares of independent errors add up; with 2 bits, the length of vectors grows a little too.
        assert!(errors[1] < 1.5 * errors[0] && errors[2] < 4.2 * errors[0], "{id:?}: {errors:?}");
    }
}
