//! Damaged states and packs are refused, or what comes back is what the fields say; nothing panics.

use crate::basis::{Stored, state_in_basis};
use crate::common::*;
use crate::layouts::{caches, states};
use std::io::Cursor;
use tqkv_session::{Layout, Mode, inspect};

fn rounds() -> usize {
    let exhaustive = std::env::var_os("TQKV_EXHAUSTIVE").is_some_and(|value| value == "1");
    if exhaustive { 100_000 } else { 10_000 }
}

fn small() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for (_, cache) in caches() {
        let streams = cache.streams.iter().map(|&(first, cells)| (first, cells.min(6))).collect();
        let cache = Written { streams, width: 64.min(cache.width), layers: cache.layers.min(2), ..cache };
        for (i, (_, mut state)) in states(&cache).into_iter().enumerate() {
            if i % 3 == 0 {
                state.recurrent();
            }
            found.push(state.bytes);
        }
    }
    found
}

/// Changes fields rather than numbers: words of headers become small, large, or a neighbour's.
fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..1 + random.usize(..3) {
        if bytes.len() < 8 {
            return;
        }
        let most = if random.bool() { 300 } else { usize::MAX };
        let at = random.usize(..bytes.len().min(most)) & !3;
        match random.u8(..7) {
            0 => bytes.truncate(at),
            1 => {
                let end = (at + random.usize(..40)).min(bytes.len());
                bytes.drain(at..end);
            }
            2 => {
                let copy: Vec<u8> = bytes.iter().skip(at).take(random.usize(..40)).copied().collect();
                bytes.splice(at..at, copy);
            }
            3 => {
                let bit = random.usize(..8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            _ => {
                let words = [0, 1, 2, 3, 8, 30, 64, 127, 128, 255, 0x7fff_ffff, 0x8000_0000, u32::MAX];
                let word = random.choice(words).unwrap().to_le_bytes();
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&word[..end - at]);
            }
        }
    }
}

/// However large the lengths in damaged headers are, all tests of this program together take little memory.
fn takes_little_memory() {
    #[cfg(target_os = "linux")]
    {
        let peak = crate::memory::peak();
        assert!(peak < 256 << 10, "{peak} kB");
    }
}

#[test]
fn damaged_states_are_refused_or_come_back() {
    let (states, stored) = (small(), Stored::of(2, 64));
    let mut random = fastrand::Rng::with_seed(1);
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..rounds() {
        let mut state = states[round % states.len()].clone();
        damage(&mut state, &mut random);
        let mode = [Mode::Exact, codecs("s2"), codecs("t2"), stored.mode(1.1)][round % 4];
        match pack(&state, mode) {
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 300, "{error}");
            }
            Ok((packed, _)) => {
                accepted += 1;
                let back = unpack_with(&packed, Some(&stored.codec)).unwrap();
                if matches!(mode, Mode::Exact) {
                    assert_eq!(back, state, "round {round}");
                } else {
                    let read = |bytes: &[u8]| Layout::read(&mut Cursor::new(bytes)).unwrap();
                    assert_eq!(read(&back), read(&state), "round {round}");
                }
            }
        }
    }
    assert!(refused > rounds() / 4 && accepted > rounds() / 8, "{refused} {accepted}");
    takes_little_memory();
}

/// Mends the CRCs of a pack as far as its fields say where they are, so that what is after them is read.
fn mend(pack: &mut [u8]) {
    let word =
        |pack: &[u8], at: usize| pack.get(at..at + 4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
    let Some(entries) = word(pack, 12) else { return };
    let mut at = 24usize.saturating_add(24usize.saturating_mul(entries as usize));
    let mut start = 0;
    while let Some(checked) = pack.get(start..at) {
        let crc = crc32fast::hash(checked).to_le_bytes();
        let Some(target) = pack.get_mut(at..at + 4) else { return };
        target.copy_from_slice(&crc);
        start = at + 4;
        let Some(length) = word(pack, start) else { return };
        at = start.saturating_add(4).saturating_add(length as usize);
    }
}

#[test]
fn damaged_packs_are_refused_or_come_back() {
    let mut random = fastrand::Rng::with_seed(2);
    let (states, stored) = (small(), Stored::of(2, 64));
    let modes = [Mode::Exact, codecs("s2"), codecs("t2"), stored.mode(1.1)];
    let mut packs: Vec<Vec<u8>> =
        states.iter().enumerate().filter_map(|(i, s)| pack(s, modes[i % 4]).ok()).map(|(p, _)| p).collect();
    // Most states above have another shape than the basis: half of the packs are of one that fits.
    let based = state_in_basis(2, 64, 40);
    let based: Vec<Vec<u8>> = (0..packs.len()).map(|_| pack(&based, stored.mode(1.1)).unwrap().0).collect();
    packs.extend(based);
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..rounds() {
        let good = &packs[round % packs.len()];
        let mut bad = good.clone();
        damage(&mut bad, &mut random);
        let is_mended = round % 4 > 0;
        if is_mended {
            mend(&mut bad);
        }
        let checked = inspect(&mut &bad[..]);
        match unpack_with(&bad, Some(&stored.codec)) {
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 400, "{error}");
            }
            Ok(state) => {
                accepted += 1;
                assert_eq!(checked.unwrap().sizes.state, state.len() as u64, "round {round}");
                // Without mended checksums only the same bytes pass.
                assert!(is_mended || bad == *good, "round {round}");
            }
        }
    }
    assert!(refused > rounds() / 2 && accepted > rounds() / 100, "{refused} {accepted}");
    takes_little_memory();
}

#[test]
fn every_byte_and_every_end_of_a_pack_is_checked() {
    let mut state = State::sequence_file(3);
    state.cache(&Written { streams: vec![(0, 6)], layers: 1, width: 64, ..Written::default() });
    let stored = Stored::of(1, 64);
    for (state, mode) in [
        (&state.bytes, Mode::Exact),
        (&state.bytes, codecs("t2")),
        (&state_in_basis(1, 64, 20), stored.mode(2.1)),
    ] {
        let unpack = |pack: &[u8]| unpack_with(pack, Some(&stored.codec));
        let (packed, _) = pack(state, mode).unwrap();
        for at in 0..packed.len() {
            let mut bad = packed.clone();
            bad[at] ^= 0x11;
            assert!(unpack(&bad).is_err() && inspect(&mut &bad[..]).is_err() || at >= packed.len() - 4);
            assert!(unpack(&bad).is_err(), "byte {at}");
            assert!(unpack(&packed[..at]).is_err(), "end {at}");
        }
        let longer = [&packed[..], &[0]].concat();
        assert!(unpack(&longer).unwrap_err().to_string().contains("bytes follow its end"));
    }
}
