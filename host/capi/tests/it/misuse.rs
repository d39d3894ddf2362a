//! Random calls of a C program, many of them with lengths, types, layers and slots that are wrong. The test `random`
//! and the fuzz target `calls` run them; each makes choices of its own.
//!
//! Right calls are accepted, and wrong ones refused by a status that names a mistake. No call is ever a defect, and
//! what is refused changes nothing: the cache lives on.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

/// The choices of a life.
pub(crate) trait Choose {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize;

    /// True once there are no more choices.
    fn is_done(&self) -> bool;
}

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const TOKEN: usize = KV_HEADS * DIM;
const QUERY: usize = HEADS * DIM;
const LAYERS: usize = 2;
const SLOTS: usize = 256;
const STREAMS: usize = 2;
/// Most tokens of a sequence.
const MOST: usize = 700;

const POLICIES: [&str; 8] = [
    "s4",
    "t4,t2 hot=3 sinks=0",
    "f16",
    "s4 sinks=40 select=256",
    "t2 map=pairs hot=8",
    "i8,s4 sliding-window=90",
    "n4 hot=16 tier=128:n2 arithmetic=f32",
    "s4,f16 hot=0 sinks=130",
];
const SLOT_POLICIES: [&str; 5] = ["s4", "t2 hot=4", "f16", "t4,f16 hot=8 map=pairs", "s4 hot=8 tier=128:s2"];

/// Values of one type, exactly as many as are said.
enum Typed {
    Wide(Vec<f32>),
    Short(Vec<u16>),
}

impl Typed {
    fn pointer(&self) -> *const c_void {
        match self {
            Self::Wide(values) => values.as_ptr().cast(),
            Self::Short(values) => values.as_ptr().cast(),
        }
    }

    fn room(&mut self) -> *mut c_void {
        match self {
            Self::Wide(values) => values.as_mut_ptr().cast(),
            Self::Short(values) => values.as_mut_ptr().cast(),
        }
    }
}

struct Life<'a, C> {
    choose: &'a mut C,
    cache: *mut TqkvCache,
    /// Tokens by layer.
    lens: [usize; LAYERS],
    slots: *mut TqkvSlots,
    /// One mask per stream, and its queries.
    masks: [(*mut TqkvMask, usize); STREAMS],
    /// True if an argument of the call is wrong.
    is_wrong: bool,
    accepted: usize,
}

/// Lives until the choices end. Returns the numbers of calls that were accepted and of those that were made.
pub(crate) fn live(choose: &mut impl Choose) -> [usize; 2] {
    let shape = format!("layers={LAYERS} heads={HEADS} kv-heads={KV_HEADS} head-dim={DIM}");
    let policy = POLICIES[choose.below(POLICIES.len())];
    let of_slots = SLOT_POLICIES[choose.below(SLOT_POLICIES.len())];
    let [spec, of_slots] =
        [policy, of_slots].map(|words| CString::new(format!("{shape} {words}")).expect("a text"));
    let (mut cache, mut slots, mut masks) = (null_mut(), null_mut(), [(null_mut(), 0); STREAMS]);
    // SAFETY: the texts end with a zero, and the places can be written.
    unsafe {
        assert_eq!(tqkv_create(spec.as_ptr(), &raw mut cache), TqkvOk);
        assert_eq!(tqkv_slots_create(of_slots.as_ptr(), SLOTS, STREAMS, &raw mut slots), TqkvOk);
        for (stream, (mask, _)) in masks.iter_mut().enumerate() {
            assert_eq!(tqkv_mask_create(slots, stream, mask), TqkvOk);
        }
    }
    let mut life = Life { choose, cache, lens: [0; LAYERS], slots, masks, is_wrong: false, accepted: 0 };
    let mut calls = 0;
    while !life.choose.is_done() {
        life.call();
        calls += 1;
    }
    let accepted = life.accepted;
    // SAFETY: all of them were made once, and are freed once.
    unsafe {
        tqkv_free(cache);
        tqkv_slots_free(slots);
        masks.iter().for_each(|(mask, _)| tqkv_mask_free(*mask));
    }
    [accepted, calls]
}

impl<C: Choose> Life<'_, C> {
    /// The right number, or now and then another one nearby.
    fn near(&mut self, right: usize) -> usize {
        if self.choose.below(12) > 0 {
            return right;
        }
        let other = (right + [1, 2, 3, 7, 15, 16, 17, 64][self.choose.below(8)])
            .saturating_sub([0, 8, 32, 80][self.choose.below(4)]);
        self.is_wrong |= other != right;
        other
    }

    /// A number below `n`, or now and then one that is not.
    fn place(&mut self, n: usize) -> usize {
        let is_wrong = self.choose.below(24) == 0;
        self.is_wrong |= is_wrong;
        if is_wrong { n + self.choose.below(2) } else { self.choose.below(n) }
    }

    /// `count` values, or now and then another number, of a type that is known or not; its number, and theirs.
    fn values(&mut self, count: usize) -> (Typed, u32, usize) {
        let (count, dtype) = (self.near(count), self.place(3) as u32);
        let seed = self.choose.below(256) as u32;
        let value = |i: usize| {
            let bits =
                (seed + 1).wrapping_mul(0x9e37_79b9).wrapping_add((i as u32).wrapping_mul(0x85eb_ca6b));
            ((bits ^ bits >> 15).wrapping_mul(0x2c1b_3c6d) >> 24) as f32 / 64.0 - 2.0
        };
        let all = (0..count).map(value);
        let typed = match dtype {
            1 => Typed::Short(all.map(|x| half::f16::from_f32(x).to_bits()).collect()),
            2 => Typed::Short(all.map(|x| half::bf16::from_f32(x).to_bits()).collect()),
            _ => Typed::Wide(all.collect()),
        };
        (typed, dtype, count)
    }

    /// Checks the status of a call: right arguments are accepted, and wrong ones refused. `otherwise` may refuse
    /// right ones. True if the call was accepted.
    fn done(&mut self, what: &str, status: TqkvStatus, otherwise: &[TqkvStatus]) -> bool {
        let is_fine = match status {
            TqkvOk => !self.is_wrong,
            TqkvBadArgument => self.is_wrong,
            status => otherwise.contains(&status),
        };
        // SAFETY: the text belongs to this thread, and is read before the next call.
        let text = unsafe { std::ffi::CStr::from_ptr(tqkv_last_error()) };
        assert!(is_fine, "{what}, wrong {}: {status:?}, {text:?}", self.is_wrong);
        self.accepted += usize::from(status == TqkvOk);
        status == TqkvOk
    }

    fn call(&mut self) {
        self.is_wrong = false;
        match self.choose.below(16) {
            0..3 => self.append(),
            3 => self.prefill(),
            4..6 => self.attend(),
            6 => self.attend_selected(),
            7 => self.attend_many(),
            8 => self.scores(),
            9 => self.truncate(),
            10..12 => self.write(),
            12 => self.see(),
            13 | 14 => self.attend_slots(),
            _ => self.move_slots(),
        }
        let mut len = usize::MAX;
        // SAFETY: the cache is not freed, and the place can be written.
        assert_eq!(unsafe { tqkv_len(self.cache, &raw mut len) }, TqkvOk, "the cache lives");
        assert_eq!(len, self.lens[0]);
        // SAFETY: as above.
        assert_eq!(unsafe { tqkv_slots_bytes(self.slots, &raw mut len) }, TqkvOk, "the slots live");
    }

    /// Tokens that a layer still has room for in this life.
    fn tokens(&mut self, layer: usize) -> usize {
        let held = self.lens.get(layer).copied().unwrap_or_default();
        let most = [4, 90][self.choose.below(2)];
        (1 + self.choose.below(most)).min(MOST - held)
    }

    fn append(&mut self) {
        let layer = self.place(LAYERS);
        let n = self.tokens(layer);
        let ((k, dtype, k_values), (v, other, v_values)) = (self.values(n * TOKEN), self.values(n * TOKEN));
        if dtype != other {
            return;
        }
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status =
            unsafe { tqkv_append(self.cache, layer, dtype, k.pointer(), k_values, v.pointer(), v_values) };
        if self.done("tqkv_append", status, &[]) {
            self.lens[layer] += n;
        }
    }

    fn prefill(&mut self) {
        let layer = self.place(LAYERS);
        let n = self.tokens(layer);
        let ((k, dtype, k_values), (v, other, v_values)) = (self.values(n * TOKEN), self.values(n * TOKEN));
        let ((q, q_dtype, q_values), (mut out, out_dtype, out_values)) =
            (self.values(n * QUERY), self.values(n * QUERY));
        if dtype != other {
            return;
        }
        let (cache, k, v) = (self.cache, k.pointer(), v.pointer());
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (q, out) = (q.pointer(), out.room());
            tqkv_prefill(
                cache, layer, q_dtype, q, q_values, dtype, k, k_values, v, v_values, out_dtype, out,
                out_values,
            )
        };
        if self.done("tqkv_prefill", status, &[]) {
            self.lens[layer] += n;
        }
    }

    /// The status of a layer without tokens.
    fn empty(&self, layer: usize) -> &'static [TqkvStatus] {
        if self.lens.get(layer) == Some(&0) { &[TqkvEmpty] } else { &[] }
    }

    fn attend(&mut self) {
        let layer = self.place(LAYERS);
        let ((q, q_dtype, q_values), (mut out, dtype, out_values)) = (self.values(QUERY), self.values(QUERY));
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            tqkv_attend(self.cache, layer, q_dtype, q.pointer(), q_values, dtype, out.room(), out_values)
        };
        self.read_only("tqkv_attend", status, layer);
    }

    /// Checks a call that reads a layer. If that has no tokens, the call may say so first.
    fn read_only(&mut self, what: &str, status: TqkvStatus, layer: usize) {
        let empty = self.empty(layer);
        if status == TqkvOk {
            assert!(empty.is_empty(), "{what} of no token");
        }
        self.done(what, status, empty);
    }

    fn attend_selected(&mut self) {
        let layer = self.place(LAYERS);
        let len = self.lens.get(layer).copied().unwrap_or_default();
        let step = 1 + self.choose.below(40);
        let list = Vec::from_iter((self.choose.below(40)..len).step_by(step).map(|token| token as u32));
        let tokens = [list.as_slice(), &list].concat();
        let mut counts = vec![list.len(); KV_HEADS];
        counts[1] = self.near(list.len());
        let lists = self.near(KV_HEADS);
        counts.resize(lists, 0);
        let ((q, q_dtype, q_values), (mut out, dtype, out_values)) = (self.values(QUERY), self.values(QUERY));
        let (cache, n) = (self.cache, tokens.len());
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (q, out, lists) = (q.pointer(), out.room(), counts.len());
            let (tokens, counts) = (tokens.as_ptr(), counts.as_ptr());
            tqkv_attend_selected(
                cache, layer, q_dtype, q, q_values, tokens, n, counts, lists, dtype, out, out_values,
            )
        };
        // A window does not show all tokens.
        self.is_wrong |= status == TqkvBadArgument;
        self.read_only("tqkv_attend_selected", status, layer);
    }

    fn attend_many(&mut self) {
        let layer = self.place(LAYERS);
        let n = 1 + self.choose.below(3);
        let caches = vec![self.cache.cast_const(); n];
        let ((q, q_dtype, q_values), (mut out, dtype, out_values)) =
            (self.values(n * QUERY), self.values(n * QUERY));
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (q, out) = (q.pointer(), out.room());
            tqkv_attend_many(caches.as_ptr(), n, layer, q_dtype, q, q_values, dtype, out, out_values)
        };
        self.read_only("tqkv_attend_many", status, layer);
    }

    fn scores(&mut self) {
        let (layer, head) = (self.place(LAYERS), self.place(HEADS));
        let ((q, q_dtype, q_values), mut out, mut count) = (self.values(DIM), vec![0.0; MOST], 0);
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (q, out, count) = (q.pointer(), out.as_mut_ptr(), &raw mut count);
            tqkv_scores(self.cache, layer, head, q_dtype, q, q_values, out, MOST, count)
        };
        self.read_only("tqkv_scores", status, layer);
    }

    fn truncate(&mut self) {
        let len = self.choose.below(MOST);
        // SAFETY: the cache is not freed.
        let status = unsafe { tqkv_truncate(self.cache, len) };
        if self.done("tqkv_truncate", status, &[TqkvEvicted]) {
            self.lens.iter_mut().for_each(|held| *held = (*held).min(len));
        }
    }

    /// Some slots of both streams, one after the other or anywhere.
    fn some_slots(&mut self, most: usize) -> Vec<usize> {
        let (n, first, step) =
            (self.choose.below(most), self.place(STREAMS * SLOTS), 1 + 6 * self.choose.below(2));
        let end = (STREAMS * SLOTS).max(first + 1);
        (first..end).step_by(step).take(n.max(1)).collect()
    }

    fn write(&mut self) {
        let (layer, slots) = (self.place(LAYERS), self.some_slots(80));
        let first = self.choose.below(3);
        let positions = Vec::from_iter(first..first + slots.len());
        let n = slots.len();
        let ((k, dtype, k_values), (v, other, v_values)) = (self.values(n * TOKEN), self.values(n * TOKEN));
        if dtype != other {
            return;
        }
        let (cache, slots, positions) = (self.slots, slots.as_ptr(), positions.as_ptr());
        let (k, v) = (k.pointer(), v.pointer());
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status =
            unsafe { tqkv_slots_write(cache, layer, slots, positions, n, dtype, k, k_values, v, v_values) };
        self.done("tqkv_slots_write", status, &[]);
    }

    fn see(&mut self) {
        let stream = self.choose.below(STREAMS);
        let (mask, held) = self.masks[stream];
        if self.choose.below(4) == 0 || held > 40 {
            // SAFETY: the mask is not freed.
            let status = unsafe { tqkv_mask_clear(mask) };
            self.masks[stream].1 = 0;
            assert!(self.done("tqkv_mask_clear", status, &[]));
            return;
        }
        let (n, first) = (1 + self.choose.below(90), self.place(SLOTS));
        let slots = Vec::from_iter((first..SLOTS.max(first + 1)).take(n));
        let n = slots.len();
        let added = if self.choose.below(2) == 0 {
            let biases = vec![-0.5; n];
            let biases = if self.choose.below(2) == 0 { biases.as_ptr() } else { null() };
            // SAFETY: the mask is not freed, and the pointers have the passed numbers of values.
            let status = unsafe { tqkv_mask_see(mask, slots.as_ptr(), biases, n) };
            usize::from(self.done("tqkv_mask_see", status, &[]))
        } else {
            let queries = self.choose.below(20);
            self.is_wrong |= queries > n;
            // SAFETY: the mask is not freed, and the pointer has the passed number of values.
            let status = unsafe { tqkv_mask_causal(mask, slots.as_ptr(), n, queries) };
            if self.done("tqkv_mask_causal", status, &[]) { queries } else { 0 }
        };
        self.masks[stream].1 += added;
    }

    fn attend_slots(&mut self) {
        let (layer, (mask, queries)) = (self.place(LAYERS), self.masks[self.choose.below(STREAMS)]);
        // Queries of another number than the mask has.
        let n = self.near(queries);
        let ((q, q_dtype, q_values), (mut out, dtype, out_values)) =
            (self.values(n * QUERY), self.values(n * QUERY));
        let cache = self.slots;
        // SAFETY: the cache and the mask are not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            tqkv_slots_attend(
                cache,
                layer,
                q_dtype,
                q.pointer(),
                q_values,
                mask,
                dtype,
                out.room(),
                out_values,
            )
        };
        self.done("tqkv_slots_attend", status, &[]);
    }

    fn move_slots(&mut self) {
        let from = self.some_slots(80);
        let (n, cache) = (from.len(), self.slots);
        match self.choose.below(4) {
            0 => {
                // SAFETY: the cache is not freed, and the pointer has the passed number of values.
                let status = unsafe { tqkv_slots_forget(cache, from.as_ptr(), n) };
                self.done("tqkv_slots_forget", status, &[]);
            }
            1 => {
                let to = Vec::from_iter((0..n).map(|i| (i + self.choose.below(2)) % (STREAMS * SLOTS)));
                // SAFETY: as above.
                let status = unsafe { tqkv_slots_copy(cache, from.as_ptr(), to.as_ptr(), n) };
                self.done("tqkv_slots_copy", status, &[]);
            }
            way => {
                let layer = self.place(LAYERS);
                let [k_values, v_values] = [(); 2].map(|()| self.near(n * TOKEN));
                let [mut k, mut v] = [k_values, v_values].map(|n| vec![0_u16; n]);
                let (slots, positions) = (from.as_ptr(), Vec::from_iter(0..n));
                // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
                let status = unsafe {
                    let (k, v, positions) = (k.as_mut_ptr(), v.as_mut_ptr(), positions.as_ptr());
                    if way == 2 {
                        tqkv_slots_read(cache, layer, slots, n, k, k_values, v, v_values)
                    } else {
                        tqkv_slots_restore(cache, layer, slots, positions, n, k, k_values, v, v_values)
                    }
                };
                self.done("tqkv_slots_read or tqkv_slots_restore", status, &[]);
            }
        }
    }
}
