//! Random calls of a C program, many of them with lengths, types, layers and slots that are wrong. The test `random`
//! and the fuzz target `calls` run them; each makes choices of its own.
//!
//! Right calls are accepted, and wrong ones refused by a status that names a mistake. No call is ever a defect, and
//! what is refused changes nothing: the cache lives on.

#[path = "misuse_blocks.rs"]
mod blocks;

use blocks::{BLOCK_TOKENS, BLOCKS, Blocks};
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
    blocks: Blocks,
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
    let (lens, blocks) = ([0; LAYERS], Blocks::new(&shape));
    let mut life = Life { choose, cache, lens, slots, masks, blocks, is_wrong: false, accepted: 0 };
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
        match self.choose.below(19) {
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
            16.. => self.use_blocks(),
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
        match self.choose.below(5) {
            4 => self.shift_slots(&from),
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

    fn shift_slots(&mut self, slots: &[usize]) {
        let (layer, cache, pairs) = (self.place(LAYERS), self.slots, 1 + self.choose.below(DIM / 2));
        let mut inv_freq = Vec::from_iter((0..pairs).map(|pair| 0.7_f64.powi(pair as i32)));
        let mut first = self.choose.below(DIM - 2 * pairs + 1);
        match self.choose.below(24) {
            0 => inv_freq[pairs / 2] = f64::NAN,
            1 => first = DIM - 2 * pairs + 1,
            _ => {}
        }
        self.is_wrong |= first + 2 * pairs > DIM || inv_freq.iter().any(|x| x.is_nan());
        let positions = [-64, 7, i32::MIN, 0, 1 << 20][self.choose.below(5)];
        let pairing = self.place(2) as u32;
        let rope = TqkvRope { first, pairing, inv_freq: inv_freq.as_ptr(), pairs };
        // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            tqkv_slots_shift(cache, layer, slots.as_ptr(), slots.len(), positions, &raw const rope)
        };
        self.done("tqkv_slots_shift", status, &[]);
    }

    /// Stores, attends, decodes or copies.
    fn use_blocks(&mut self) {
        match self.choose.below(6) {
            0..2 => self.store(),
            2..4 => self.attend_blocks(),
            4 => self.gather(),
            _ => self.copy_blocks(),
        }
    }

    /// The memory, its stride, and now and then one that is wrong.
    fn pages(&mut self) -> TqkvPages {
        let mut pages = self.blocks.pages();
        match self.choose.below(40) {
            0 => pages.stride += 8,
            1 => pages.stride -= 64,
            2 => pages.memory = null_mut(),
            3 => pages.memory = pages.memory.wrapping_byte_add(16),
            4 => pages.bytes = 64,
            // Fewer blocks, which is no mistake.
            5 => pages.bytes -= self.blocks.stride,
            _ => {}
        }
        self.is_wrong |= pages.memory != self.blocks.pages().memory
            || pages.stride != self.blocks.stride
            || pages.bytes == 64;
        pages
    }

    fn store(&mut self) {
        let pages = self.pages();
        let n = 1 + self.choose.below(40);
        let places =
            Vec::from_iter((0..n).map(|_| self.choose.below(BLOCKS * BLOCK_TOKENS + 40) as i64 - 20));
        let ((k, dtype, k_values), (v, other, v_values)) = (self.values(n * TOKEN), self.values(n * TOKEN));
        if dtype != other {
            return;
        }
        let (paged, mut refused) = (self.blocks.paged, usize::MAX);
        // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (k, v, places, refused) = (k.pointer(), v.pointer(), places.as_ptr(), &raw mut refused);
            tqkv_paged_store(paged, &raw const pages, places, n, dtype, k, k_values, v, v_values, refused)
        };
        if self.done("tqkv_paged_store", status, null_of(&pages)) {
            assert_eq!(refused, 0);
        }
    }

    /// A table and lengths with any numbers, which are no mistakes.
    fn rows(&mut self) -> (Vec<i32>, Vec<i32>, usize) {
        let (rows, entries) = (1 + self.choose.below(4), self.choose.below(4));
        let table = Vec::from_iter((0..rows * entries).map(|_| self.choose.below(BLOCKS + 3) as i32 - 1));
        let most = entries * BLOCK_TOKENS + 20;
        let lengths = Vec::from_iter((0..rows).map(|_| self.choose.below(most) as i32 - 5));
        (table, lengths, entries)
    }

    fn attend_blocks(&mut self) {
        let (pages, (table, lengths, entries)) = (self.pages(), self.rows());
        let rows = lengths.len();
        let starts = Vec::from_iter((0..rows).map(|_| self.choose.below(70) as i32 - 9));
        let starts = if self.choose.below(2) == 0 { starts.as_ptr() } else { null() };
        let step = TqkvStep { rows, entries, table: table.as_ptr(), lengths: lengths.as_ptr(), starts };
        let held = self.choose.below(9);
        let (exact, places) = (vec![0.5_f32; TOKEN * held], Vec::from_iter(-1..2 * rows as i64 - 1));
        let over = usize::from(self.choose.below(9) == 0);
        let is_exact = self.choose.below(3) == 0;
        let scale = [0.0, 0.2, f32::NAN][self.choose.below(24) % 8 % 3];
        self.is_wrong |= scale.is_nan() || is_exact && over > 0;
        let rule = TqkvRule {
            scale,
            soft_cap: [0.0, 20.0][self.choose.below(2)],
            window: [0, 7][self.choose.below(2)],
            sinks: null(),
            exact_k: if is_exact { exact.as_ptr().cast() } else { null() },
            exact_v: exact.as_ptr().cast(),
            exact_values: exact.len(),
            exact_dtype: 0,
            exact_places: places.as_ptr(),
            exact_columns: 2,
            exact_held: held + over,
        };
        let ((q, q_dtype, q_values), (mut out, dtype, out_values)) =
            (self.values(rows * QUERY), self.values(rows * QUERY));
        let (count, paged) = (self.near(rows * HEADS), self.blocks.paged);
        let mut lse = vec![0.0; count];
        // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (pages, step, rule) = (&raw const pages, &raw const step, &raw const rule);
            let (q, out, lse) = (q.pointer(), out.room(), lse.as_mut_ptr());
            tqkv_paged_attend(
                paged, pages, step, rule, q_dtype, q, q_values, dtype, out, out_values, lse, count,
            )
        };
        self.done("tqkv_paged_attend", status, null_of(&pages));
    }

    fn gather(&mut self) {
        let (pages, (table, lengths, entries)) = (self.pages(), self.rows());
        let rows = lengths.len();
        let step =
            TqkvStep { rows, entries, table: table.as_ptr(), lengths: lengths.as_ptr(), starts: null() };
        let firsts = Vec::from_iter((0..rows).map(|_| self.choose.below(80) as i32 - 9));
        let (side, room) = (self.place(2) as u32, TOKEN * self.choose.below(60));
        let mut out = vec![7.0; room];
        // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            let (pages, step, firsts) = (&raw const pages, &raw const step, firsts.as_ptr());
            tqkv_paged_gather(self.blocks.paged, side, pages, step, firsts, out.as_mut_ptr(), room)
        };
        self.done("tqkv_paged_gather", status, null_of(&pages));
        assert!(out.iter().all(|x| x.is_finite()));
    }

    fn copy_blocks(&mut self) {
        let pages = self.pages();
        let held = pages.bytes / self.blocks.stride;
        let [from, to] = [(); 2].map(|()| vec![self.place(BLOCKS), self.place(BLOCKS)]);
        self.is_wrong |= from.iter().chain(&to).any(|block| *block >= held);
        // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
        let status = unsafe {
            tqkv_paged_copy(self.blocks.paged, &raw const pages, from.as_ptr(), to.as_ptr(), from.len())
        };
        self.done("tqkv_paged_copy", status, null_of(&pages));
    }
}

/// The status of pages without memory.
fn null_of(pages: &TqkvPages) -> &'static [TqkvStatus] {
    if pages.memory.is_null() { &[TqkvNullPointer] } else { &[] }
}
