//! What emptied and rewritten slots leave behind: no memory, and no bit of a later result.

use super::cache::{HEADS, WIDTH, read, spec};
use super::random::Random;
use half::f16;
use tqkv::error::CacheError;
use tqkv::slots::{Mask, SlotCache};
use tqkv::unstable::slots::{Masks, Operation, QueryRule, Shift, SlotStore, StoreSide, Strided, rotate};

const SLOTS: usize = 4096;

fn cache(text: &str) -> SlotCache {
    SlotCache::with_streams(spec(text), SLOTS, 2).unwrap()
}

/// Writes the same rows to slots, 64 at a time, and encodes those that are due if `is_encoded`.
fn fill(cache: &mut SlotCache, slots: &[usize], is_encoded: bool) {
    let mut random = Random(21);
    for (number, slots) in slots.chunks(64).enumerate() {
        let (k, v) = (random.rows(slots.len(), 0.5), random.rows(slots.len(), 0.0));
        let positions = Vec::from_iter((number * 64..).take(slots.len()));
        cache.write(0, slots, &positions, &k, &v).unwrap();
        if is_encoded {
            cache.encode(0).unwrap();
        }
    }
}

#[test]
fn emptied_slots_give_their_memory_back() {
    type Empty = fn(&mut SlotCache, &[usize]);
    let ways: [(&str, Empty); 3] = [
        ("forget at once", |cache, slots| cache.forget(slots).unwrap()),
        ("forget one by one", |cache, slots| {
            slots.iter().for_each(|slot| cache.forget(&[*slot]).unwrap());
        }),
        ("copy of an empty slot", |cache, slots| {
            cache.copy(&vec![2 * SLOTS - 1; slots.len()], slots).unwrap();
        }),
    ];
    let all = Vec::from_iter(0..SLOTS);
    for text in ["s4 hot=0", "t4,t2", "s4,f16", "f16", "s4 hot=8 tier=300:s2"] {
        for (is_encoded, (way, empty)) in [false, true].into_iter().flat_map(|is| ways.map(|way| (is, way))) {
            for kept in [0, 1, 100, 1000] {
                let (mut emptied, mut fresh) = (cache(text), cache(text));
                fill(&mut emptied, &all, is_encoded);
                fill(&mut fresh, &all[..kept], is_encoded);
                let full = emptied.allocated_bytes();
                empty(&mut emptied, &all[kept..]);
                let (bytes, most) = (emptied.allocated_bytes(), fresh.allocated_bytes());
                println!("{text}, {way}, {kept} kept: {full}, {bytes} for {most}");
                // Rows that wait in the fresh cache may be codes here. For less than an eighth nothing is moved. The means
                // of 4,096 keys stay until all slots are empty.
                let more = if kept > 0 { 4096 + 7 * WIDTH * size_of::<f32>() } else { 0 };
                assert!(bytes <= most + most / 8 + more, "{text}, {way}, {kept} kept");
            }
        }
        let mut emptied = cache(text);
        fill(&mut emptied, &all, true);
        let rows = read(&emptied, 0, &all[..100]);
        emptied.clear();
        assert_eq!(emptied.allocated_bytes(), 0, "{text}");
        let positions = Vec::from_iter(0..100);
        emptied.restore(0, &positions, &positions, &rows[0], &rows[1]).unwrap();
        let mut fresh = cache(text);
        fresh.restore(0, &positions, &positions, &rows[0], &rows[1]).unwrap();
        assert_eq!(emptied.allocated_bytes(), fresh.allocated_bytes(), "{text}: restored");
    }
}

/// The outputs of one sequence in some slots: a prompt of 200 tokens, then one token at a time.
pub(crate) fn request(cache: &mut SlotCache, slots: &[usize], seed: u64) -> Vec<f32> {
    let (mut random, mut outs, mut written) = (Random(seed), Vec::new(), 0);
    for n in
        std::iter::once(200.min(slots.len())).chain(std::iter::repeat_n(1, slots.len().saturating_sub(200)))
    {
        let (from, to) = (written, written + n);
        let (k, v) = (random.rows(n, 0.5), random.rows(n, 0.0));
        cache.write(0, &slots[from..to], &Vec::from_iter(from..to), &k, &v).unwrap();
        let mut mask = Mask::new(SLOTS);
        mask.causal(&slots[..to], n).unwrap();
        let q = random.vectors(n * HEADS);
        let mut out = vec![f32::NAN; q.len()];
        cache.attend(0, &q, &mask, &mut out).unwrap();
        outs.extend(out);
        written = to;
    }
    outs
}

/// Asserts that outputs have the same bits.
fn assert_same(outs: &[f32], wanted: &[f32], what: &str) {
    let first = outs.iter().zip(wanted).position(|(a, b)| a.to_bits() != b.to_bits());
    let width = HEADS * WIDTH / 2;
    assert!(outs.len() == wanted.len() && first.is_none(), "{what}: token {:?}", first.map(|at| at / width));
}

const TEXTS: [&str; 7] =
    ["s4", "t4,t2", "i8,f16", "f16", "s4 hot=8 sinks=6", "t2 hot=3", "s4 hot=8 tier=128:s2"];

/// Slots that are emptied first, or only written again, give the bits of a new cache. A stream that is never empty
/// keeps its mean, so that another text would change it; equal texts have equal means.
#[test]
fn equal_requests_have_equal_answers() {
    let own = Vec::from_iter(0..300);
    for text in TEXTS {
        let wanted = request(&mut cache(text), &own, 1);
        // The same request again, after it was emptied, and without a word about it.
        for is_told in [true, false] {
            let mut cache = cache(text);
            for i in 0..4 {
                assert_same(
                    &request(&mut cache, &own, 1),
                    &wanted,
                    &format!("{text}, told {is_told}: request {i}"),
                );
                if is_told {
                    cache.forget(&own).unwrap();
                }
            }
        }
        // After other requests, one of them cancelled, which had other lengths.
        let text = format!("{text} centring=off");
        for own in [&own[..], &Vec::from_iter(0..420)] {
            let wanted = request(&mut cache(&text), own, 1);
            for (length, is_told) in
                [(1, true), (77, true), (203, false), (307, false), (1001, true), (1001, false)]
            {
                let (mut cache, other) = (cache(&text), Vec::from_iter(0..length));
                request(&mut cache, &other, 2);
                if is_told {
                    cache.forget(&other).unwrap();
                }
                let what = format!("{text}, {} after {length} tokens, told {is_told}", own.len());
                assert_same(&request(&mut cache, own, 1), &wanted, &what);
            }
        }
        // Another sequence lives in the same stream, or has come and gone in slots between those of this one.
        let mut cache = cache(&text);
        request(&mut cache, &Vec::from_iter(1024..1331), 3);
        let first = request(&mut cache, &own, 1);
        for between in [0, 7] {
            cache.forget(&own).unwrap();
            if between > 0 {
                let other = Vec::from_iter((0..300).step_by(between));
                request(&mut cache, &other, 4);
                cache.forget(&other).unwrap();
            }
            assert_same(&request(&mut cache, &own, 1), &first, &format!("{text} beside another sequence"));
        }
    }
}

#[test]
fn a_copy_of_an_empty_slot_makes_a_stream_anew() {
    let own = Vec::from_iter(0..300);
    for text in TEXTS {
        let wanted = request(&mut cache(text), &own, 1);
        let mut cache = cache(text);
        request(&mut cache, &own, 2);
        cache.copy(&vec![SLOTS - 1; 300], &own).unwrap();
        assert_eq!(cache.allocated_bytes(), 0, "{text}");
        // The means of the other stream do not come along with an empty slot.
        request(&mut cache, &own, 2);
        cache.copy(&[SLOTS - 1], &[SLOTS]).unwrap();
        let other = Vec::from_iter(SLOTS..SLOTS + 300);
        fill(&mut cache, &other, true);
        let mut alone = self::cache(text);
        fill(&mut alone, &other, true);
        assert!(read(&cache, 0, &other) == read(&alone, 0, &other), "{text}: the second stream");
        cache.forget(&own).unwrap();
        assert!(request(&mut cache, &own, 1) == wanted, "{text}: the first stream");
    }
}

#[test]
fn a_slot_that_is_given_twice_holds_the_later_row() {
    for text in TEXTS {
        let (mut twice, mut once) = (cache(text), cache(text));
        let (rows, slots) = (Random(5).rows(300, 0.5), Vec::from_iter((0..300).map(|i| i % 150)));
        let positions = Vec::from_iter(0..300);
        twice.write(0, &slots, &positions, &rows, &rows).unwrap();
        for half in [0..150, 150..300] {
            let rows = &rows[half.start * WIDTH..half.end * WIDTH];
            once.write(0, &slots[half.clone()], &positions[half], rows, rows).unwrap();
        }
        let written: Vec<f16> = rows[150 * WIDTH..].iter().map(|x| f16::from_f32(*x)).collect();
        assert!(read(&twice, 0, &slots[..150]) == [written.clone(), written], "{text}");
        for cache in [&mut twice, &mut once] {
            cache.encode(0).unwrap();
        }
        assert!(read(&twice, 0, &slots[..150]) == read(&once, 0, &slots[..150]), "{text}");
        assert_eq!(twice.allocated_bytes(), once.allocated_bytes(), "{text}");
    }
}

#[test]
fn rows_that_are_not_finite_are_not_restored() {
    let mut cache = cache("s4 hot=0");
    fill(&mut cache, &Vec::from_iter(0..100), true);
    let held = read(&cache, 0, &[5, 6]);
    for (side, what) in ["key", "value"].into_iter().enumerate() {
        for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            let mut rows = held.clone();
            rows[side][WIDTH + 70] = bad;
            let refused = cache.restore(0, &[5, 6], &[5, 6], &rows[0], &rows[1]);
            assert_eq!(refused, Err(CacheError::BadValue { layer: 0, what, token: 1, kv_head: 1 }));
        }
    }
    assert!(read(&cache, 0, &[5, 6]) == held, "nothing was written");
}

/// Keys and values of one layer as a program holds them that never says which slots are free.
struct Host {
    keys: SlotStore,
    values: SlotStore,
}

impl Host {
    const DIM: usize = 64;

    fn new(text: &str) -> Self {
        let spec = spec(text);
        let [keys, values] =
            [(StoreSide::Keys, spec.key), (StoreSide::Values, spec.value)].map(|(side, id)| {
                let mut store = SlotStore::new(side, &spec, WIDTH, SLOTS, 1);
                assert!(store.divide(Self::DIM, id));
                store
            });
        Self { keys, values }
    }

    /// The outputs of a sequence of `tokens` tokens in the first slots.
    fn request(&mut self, tokens: usize, seed: u64) -> Vec<f32> {
        let (mut random, mut outs, mut written) = (Random(seed), Vec::new(), 0);
        for n in std::iter::once(150).chain(std::iter::repeat_n(1, tokens - 150)) {
            for slot in written..written + n {
                for store in [&mut self.keys, &mut self.values] {
                    let row: Vec<f16> = random.rows(1, 0.0).iter().map(|x| f16::from_f32(*x)).collect();
                    store.write_as(slot, slot < 4, &row);
                }
            }
            let (q, slots) = (random.vectors(n * HEADS), (written + n).next_multiple_of(256));
            let mut mask = vec![f16::NEG_INFINITY; n * slots];
            for (i, mask) in mask.chunks_mut(slots).enumerate() {
                mask[..=written + i].fill(f16::ZERO);
            }
            let operation = Operation {
                rule: QueryRule { scale: 0.125, soft_cap: None, slots },
                first_streams: [0; 2],
                streams: 1,
                tokens: n,
                query_heads: HEADS,
                queries: Strided { values: &q, steps: [HEADS * Self::DIM, Self::DIM, 0] },
                masks: Some(Masks { rows: Strided { values: &mask, steps: [slots, 0, 0] }, counts: [1, 1] }),
                sinks: &[],
                slopes: &[],
            };
            let mut out = vec![f32::NAN; q.len()];
            let steps = [HEADS * Self::DIM, Self::DIM, 0];
            operation.run((&mut self.keys, &mut self.values), &mut out, steps).unwrap();
            outs.extend(out);
            written += n;
        }
        outs
    }
}

/// Slots are written again without a word: after requests of other lengths, and after a shift of positions.
#[test]
fn a_host_that_never_frees_slots_gets_equal_answers() {
    for text in ["s4", "t4,t2", "f16", "t4,f16", "s4 hot=8 tier=128:s2"] {
        let text = format!("{text} centring=off map=off");
        let wanted = Host::new(&text).request(250, 1);
        for tokens in [151, 250, 261, 263, 700] {
            for is_shifted in [false, true] {
                let mut host = Host::new(&text);
                host.request(tokens, 2);
                if is_shifted {
                    let shifts: Vec<i32> = (0..SLOTS).map(|slot| if slot < 64 { 0 } else { -64 }).collect();
                    rotate(&mut host.keys, &Shift::plain(Host::DIM), &shifts);
                }
                let what = format!("{text} after {tokens}, shifted {is_shifted}");
                assert_same(&host.request(250, 1), &wanted, &what);
                assert_same(&host.request(250, 1), &wanted, &format!("{what}, and itself"));
            }
        }
    }
}
