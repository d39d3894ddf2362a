//! Sinks are the first tokens of each sequence, in whatever slots it begins.

use super::cache::{WIDTH, read, spec};
use super::histories::request;
use super::random::Random;
use tqkv::slots::SlotCache;
use tqkv::{CodecId, f16};

const SLOTS: usize = 4096;
const TOKENS: usize = 300;

/// The f16 bits of rows that hold numbers of f16.
fn bits(rows: &[f32]) -> Vec<u16> {
    rows.iter().map(|x| f16::from_f32(*x).to_bits()).collect()
}

/// The keys that a cache holds in some slots, as f16 bits.
fn keys(cache: &SlotCache, slots: &[usize]) -> Vec<u16> {
    read(cache, 0, slots)[0].iter().map(|x| x.to_bits()).collect()
}

/// What one sequence holds and gives if it begins at slot `first`: rows, and outputs of a prompt and of tokens.
fn of_sequence(text: &str, first: usize) -> ([Vec<f16>; 2], Vec<f32>) {
    let mut cache = SlotCache::new(spec(text), SLOTS).unwrap();
    let slots = Vec::from_iter(first..first + TOKENS);
    let outs = request(&mut cache, &slots, 11);
    (read(&cache, 0, &slots), outs)
}

#[test]
fn a_sequence_is_held_alike_wherever_it_begins() {
    for text in ["t4,t2", "s4 hot=8 sinks=6", "i8 hot=0", "t2 hot=8 map=pairs", "t4,f16 hot=8"] {
        let (rows, outs) = of_sequence(text, 0);
        let written = Random(11).rows(200, 0.5);
        let sinks = spec(text).sinks * WIDTH;
        let held: Vec<u16> = rows[0].iter().map(|x| x.to_bits()).collect();
        assert_eq!(held[..sinks], bits(&written)[..sinks], "{text}: sinks are exact");
        assert_ne!(held[sinks..][..WIDTH], bits(&written)[sinks..][..WIDTH], "{text}: the next is a code");
        for first in [1000, 1024, 3072] {
            let (other_rows, other) = of_sequence(text, first);
            assert!(rows == other_rows, "{text}: rows from slot {first}");
            // Weights of values in narrow codes are rounded by the number of the slot, so that errors do not add up.
            // Others give the same bits where parts of attention, runs of 1,024 slots, begin alike.
            let most = outs.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let bound = match (spec(text).value, first % 1024) {
                (CodecId::F16 | CodecId::I8, 0) => 0.0,
                (CodecId::F16, _) => 1e-6,
                (CodecId::I8, _) => 1e-3,
                _ => 0.03,
            };
            println!("{text} from slot {first}: {most}");
            assert!(most <= bound, "{text}: outputs from slot {first} differ by {most}");
        }
    }
}

#[test]
fn each_sequence_of_a_cache_has_its_sinks() {
    let mut cache = SlotCache::new(spec("s4 hot=0 sinks=3"), SLOTS).unwrap();
    let mut random = Random(12);
    let firsts = [500, 0, 1000];
    let rows = firsts.map(|_| random.rows(100, 0.0));
    for position in 0..100 {
        for (first, rows) in firsts.iter().zip(&rows) {
            let row = &rows[position * WIDTH..][..WIDTH];
            cache.write(0, &[first + position], &[position], row, row).unwrap();
        }
        cache.encode(0).unwrap();
    }
    for (first, rows) in firsts.iter().zip(&rows) {
        let held = keys(&cache, &Vec::from_iter(*first..first + 100));
        for (position, (held, row)) in held.chunks(WIDTH).zip(bits(rows).chunks(WIDTH)).enumerate() {
            assert_eq!(held == row, position < 3, "position {position} from slot {first}");
        }
    }
}

#[test]
fn sinks_are_copied_restored_and_overwritten() {
    let mut cache = SlotCache::new(spec("s4 hot=0 sinks=2"), SLOTS).unwrap();
    let (all, rows) = (Vec::from_iter(0..100), Random(13).rows(100, 0.0));
    let exact = |cache: &SlotCache, slots: [usize; 4], positions: [usize; 4]| {
        let held = keys(cache, &slots);
        let wanted = positions.map(|at| bits(&rows[at * WIDTH..][..WIDTH]));
        let same: Vec<bool> = held.chunks(WIDTH).zip(&wanted).map(|(held, row)| held == row).collect();
        <[bool; 4]>::try_from(same).unwrap()
    };
    cache.write(0, &all, &all, &rows, &rows).unwrap();
    cache.encode(0).unwrap();
    assert_eq!(exact(&cache, [0, 1, 2, 3], [0, 1, 2, 3]), [true, true, false, false]);

    cache.copy(&[0, 1, 2, 3], &[2000, 2001, 2002, 2003]).unwrap();
    cache.encode(0).unwrap();
    assert_eq!(exact(&cache, [2000, 2001, 2002, 2003], [0, 1, 2, 3]), [true, true, false, false]);

    let mut other = SlotCache::new(spec("s4 hot=0 sinks=2"), SLOTS).unwrap();
    let state = read(&cache, 0, &all);
    let moved = Vec::from_iter(1500..1600);
    other.restore(0, &moved, &all, &state[0], &state[1]).unwrap();
    assert!(read(&other, 0, &moved) == state);
    assert_eq!(exact(&other, [1500, 1501, 1502, 1503], [0, 1, 2, 3]), [true, true, false, false]);

    // A later token in the slot of a sink is none, and the other way round.
    let row = &rows[..2 * WIDTH];
    cache.write(0, &[1, 50], &[70, 0], row, row).unwrap();
    cache.encode(0).unwrap();
    assert_eq!(exact(&cache, [0, 1, 50, 51], [0, 0, 1, 51]), [true, false, true, false]);
    // The same while the rows still wait.
    let mut cache = SlotCache::new(spec("s4 hot=0 sinks=2"), SLOTS).unwrap();
    cache.write(0, &[7], &[5], &rows[..WIDTH], &rows[..WIDTH]).unwrap();
    cache.write(0, &[7], &[1], &rows[..WIDTH], &rows[..WIDTH]).unwrap();
    cache.write(0, &all[8..], &all[8..], &rows[8 * WIDTH..], &rows[8 * WIDTH..]).unwrap();
    cache.encode(0).unwrap();
    assert_eq!(exact(&cache, [7, 8, 9, 99], [0, 8, 9, 99]), [true, false, false, false]);
}
