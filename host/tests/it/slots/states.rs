//! Packed rows of a saved state: codes as they were, in any slots, and nothing from bytes that are none.

use super::random::Random;
use half::f16;
use tqkv::cache::CacheSpec;
use tqkv::unstable::slots::{Shift, SlotStore, StoreSide, packed_rows, rotate};

const SLOTS: usize = 1500;
const HEADS: usize = 2;
const DIM: usize = 64;
/// Tokens of a long text.
const TOKENS: usize = 1300;
const WIDTH: usize = HEADS * DIM;
/// Bytes of a row of f16, q8_0 and q4_0.
const ROWS: [usize; 3] = [2 * WIDTH, WIDTH / 32 * 34, WIDTH / 32 * 18];

fn store(side: StoreSide, words: &str) -> SlotStore {
    let spec = CacheSpec::new(1, HEADS, HEADS, DIM).with(words).unwrap();
    let mut store = SlotStore::new(side, &spec, WIDTH, SLOTS, 2);
    let id = if side == StoreSide::Keys { spec.key } else { spec.value };
    assert!(store.divide(DIM, id));
    store
}

fn row(random: &mut Random, mean: f32) -> Vec<f16> {
    (0..WIDTH).map(|i| f16::from_f32(random.normal() + mean * (i % 5) as f32)).collect()
}

/// Writes tokens in steps to slots from `first` on.
fn fill(store: &mut SlotStore, random: &mut Random, first: usize, count: usize, mean: f32) {
    for at in 0..count {
        store.write_as(first + at, at < 4, &row(random, mean));
        if at % 16 == 15 {
            store.cool();
        }
    }
    store.cool();
}

fn read(store: &SlotStore, first: usize, count: usize) -> Vec<u16> {
    let mut rows = vec![f16::ZERO; count * WIDTH];
    store.read(first, &mut rows);
    rows.iter().map(|x| x.to_bits()).collect()
}

fn packed(store: &SlotStore, first: usize, count: usize, row_bytes: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![7; count * row_bytes];
    store.pack(first, count, &mut bytes).then_some(bytes)
}

fn share_of_same(a: &[u16], b: &[u16]) -> f64 {
    let same = a.chunks(WIDTH).zip(b.chunks(WIDTH)).filter(|(a, b)| a == b).count();
    same as f64 / (a.len() / WIDTH) as f64
}

const POLICIES: [(StoreSide, &str, usize); 6] = [
    (StoreSide::Keys, "t4", 2),
    (StoreSide::Values, "t4", 2),
    (StoreSide::Keys, "i8", 1),
    (StoreSide::Keys, "s4 hot=8 tier=300:s2", 2),
    (StoreSide::Values, "t2 hot=16", 2),
    (StoreSide::Keys, "t4,t2 hot=0 sinks=0", 2),
];

#[test]
fn a_long_text_comes_back_to_the_bit_and_goes_on_as_before() {
    for (side, words, narrowest) in POLICIES {
        for row_bytes in ROWS.into_iter().take(narrowest + 1) {
            let (mut random, mut saved) = (Random(3), store(side, words));
            fill(&mut saved, &mut random, 0, TOKENS, 0.4);
            if side == StoreSide::Keys {
                rotate(&mut saved, &Shift::plain(DIM), &[vec![0; 500], vec![-64; 2 * SLOTS - 500]].concat());
            }
            let bytes = packed(&saved, 0, TOKENS, row_bytes).unwrap_or_else(|| panic!("{words} {row_bytes}"));
            assert_eq!(packed_rows(&bytes), Some(TOKENS));
            let mut back = store(side, words);
            // Somewhere else, and of another stream.
            let rows = Vec::from_iter((SLOTS + 128..).take(TOKENS));
            back.unpack(&rows, &bytes).unwrap();
            let (before, after) = (read(&saved, 0, TOKENS), read(&back, SLOTS + 128, TOKENS));
            assert!(before.iter().any(|x| *x != 0));
            // The exact rows of a text of two heads fit next to codes of as many bits only if few are hot.
            let is_narrow =
                words.starts_with("t4") && row_bytes == ROWS[2] || words == "i8" && row_bytes == ROWS[1];
            if !is_narrow || words.contains("hot=0") {
                assert!(before == after, "{words} {row_bytes}");
                assert!(packed(&back, SLOTS + 128, TOKENS, ROWS[0]) == packed(&saved, 0, TOKENS, ROWS[0]));
            } else {
                let same = share_of_same(&before, &after);
                assert!(same > 0.94, "{words} {row_bytes}: {same} are the same");
            }
        }
    }
}

#[test]
fn tokens_after_a_restore_have_the_codes_that_they_would_have_had() {
    for (side, words) in [(StoreSide::Keys, "s4 hot=16"), (StoreSide::Values, "t4"), (StoreSide::Keys, "t2")]
    {
        let (mut random, mut saved, mut back) = (Random(5), store(side, words), store(side, words));
        fill(&mut saved, &mut random, 0, 700, 0.5);
        let bytes = packed(&saved, 0, 700, ROWS[0]).unwrap();
        back.unpack(&Vec::from_iter(0..700), &bytes).unwrap();
        let first_other = |saved: &SlotStore, back: &SlotStore| {
            let (wanted, found) = (read(saved, 0, 1500), read(back, 0, 1500));
            wanted.chunks(WIDTH).zip(found.chunks(WIDTH)).position(|(a, b)| a != b)
        };
        assert_eq!(first_other(&saved, &back), None, "{words}");
        // Long enough for the next mean, which is of all codes of the stream.
        for at in 700..1500 {
            let row = row(&mut random, 0.1);
            for store in [&mut saved, &mut back] {
                store.write(at, &row);
                store.cool();
            }
            assert_eq!(first_other(&saved, &back), None, "{words}, after token {at}");
        }
    }
}

#[test]
fn texts_in_turns_through_one_stream_keep_their_codes() {
    let (mut random, words) = (Random(9), "t4 hot=16");
    let mut live = store(StoreSide::Keys, words);
    let lengths = Vec::from_iter((0..8).map(|i| 500 + 110 * (i * 3 % 8)));
    let mut saved = Vec::new();
    for (text, length) in lengths.iter().enumerate() {
        // The host frees cells without a word, so the rows of the text before are still there.
        fill(&mut live, &mut random, 0, *length, 0.1 + 0.2 * text as f32);
        saved.push((packed(&live, 0, *length, ROWS[2]).unwrap(), read(&live, 0, *length)));
    }
    for round in 0..3 {
        for ((bytes, rows), length) in saved.iter().zip(&lengths) {
            live.unpack(&Vec::from_iter(0..*length), bytes).unwrap();
            let same = share_of_same(rows, &read(&live, 0, *length));
            // The exact rows became codes when they were packed, if they did not fit.
            assert!(same > 1.0 - 24.0 / *length as f64, "round {round}, {length} tokens: {same}");
        }
    }
}

#[test]
fn what_is_no_state_of_this_cache_is_refused_and_changes_nothing() {
    let (mut random, mut store_of) = (Random(7), store(StoreSide::Keys, "t4"));
    fill(&mut store_of, &mut random, 0, 600, 0.4);
    let good = packed(&store_of, 0, 600, ROWS[1]).unwrap();
    let (rows, before) = (Vec::from_iter(700..1300), read(&store_of, 0, 2 * SLOTS));
    let refused = |store: &mut SlotStore, rows: &[usize], bytes: &[u8], why: &str| {
        let error = store.unpack(rows, bytes).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    };
    for words in ["s4", "t4,t4 seed=7", "t4 tier=300:t2"] {
        refused(
            &mut store(StoreSide::Keys, words),
            &rows,
            &good,
            "other codecs, another seed or other heads",
        );
    }
    refused(&mut store(StoreSide::Values, "t4"), &rows, &good, "other codecs");
    refused(&mut store_of, &rows[1..], &good, "number of rows");
    refused(&mut store_of, &rows, &good[..9000], "cut short");
    refused(&mut store_of, &rows, &[], "fields longer than their chunk");
    refused(&mut store_of, &Vec::from_iter(1200..1800), &good, "rows of several streams");
    let spec = CacheSpec::new(1, HEADS, HEADS, DIM);
    let mut undivided = SlotStore::new(StoreSide::Keys, &spec, WIDTH, SLOTS, 2);
    refused(&mut undivided, &rows, &good, "no codes yet");
    assert!(packed(&undivided, 0, 600, ROWS[0]).is_none());
    // Any damage of what is used.
    let used = 20 + u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
    for _ in 0..300 {
        let mut bad = good.clone();
        bad[8 + random.below(used - 8)] ^= 1 << random.below(8);
        assert!(store_of.unpack(&rows, &bad).is_err());
    }
    // Damage that the CRC-32 does not tell, because whoever made it wrote another: an error, or any codes.
    let mut accepted = 0;
    for _ in 0..300 {
        let mut bad = good.clone();
        let most = [40, used - 24][random.below(2)];
        let at = 24 + random.below(most);
        bad[at] = random.bits() as u8;
        let crc = crc32fast::hash(&bad[20..used]);
        bad[16..20].copy_from_slice(&crc.to_le_bytes());
        accepted += usize::from(store(StoreSide::Keys, "t4").unpack(&rows, &bad).is_ok());
    }
    assert!((1..300).contains(&accepted), "{accepted}");
    assert!(before == read(&store_of, 0, 2 * SLOTS));
    // Rows of a type begin otherwise, and rows that are refused are no numbers.
    assert_eq!(packed_rows(&[0; 64]), None);
    store_of.refuse(&[40]);
    assert!(read(&store_of, 40, 1).iter().all(|x| f16::from_bits(*x).is_nan()));
}

/// Stores with any rows in any state: what comes back reads as it did where it can be held so.
#[test]
fn random_lives_of_two_stores_exchange_rows() {
    for (life, (side, words, narrowest)) in (0..18).zip(POLICIES.into_iter().cycle()) {
        let (mut random, mut packs, mut same) = (Random(life + 40), 0, 0.0);
        let mut stores = [store(side, words), store(side, words)];
        for step in 0..60 {
            let (which, first) = (random.below(2), random.below(2) * SLOTS + random.below(900));
            let count = 1 + random.below(600);
            match random.below(4) {
                0 | 1 => fill(&mut stores[which], &mut random, first, count, 0.3),
                2 if side == StoreSide::Keys => {
                    let moved = Vec::from_iter((0..2 * SLOTS).map(|at| if at > first { -8 } else { 0 }));
                    rotate(&mut stores[which], &Shift::plain(DIM), &moved);
                }
                _ => {
                    let (row_bytes, to) =
                        (ROWS[random.below(narrowest + 1)], random.below(2) * SLOTS + random.below(900));
                    let Some(bytes) = packed(&stores[which], first, count, row_bytes) else { continue };
                    let rows = Vec::from_iter(to..to + count);
                    stores[1 - which].unpack(&rows, &bytes).unwrap();
                    let (wanted, found) =
                        (read(&stores[which], first, count), read(&stores[1 - which], to, count));
                    (packs, same) = (packs + 1, same + share_of_same(&wanted, &found));
                    let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
                    let wide = |x: &[u16]| Vec::from_iter(x.iter().map(|x| f16::from_bits(*x).to_f32()));
                    let (wanted, found) = (wide(&wanted), wide(&found));
                    let error = Vec::from_iter(wanted.iter().zip(&found).map(|(a, b)| a - b));
                    let share = norm(&error) / norm(&wanted).max(1e-9);
                    // Two bits of a value have an error of a tenth, and rows may be coded twice.
                    let most = if words.contains('2') { 0.3 } else { 0.02 };
                    assert!(share < most, "{words}, step {step}: {share}");
                }
            }
        }
        let same = same / f64::from(packs.max(1));
        println!("{words}: {packs} packs, {same:.3} the same");
        assert!(packs == 0 || same > 0.6, "{words}: {packs} packs, {same} are the same");
    }
}
