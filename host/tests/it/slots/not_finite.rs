//! Values that are not finite: one sequence that writes them changes nothing for the others.

use super::lives::{Choose, codecs, live};
use super::random::Random;
use half::f16;
use tqkv::CodecId;
use tqkv::cache::CacheSpec;
use tqkv::cache::KeyMap;
use tqkv::unstable::slots::{QueryMask, QueryRule, SlotStore, StoreSide, StreamSide, attend};

const SLOTS: usize = 300;
const DIM: usize = 64;
/// The slots of four sequences in turns. Sequence 1 writes rows that are not finite.
const SEQUENCES: usize = 4;
/// Slots of sequence 1 whose rows are not finite, in two pages.
const ODD: [usize; 3] = [1, 77, 149];

/// A row of all finite values, equal in every store.
fn row(slot: usize, side: StoreSide) -> Vec<f16> {
    let mut random = Random(3 * slot as u64 + (side == StoreSide::Keys) as u64);
    (0..DIM).map(|_| f16::from_f32(random.normal())).collect()
}

/// Keys and values of one head, with `odd` in the rows of sequence 1 on the sides that have one.
struct Pair([SlotStore; 2]);

impl Pair {
    fn new(ids: [CodecId; 2], hot: usize, odd: [Option<f16>; 2]) -> Self {
        let mut spec = CacheSpec::new(1, 1, 1, DIM).hot(hot);
        if ids[0].rotates_quarters() {
            spec.key_map = KeyMap::Pairs;
        }
        Self(std::array::from_fn(|i| {
            let side = [StoreSide::Keys, StoreSide::Values][i];
            let mut store = SlotStore::new(side, &spec, DIM, SLOTS, 1);
            assert!(store.divide(DIM, ids[i]));
            for slot in 0..SLOTS {
                let mut row = row(slot, side);
                if let Some(x) = odd[i].filter(|_| ODD.contains(&slot)) {
                    (row[3], row[40]) = (x, f16::NEG_ONE * x);
                }
                store.write(slot, &row);
            }
            store
        }))
    }

    fn cool(&mut self) {
        self.0.iter_mut().for_each(SlotStore::cool);
    }

    /// The outputs of `n` queries; query `q` is of sequence `first + q`, at the last position that is left.
    fn attend(&mut self, n: usize, first: usize, until: usize) -> Vec<f32> {
        let mut random = Random(11);
        let queries: Vec<f32> = (0..n * DIM).map(|_| random.normal()).collect();
        let masks: Vec<Vec<f16>> = (0..n)
            .map(|q| {
                let is_seen = |slot: usize| slot < until && slot % SEQUENCES == (first + q) % SEQUENCES;
                (0..SLOTS).map(|slot| if is_seen(slot) { f16::ZERO } else { f16::NEG_INFINITY }).collect()
            })
            .collect();
        let asked: Vec<QueryMask<'_>> =
            masks.iter().map(|mask| QueryMask { mask, slope: 1.0, sink: None }).collect();
        let rule = QueryRule { scale: 0.125, soft_cap: None, slots: SLOTS };
        let of = |store| StreamSide {
            stream: SlotStore::stream(store, 0).unwrap(),
            format: store.format().unwrap(),
            head: 0,
        };
        let mut out = vec![f32::NAN; n * DIM];
        attend(&rule, (of(&self.0[0]), of(&self.0[1])), &asked, &queries, &mut out);
        if self.0[0].is_learning(0) {
            self.0[0].show((0, 0), &rule, &asked, &queries);
        }
        out
    }
}

/// The sides that have a value which is not finite.
fn cases() -> impl Iterator<Item = [Option<f16>; 2]> {
    let odd = [f16::INFINITY, f16::NEG_INFINITY, f16::NAN];
    odd.into_iter().flat_map(|x| [[Some(x), None], [None, Some(x)], [Some(x), Some(x)]])
}

fn pairs() -> Vec<[CodecId; 2]> {
    let (keys, values) = (codecs(StoreSide::Keys), codecs(StoreSide::Values));
    let cycled = keys.iter().zip(values.iter().cycle());
    let others = [[CodecId::F16, CodecId::S4], [CodecId::S4, CodecId::F16]];
    cycled.map(|(key, value)| [*key, *value]).chain(others).collect()
}

#[test]
fn exact_rows_of_another_sequence_change_no_bit() {
    for odd in cases() {
        // The whole cache is exact until `cool`: hidden rows, rows of a sequence that the host has freed, and
        // rows that come later in the batch all lie among those that are seen.
        let [mut with, mut without] = [odd, [None; 2]].map(|odd| Pair::new([CodecId::S4; 2], 64, odd));
        for (n, until) in [(1, SLOTS), (8, SLOTS), (9, SLOTS), (40, SLOTS), (3, 70), (20, 70)] {
            for first in [0, 2] {
                let [a, b] = [&mut with, &mut without].map(|pair| pair.attend(n, first, until));
                let outs = a.chunks(DIM).zip(b.chunks(DIM)).enumerate();
                for (q, (a, b)) in outs.filter(|(q, _)| (first + q) % SEQUENCES != 1) {
                    assert_eq!(a, b, "{odd:?}, {n} queries, query {q}");
                }
            }
        }
    }
}

#[test]
fn a_row_that_is_seen_harms_its_own_sequence_alone() {
    for odd in cases() {
        let mut pair = Pair::new([CodecId::F16; 2], 64, odd);
        for n in [4, 12] {
            for (q, out) in pair.attend(n, 0, SLOTS).chunks(DIM).enumerate() {
                let (is_finite, sees_it) = (out.iter().all(|x| x.is_finite()), q % SEQUENCES == 1);
                assert!(is_finite || sees_it, "{odd:?}, query {q} of {n}");
                // A key may get the logit -inf, and its row no weight.
                assert!(!is_finite || !sees_it || odd[0].is_some(), "{odd:?}, query {q} of {n}");
            }
        }
    }
}

#[test]
fn codes_beside_rows_that_are_not_finite_are_as_good() {
    for ids in pairs() {
        for odd in cases() {
            let stores = [odd, [None; 2]].map(|odd| {
                let mut pair = Pair::new(ids, 64, odd);
                // Enough queries to learn a map from.
                pair.attend(40, 0, SLOTS);
                pair.cool();
                pair
            });
            let [mut with, mut without] = stores;
            for n in [1, 8, 40] {
                let [a, b] = [&mut with, &mut without].map(|pair| pair.attend(n, 2, SLOTS));
                let outs = a.chunks(DIM).zip(b.chunks(DIM)).enumerate();
                for (q, (a, b)) in outs.filter(|(q, _)| (2 + q) % SEQUENCES != 1) {
                    let error: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
                    let error = (error / DIM as f32).sqrt();
                    // The mean, the map and the order of sums differ, and with few bits each cache has errors
                    // of its own.
                    let most = if ids.iter().any(|id| id.bits() < 4) { 0.2 } else { 0.02 };
                    assert!(error < most, "{ids:?} {odd:?}, query {q} of {n}: {error}");
                }
            }
            let held = with.0.each_ref().map(SlotStore::held_bytes);
            let finite = without.0.each_ref().map(SlotStore::held_bytes);
            assert!(held.iter().zip(finite).all(|(a, b)| *a <= b + 4096), "{ids:?}: the others are encoded");
        }
    }
}

#[test]
fn means_and_maps_are_those_of_finite_keys() {
    for id in [CodecId::T2, CodecId::M2] {
        // Two stores with the same finite keys. One has rows in between that are not finite.
        let read = |is_odd: bool| {
            let mut spec = CacheSpec::new(1, 1, 1, DIM).hot(0).sinks(0);
            spec.key_map = KeyMap::Pairs;
            let mut store = SlotStore::new(StoreSide::Keys, &spec, DIM, SLOTS, 1);
            assert!(store.divide(DIM, id));
            let key = |slot: usize| {
                let key = row(slot, StoreSide::Keys);
                key.iter().enumerate().map(|(i, x)| *x + f16::from_f32((i % 5) as f32)).collect::<Vec<_>>()
            };
            for slot in 0..SLOTS - 20 {
                store.write(slot, &key(slot));
                if is_odd && slot % 17 == 0 {
                    store.write(SLOTS - 1 - slot / 17, &[f16::NAN; DIM]);
                }
            }
            let mut random = Random(5);
            let queries: Vec<f32> =
                (0..20 * DIM).map(|i| random.normal() * if i % 32 < 4 { 6.0 } else { 1.0 }).collect();
            let hidden = |slot| if slot < SLOTS - 20 { f16::ZERO } else { f16::NEG_INFINITY };
            let mask: Vec<f16> = (0..SLOTS).map(hidden).collect();
            let rule = QueryRule { scale: 0.01, soft_cap: None, slots: SLOTS };
            let asked = [QueryMask { mask: &mask, slope: 1.0, sink: None }; 20];
            store.show((0, 0), &rule, &asked, &queries);
            store.cool();
            assert!(!store.is_learning(0));
            let mut rows = vec![f16::ZERO; (SLOTS - 20) * DIM];
            store.read(0, &mut rows);
            rows
        };
        assert!(read(false) == read(true), "{id:?}");
    }
}

#[test]
fn the_largest_values_come_back_finite() {
    for id in codecs(StoreSide::Values) {
        let mut store =
            SlotStore::new(StoreSide::Values, &CacheSpec::new(1, 1, 1, DIM).hot(0), DIM, SLOTS, 1);
        assert!(store.divide(DIM, id));
        for slot in 0..SLOTS {
            let largest = |x: &f16| if x.is_sign_negative() { f16::MIN } else { f16::MAX };
            store.write(slot, &row(slot, StoreSide::Values).iter().map(largest).collect::<Vec<_>>());
        }
        store.cool();
        let mut rows = vec![f16::ZERO; SLOTS * DIM];
        store.read(0, &mut rows);
        assert!(rows.iter().all(|x| x.is_finite()), "{id:?}");
    }
}

/// Choices of a test.
struct Choices(Random, usize);

impl Choose for Choices {
    fn below(&mut self, n: usize) -> usize {
        self.1 = self.1.saturating_sub(1);
        self.0.below(n)
    }

    fn is_done(&self) -> bool {
        self.1 == 0
    }
}

/// `TQKV_LIVES` is the number of histories, and `TQKV_SEED` that of the first.
#[test]
fn lives_with_values_that_are_not_finite_are_right() {
    let number = |name, or| std::env::var(name).ok().map_or(or, |text| text.parse().expect("a number"));
    let (count, first) = (number("TQKV_LIVES", 40), number("TQKV_SEED", 1));
    let mut compared = 0;
    for seed in first..first + count {
        println!("life {seed}");
        compared += live(&mut Choices(Random(seed), 4000));
    }
    assert!(compared as u64 > count, "{compared} outputs of {count} lives were compared");
}
