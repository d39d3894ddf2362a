//! The cache of slots as a C program calls it, with its mistakes.

use crate::common::*;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tqkv::rope::{Rope, RopePairing};
use tqkv::slots::{Mask, SlotCache};
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

const SLOTS: usize = 256;

/// A cache of two streams and a mask of one, which free themselves.
struct Slots {
    cache: *mut TqkvSlots,
    mask: *mut TqkvMask,
}

impl Slots {
    fn new(words: &str, stream: usize) -> Self {
        let (mut cache, mut mask) = (null_mut(), null_mut());
        // SAFETY: the text ends with a zero, and the places can be written.
        unsafe {
            let status = tqkv_slots_create(with(words).as_ptr(), SLOTS, 2, &raw mut cache);
            assert_eq!(status, TqkvOk, "{}", last_error());
            assert_eq!(tqkv_mask_create(cache, stream, &raw mut mask), TqkvOk, "{}", last_error());
        }
        Self { cache, mask }
    }

    fn write(&self, layer: usize, slots: &[usize], positions: &[usize], k: &[f32], v: &[f32]) -> TqkvStatus {
        let (n, k_values, v_values) = (slots.len(), k.len(), v.len());
        let (slots, positions, k, v) = (slots.as_ptr(), positions.as_ptr(), k.as_ptr().cast(), v.as_ptr());
        // SAFETY: the cache is not freed, and the slices have the passed lengths.
        unsafe {
            tqkv_slots_write(self.cache, layer, slots, positions, n, 0, k, k_values, v.cast(), v_values)
        }
    }

    fn attend(&self, layer: usize, q: &[f32], out: &mut [f32]) -> TqkvStatus {
        let (from, to) = (q.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: the cache and the mask are not freed, and the slices have the passed lengths.
        unsafe { tqkv_slots_attend(self.cache, layer, 0, from, q.len(), self.mask, 0, to, out.len()) }
    }

    fn causal(&self, slots: &[usize], queries: usize) -> TqkvStatus {
        // SAFETY: the mask is not freed, and the slice has the passed length.
        unsafe { tqkv_mask_causal(self.mask, slots.as_ptr(), slots.len(), queries) }
    }

    fn see(&self, slots: &[usize], biases: Option<&[f32]>) -> TqkvStatus {
        let biases = biases.map_or(null(), <[f32]>::as_ptr);
        // SAFETY: the mask is not freed, and the slices have the passed length.
        unsafe { tqkv_mask_see(self.mask, slots.as_ptr(), biases, slots.len()) }
    }

    /// Keys and values of slots of the first layer, as f16 bits.
    fn read(&self, slots: &[usize]) -> [Vec<u16>; 2] {
        let n = slots.len() * TOKEN;
        let [mut k, mut v] = [(); 2].map(|()| vec![0x7e00; n]);
        let (to_k, to_v) = (k.as_mut_ptr(), v.as_mut_ptr());
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe { tqkv_slots_read(self.cache, 0, slots.as_ptr(), slots.len(), to_k, n, to_v, n) };
        assert_eq!(status, TqkvOk, "{}", last_error());
        [k, v]
    }

    fn shift(&self, layer: usize, slots: &[usize], positions: i32, rope: &TqkvRope) -> TqkvStatus {
        let (n, slots) = (slots.len(), slots.as_ptr());
        // SAFETY: the cache is not freed, and the slices and the frequencies have the passed lengths.
        unsafe { tqkv_slots_shift(self.cache, layer, slots, n, positions, rope) }
    }

    fn bytes(&self) -> usize {
        let mut bytes = usize::MAX;
        // SAFETY: the cache is not freed, and the place can be written.
        assert_eq!(unsafe { tqkv_slots_bytes(self.cache, &raw mut bytes) }, TqkvOk);
        bytes
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: both were made once, and are freed once.
        unsafe {
            tqkv_slots_free(self.cache);
            tqkv_mask_free(self.mask);
        }
    }
}

#[test]
fn slots_of_c_are_the_slots_of_rust() {
    let words = "t4,t2 hot=8";
    let c = Slots::new(words, 1);
    let spec = format!("{SHAPE} {words}").parse().unwrap();
    let mut rust = SlotCache::with_streams(spec, SLOTS, 2).unwrap();
    let mut mask = Mask::new(SLOTS).of_stream(1);
    // The second stream, from its tenth slot on. Masks count from the first slot of the stream.
    let (all, seen, positions) =
        (Vec::from_iter(SLOTS + 10..SLOTS + 210), Vec::from_iter(10..210), Vec::from_iter(0..200));
    let (k, v) = (values(1, 200 * TOKEN), values(2, 200 * TOKEN));
    assert_eq!(c.write(0, &all, &positions, &k, &v), TqkvOk, "{}", last_error());
    rust.write(0, &all, &positions, &k, &v).unwrap();
    let biases = Vec::from_iter((0..150).map(|i| if i % 7 == 0 { f32::NEG_INFINITY } else { -0.25 }));
    assert_eq!((c.causal(&seen, 20), c.see(&seen[..150], Some(&biases))), (TqkvOk, TqkvOk));
    assert_eq!(c.see(&seen[40..], None), TqkvOk, "{}", last_error());
    mask.causal(&seen, 20).unwrap();
    mask.see_with(seen.iter().copied().zip(biases)).unwrap();
    mask.see(seen[40..].iter().copied()).unwrap();
    let q = values(3, 22 * QUERY);
    let [mut out, mut want] = [(); 2].map(|()| vec![f32::NAN; q.len()]);
    for _ in 0..2 {
        // The second time over codes.
        assert_eq!(c.attend(0, &q, &mut out), TqkvOk, "{}", last_error());
        rust.attend(0, &q, &mask, &mut want).unwrap();
        assert_eq!(out, want);
    }
    assert_eq!(c.bytes(), rust.allocated_bytes());

    // SAFETY: the cache is not freed, and the slices have the passed lengths.
    unsafe {
        assert_eq!(tqkv_slots_copy(c.cache, all.as_ptr(), seen.as_ptr(), 200), TqkvOk, "{}", last_error());
        assert_eq!(tqkv_slots_forget(c.cache, all.as_ptr(), 100), TqkvOk, "{}", last_error());
        assert_eq!(tqkv_slots_encode(c.cache, 0), TqkvOk, "{}", last_error());
    }
    rust.copy(&all, &seen).unwrap();
    rust.forget(&all[..100]).unwrap();
    rust.encode(0).unwrap();
    let everything = Vec::from_iter(0..2 * SLOTS);
    let [mut k, mut v] = [(); 2].map(|()| vec![f16::ZERO; 2 * SLOTS * TOKEN]);
    rust.read(0, &everything, &mut k, &mut v).unwrap();
    let held = c.read(&everything);
    assert!(held == [k.reinterpret_cast(), v.reinterpret_cast()].map(<[u16]>::to_vec));

    // A state moves to other slots of another cache.
    let other = Slots::new(words, 0);
    let (state, to) = (c.read(&seen), Vec::from_iter(30..230));
    let (n, from_k, from_v) = (state[0].len(), state[0].as_ptr(), state[1].as_ptr());
    // SAFETY: the caches are not freed, and the pointers have the passed numbers of values.
    unsafe {
        let (cache, slots, positions) = (other.cache, to.as_ptr(), positions.as_ptr());
        let status = tqkv_slots_restore(cache, 0, slots, positions, 200, from_k, n, from_v, n);
        assert_eq!(status, TqkvOk, "{}", last_error());
        assert_eq!(tqkv_slots_clear(c.cache), TqkvOk);
    }
    assert!(other.read(&to) == state);
    assert!(c.read(&everything).concat().iter().all(|x| *x == 0));
}

/// A RoPE of all coordinates of a head, as C describes it.
fn rope_of(pairing: TqkvRopePairing, inv_freq: &[f64]) -> TqkvRope {
    TqkvRope {
        first: DIM - 2 * inv_freq.len(),
        pairing: pairing as u32,
        inv_freq: inv_freq.as_ptr(),
        pairs: inv_freq.len(),
    }
}

#[test]
fn shifts_of_c_are_those_of_rust() {
    let frequencies = Vec::from_iter((0..DIM / 2).map(|pair| 0.8_f64.powi(pair as i32)));
    for (pairing, of_rust, pairs) in [
        (TqkvRopePairing::TqkvRopeHalf, RopePairing::Half, DIM / 2),
        (TqkvRopePairing::TqkvRopeInterleaved, RopePairing::Interleaved, DIM / 2),
        (TqkvRopePairing::TqkvRopeInterleaved, RopePairing::Interleaved, DIM / 8),
    ] {
        let words = "s4 hot=8";
        let c = Slots::new(words, 0);
        let spec = format!("{SHAPE} {words}").parse().unwrap();
        let mut rust = SlotCache::with_streams(spec, SLOTS, 2).unwrap();
        let mut mask = Mask::new(SLOTS);
        let (all, k, v) = (Vec::from_iter(0..200), values(1, 200 * TOKEN), values(2, 200 * TOKEN));
        let (from_c, from_rust) = (
            rope_of(pairing, &frequencies[..pairs]),
            Rope::new(DIM - 2 * pairs, of_rust, frequencies[..pairs].to_vec()),
        );
        assert_eq!(c.write(0, &all, &all, &k, &v), TqkvOk, "{}", last_error());
        rust.write(0, &all, &all, &k, &v).unwrap();
        assert_eq!(c.causal(&all, 2), TqkvOk);
        mask.causal(&all, 2).unwrap();
        let q = values(3, 2 * QUERY);
        let [mut out, mut want] = [(); 2].map(|()| vec![f32::NAN; q.len()]);
        let mut outs = Vec::new();
        // Before a shift, after one of codes and exact rows, and after one of another length.
        for (from, positions) in [(200, 0), (50, -64), (120, 7)] {
            assert_eq!(c.shift(0, &all[from..], positions, &from_c), TqkvOk, "{}", last_error());
            rust.shift(0, &all[from..], positions, &from_rust).unwrap();
            assert_eq!(c.attend(0, &q, &mut out), TqkvOk, "{}", last_error());
            rust.attend(0, &q, &mask, &mut want).unwrap();
            assert_eq!(out, want);
            let [mut k, mut v] = [(); 2].map(|()| vec![f16::ZERO; all.len() * TOKEN]);
            rust.read(0, &all, &mut k, &mut v).unwrap();
            assert!(c.read(&all) == [k.reinterpret_cast(), v.reinterpret_cast()].map(<[u16]>::to_vec));
            outs.push(out.clone());
        }
        assert!(outs[0] != outs[1] && outs[1] != outs[2], "{pairing:?}: a shift turns keys");
    }
}

#[test]
fn every_type_of_keys_queries_and_results_gives_the_same_numbers() {
    let wide = values(1, 100 * TOKEN);
    let halves: Vec<u16> = wide.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
    let short: Vec<u16> = wide.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
    let q = values(2, QUERY);
    let q_halves: Vec<u16> = q.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
    let all = Vec::from_iter(0..100);
    let mut want = Vec::new();
    for (dtype, rows) in [wide.as_ptr().cast::<c_void>(), halves.as_ptr().cast(), short.as_ptr().cast()]
        .into_iter()
        .enumerate()
    {
        let slots = Slots::new("s4 hot=8", 0);
        assert_eq!(slots.causal(&all, 1), TqkvOk);
        let (n, dtype) = (wide.len(), dtype as u32);
        let (mut out, mut narrow) = (vec![0.0; QUERY], vec![0_u16; QUERY]);
        // SAFETY: the cache and the mask are not freed, and the pointers have the passed numbers of values.
        unsafe {
            let (cache, slot, mask) = (slots.cache, all.as_ptr(), slots.mask);
            let status = tqkv_slots_write(cache, 0, slot, slot, 100, dtype, rows, n, rows, n);
            assert_eq!(status, TqkvOk, "{}", last_error());
            assert_eq!(tqkv_slots_encode(cache, 0), TqkvOk);
            let (from, to) = (q_halves.as_ptr().cast(), narrow.as_mut_ptr().cast());
            let status = tqkv_slots_attend(cache, 0, 1, from, QUERY, mask, 1, to, QUERY);
            assert_eq!(status, TqkvOk, "{}", last_error());
        }
        assert_eq!(slots.attend(0, &q, &mut out), TqkvOk);
        let rounded: Vec<u16> = out.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
        assert_eq!(narrow, rounded, "dtype {dtype}");
        if want.is_empty() {
            want.clone_from(&out);
        }
        assert_eq!(out, want, "dtype {dtype}");
    }
}

#[test]
fn null_is_refused_wherever_a_pointer_goes() {
    let slots = Slots::new("s4", 0);
    let (mut cache, mut mask, mut size) = (null_mut(), null_mut(), 0);
    let (text, at) = (spec(), [0_usize, 1]);
    let (x, mut out) = (values(1, QUERY), values(2, QUERY));
    let [mut k, mut v] = [[0_u16; TOKEN]; 2];
    let rope = rope_of(TqkvRopePairing::TqkvRopeHalf, &[1.0]);
    let nothing = TqkvRope { inv_freq: null(), ..rope };
    // SAFETY: every pointer is null or good for the passed length.
    unsafe {
        let (c, m, t) = (slots.cache, slots.mask, text.as_ptr());
        let (s, p, q, r) = (at.as_ptr(), at.as_ptr(), x.as_ptr().cast(), out.as_mut_ptr().cast());
        let (k, v, n, all) = (k.as_mut_ptr(), v.as_mut_ptr(), TOKEN, QUERY);
        for (status, what) in [
            (tqkv_slots_create(null(), 1, 1, &raw mut cache), "spec"),
            (tqkv_slots_create(t, 1, 1, null_mut()), "cache"),
            (tqkv_slots_write(null_mut(), 0, s, p, 1, 0, q, n, q, n), "cache"),
            (tqkv_slots_write(c, 0, null(), p, 1, 0, q, n, q, n), "slots"),
            (tqkv_slots_write(c, 0, s, null(), 1, 0, q, n, q, n), "positions"),
            (tqkv_slots_write(c, 0, s, p, 1, 0, null(), n, q, n), "k"),
            (tqkv_slots_write(c, 0, s, p, 1, 0, q, n, null(), n), "v"),
            (tqkv_slots_attend(null_mut(), 0, 0, q, all, m, 0, r, all), "cache"),
            (tqkv_slots_attend(c, 0, 0, q, all, null(), 0, r, all), "mask"),
            (tqkv_slots_attend(c, 0, 0, null(), all, m, 0, r, all), "q"),
            (tqkv_slots_attend(c, 0, 0, q, all, m, 0, null_mut(), all), "out"),
            (tqkv_slots_encode(null_mut(), 0), "cache"),
            (tqkv_slots_copy(null_mut(), s, p, 1), "cache"),
            (tqkv_slots_copy(c, null(), p, 1), "from"),
            (tqkv_slots_copy(c, s, null(), 1), "to"),
            (tqkv_slots_forget(null_mut(), s, 1), "cache"),
            (tqkv_slots_forget(c, null(), 1), "slots"),
            (tqkv_slots_shift(null_mut(), 0, s, 1, 1, &raw const rope), "cache"),
            (tqkv_slots_shift(c, 0, null(), 1, 1, &raw const rope), "slots"),
            (tqkv_slots_shift(c, 0, s, 1, 1, null()), "rope"),
            (tqkv_slots_shift(c, 0, s, 1, 1, &raw const nothing), "inv_freq of rope"),
            (tqkv_slots_clear(null_mut()), "cache"),
            (tqkv_slots_read(null(), 0, s, 1, k, n, v, n), "cache"),
            (tqkv_slots_read(c, 0, null(), 1, k, n, v, n), "slots"),
            (tqkv_slots_read(c, 0, s, 1, null_mut(), n, v, n), "k"),
            (tqkv_slots_read(c, 0, s, 1, k, n, null_mut(), n), "v"),
            (tqkv_slots_restore(null_mut(), 0, s, p, 1, k, n, v, n), "cache"),
            (tqkv_slots_restore(c, 0, null(), p, 1, k, n, v, n), "slots"),
            (tqkv_slots_restore(c, 0, s, null(), 1, k, n, v, n), "positions"),
            (tqkv_slots_restore(c, 0, s, p, 1, null(), n, v, n), "k"),
            (tqkv_slots_restore(c, 0, s, p, 1, k, n, null(), n), "v"),
            (tqkv_slots_bytes(null(), &raw mut size), "cache"),
            (tqkv_slots_bytes(c, null_mut()), "bytes"),
            (tqkv_mask_create(null(), 0, &raw mut mask), "cache"),
            (tqkv_mask_create(c, 0, null_mut()), "mask"),
            (tqkv_mask_clear(null_mut()), "mask"),
            (tqkv_mask_causal(null_mut(), s, 1, 1), "mask"),
            (tqkv_mask_causal(m, null(), 1, 1), "slots"),
            (tqkv_mask_see(null_mut(), s, null(), 1), "mask"),
            (tqkv_mask_see(m, null(), null(), 1), "slots"),
        ] {
            // The text is that of the last call, so only the status is compared here.
            assert_eq!(status, TqkvNullPointer, "{what}");
        }
        tqkv_slots_free(null_mut());
        tqkv_mask_free(null_mut());
    }
    assert!(cache.is_null() && mask.is_null());
}

#[test]
fn what_a_program_gets_wrong_is_refused_and_changes_nothing() {
    let create = |words: &str, slots, streams| {
        let mut cache = std::ptr::dangling_mut();
        // SAFETY: the text ends with a zero, and the place can be written.
        let status = unsafe { tqkv_slots_create(with(words).as_ptr(), slots, streams, &raw mut cache) };
        assert!(cache.is_null());
        status
    };
    refused(create("s4 ring=256", 64, 1), TqkvBadArgument, "ring=256 is not valid in a cache of slots");
    refused(create("s9", 64, 1), TqkvBadArgument, "'s9' is neither a preset");
    refused(create("s4", 0, 1), TqkvBadArgument, "1 streams of 0 slots: expected 1 to");
    refused(create("s4", 1 << 20, usize::MAX), TqkvBadArgument, "expected 1 to");

    let slots = Slots::new("s4 hot=0", 0);
    let (k, all) = (values(1, 100 * TOKEN), Vec::from_iter(0..100));
    assert_eq!(slots.write(0, &all, &all, &k, &k), TqkvOk);
    assert_eq!(slots.causal(&all, 1), TqkvOk);
    let (q, mut before, mut after) = (values(2, QUERY), vec![0.0; QUERY], vec![-7.0; QUERY]);
    assert_eq!((slots.attend(0, &q, &mut before), slots.attend(0, &q, &mut before)), (TqkvOk, TqkvOk));
    let (held, bytes) = (slots.read(&all), slots.bytes());

    let (row, mut bad) = (&k[..TOKEN], values(1, TOKEN));
    refused(slots.write(2, &[0], &[0], row, row), TqkvBadArgument, "layer 2 is out of range");
    refused(slots.write(0, &[2 * SLOTS], &[0], row, row), TqkvBadArgument, "512");
    refused(slots.write(0, &[1, 2], &[0, 1], row, row), TqkvBadArgument, "slots has 2 values, expected 1");
    refused(slots.write(0, &[1], &[0], &k[1..TOKEN], row), TqkvBadArgument, "whole number of tokens");
    refused(slots.write(0, &[1], &[0], row, &k[..2 * TOKEN]), TqkvBadArgument, "v has");
    bad[DIM + 3] = f32::NAN;
    refused(slots.write(0, &[1], &[0], row, &bad), TqkvBadVector, "value of token 0, KV head 1");
    refused(slots.causal(&[3, SLOTS], 2), TqkvBadArgument, "256");
    refused(slots.causal(&[3, 4], 3), TqkvBadArgument, "slots has 2 values, expected 3");
    refused(slots.causal(&[], usize::MAX), TqkvBadArgument, "slots has 0 values");
    refused(slots.see(&[usize::MAX], None), TqkvBadArgument, "slot");
    refused(slots.see(&[1], Some(&[f32::NAN])), TqkvBadArgument, "bias NaN of slot 1");
    refused(slots.attend(2, &q, &mut after), TqkvBadArgument, "layer 2");
    refused(slots.attend(0, &q[1..], &mut after), TqkvBadArgument, "q has 255 values, expected 256");
    refused(slots.attend(0, &q, &mut after[1..]), TqkvBadArgument, "out has 255 values");
    refused(slots.attend(0, &[f32::NAN; QUERY], &mut after), TqkvBadVector, "head 0");
    let rope = rope_of(TqkvRopePairing::TqkvRopeHalf, &[1.0, 0.5]);
    refused(slots.shift(2, &[1], 1, &rope), TqkvBadArgument, "layer 2 is out of range");
    refused(slots.shift(0, &[1, 2 * SLOTS], 1, &rope), TqkvBadArgument, "512");
    let other = TqkvRope { pairing: 2, ..rope };
    refused(slots.shift(0, &[1], 1, &other), TqkvBadArgument, "pairing of rope is 2, expected 0 to 1");
    let other = TqkvRope { first: DIM - 3, ..rope };
    refused(slots.shift(0, &[1], 1, &other), TqkvBadArgument, "2 pairs from value 61 on");
    let other = TqkvRope { first: usize::MAX, ..rope };
    refused(slots.shift(0, &[1], 1, &other), TqkvBadArgument, "expected at most the head dim, 64");
    let other = TqkvRope { pairs: usize::MAX, ..rope };
    refused(slots.shift(0, &[1], 1, &other), TqkvBadArgument, "more than memory can hold");
    let infinite = rope_of(TqkvRopePairing::TqkvRopeHalf, &[1.0, f64::INFINITY]);
    refused(slots.shift(0, &[1], 1, &infinite), TqkvBadArgument, "frequency inf: expected a finite one");
    let mut mask = null_mut();
    let (x, at) = (k.as_ptr().cast(), all.as_ptr());
    // SAFETY: the cache is not freed; what is longer than its memory is refused before it is read.
    unsafe {
        let (cache, o) = (slots.cache, after.as_mut_ptr());
        refused(tqkv_mask_create(cache, 2, &raw mut mask), TqkvBadArgument, "stream 2 is out of range");
        refused(tqkv_slots_encode(cache, 2), TqkvBadArgument, "layer 2");
        refused(tqkv_slots_copy(cache, at, [2 * SLOTS].as_ptr(), 1), TqkvBadArgument, "512");
        refused(tqkv_slots_forget(cache, [3, 2 * SLOTS].as_ptr(), 2), TqkvBadArgument, "512");
        refused(tqkv_slots_forget(cache, at, usize::MAX), TqkvBadArgument, "more than memory can hold");
        refused(tqkv_slots_forget(cache, at.byte_add(1), 1), TqkvBadArgument, "aligned to 8 bytes");
        let status = tqkv_slots_write(cache, 0, at, at, 1, 3, x, TOKEN, x, TOKEN);
        refused(status, TqkvBadArgument, "dtype of k is 3, expected 0 to 2");
        let status = tqkv_slots_attend(cache, 0, 0, o.cast(), QUERY, slots.mask, 0, o.cast(), QUERY);
        refused(status, TqkvBadArgument, "q and out overlap");
        let half = o.cast::<u16>();
        let status = tqkv_slots_read(cache, 0, at, 1, half, TOKEN, half.add(1), TOKEN);
        refused(status, TqkvBadArgument, "k and v overlap");
        let status = tqkv_slots_read(cache, 0, at, 1, half, TOKEN, half.add(TOKEN), TOKEN - 1);
        refused(status, TqkvBadArgument, "v has 127 values");
        let status = tqkv_slots_restore(cache, 0, at, at, 2, x.cast(), TOKEN, x.cast(), TOKEN);
        refused(status, TqkvBadArgument, "slots has 2 values, expected 1");
    }
    assert!(mask.is_null() && after.iter().all(|x| *x == -7.0));
    assert_eq!(slots.attend(0, &q, &mut after), TqkvOk, "the mask still has one query");
    assert!(before == after && held == slots.read(&all) && bytes == slots.bytes());
}

/// Any slots, layers and lengths give a status, and what is accepted keeps the cache intact.
#[test]
fn random_calls_end_with_a_status() {
    let slots = Slots::new("t2 hot=4", 0);
    let (x, mut state, mut accepted) = (values(1, 40 * TOKEN), 1_u32, 0);
    let mut below = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % n
    };
    for _ in 0..3000 {
        let (layer, n) = (below(20) / 9, below(24));
        // Now and then a slot past the end.
        let (more, one_more) = (below(3), below(2));
        let at: Vec<usize> = (0..n).map(|_| below(2 * SLOTS + more)).collect();
        let to: Vec<usize> = (0..n).map(|_| below(SLOTS + one_more)).collect();
        let values = if below(8) == 0 { below(x.len()) } else { n * TOKEN };
        let status = match below(8) {
            0..3 => slots.write(layer, &at, &to, &x[..values], &x[..values]),
            3 => slots.causal(&to, below(4)),
            4 => slots.see(&to, [None, Some(&x[..n])][below(2)]),
            5 => {
                let queries = below(6);
                let mut out = vec![0.0; queries * QUERY];
                let status = slots.attend(layer, &x[..queries * QUERY], &mut out);
                assert!(out.iter().all(|x| x.is_finite()));
                // SAFETY: the mask is not freed.
                assert_eq!(unsafe { tqkv_mask_clear(slots.mask) }, TqkvOk);
                status
            }
            // SAFETY: the cache is not freed, and the slices have the passed length.
            6 => unsafe { tqkv_slots_copy(slots.cache, at.as_ptr(), to.as_ptr(), n) },
            // SAFETY: as above.
            _ => unsafe { tqkv_slots_forget(slots.cache, at.as_ptr(), n) },
        };
        assert!(matches!(status, TqkvOk | TqkvBadArgument), "{status:?}: {}", last_error());
        accepted += usize::from(status == TqkvOk);
    }
    assert!(accepted > 1000, "{accepted} calls");
    assert!(slots.read(&Vec::from_iter(0..SLOTS)).concat().iter().any(|x| *x != 0));
}
