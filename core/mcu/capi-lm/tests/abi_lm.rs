//! The language model as a C program calls it: the tokens equal those of the Rust crate, and every mistake
//! has a status.
#![allow(missing_docs, reason = "a test crate")]

use std::ffi::CStr;
use std::ptr::{null, null_mut};
use tqkv_capi_lm::TqkvLmStatus::*;
use tqkv_capi_lm::*;
use tqkv_core::Portable;
use tqkv_core::code::{S3, S4};
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use tqkv_lm::{Head, LayoutBytes, Lm, Model, Sampler, Shape, WeightBits, checksum};

const SHAPE: Shape = Shape {
    bits: WeightBits::Eight,
    is_tied: true,
    hidden: 64,
    inner: 96,
    layers: 2,
    heads: 2,
    kv_heads: 1,
    head_dim: 64,
    vocab: 50,
    context: 128,
    epsilon: 11_000_000,
};
/// Smaller than the number of tokens that are appended.
const CONTEXT: u32 = 32;
const SINKS: u32 = 6;
/// Exact tokens of each ring.
const EXACT: u32 = (TQKV_LM_SINKS + TQKV_LM_NEWEST) as u32;

/// A complete file with weights that look random.
fn file() -> Vec<u8> {
    let (of, mut state) = (LayoutBytes(SHAPE.bits), 7_u32);
    let mut bytes = SHAPE.header().to_vec();
    let mut tensor = |exponent: Option<i32>, count: u64, bytes: &mut Vec<u8>| {
        let start = bytes.len();
        bytes.extend((0..count).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        }));
        if let Some(exponent) = exponent {
            bytes[start..][..4].copy_from_slice(&exponent.to_le_bytes());
        }
    };
    let (hidden, inner, attended, keyed) = (64, 96, 128, 64);
    tensor(None, 2 * 64, &mut bytes);
    for _ in 0..SHAPE.layers {
        tensor(Some(-14), of.norm(hidden), &mut bytes);
        for (rows, columns) in [(attended, hidden), (keyed, hidden), (keyed, hidden), (hidden, attended)] {
            tensor(Some(-25), of.matrix(rows, columns), &mut bytes);
        }
        tensor(Some(-14), of.norm(hidden), &mut bytes);
        for (rows, columns) in [(inner, hidden), (inner, hidden), (hidden, inner)] {
            tensor(Some(-25), of.matrix(rows, columns), &mut bytes);
        }
    }
    tensor(Some(-14), of.norm(hidden), &mut bytes);
    tensor(Some(-24), of.matrix(SHAPE.vocab as usize, hidden), &mut bytes);
    sealed(bytes)
}

/// The same bytes with the matching checksum.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn needed(file: &[u8], context: u32) -> (TqkvLmStatus, usize) {
    let mut bytes = 0;
    // SAFETY: the file has the passed length, and the number can be written.
    let status =
        unsafe { tqkv_lm_memory(&TQKV_LM_64_S4_S3, file.as_ptr(), file.len(), context, &raw mut bytes) };
    (status, bytes)
}

/// Opens a model in `bytes` bytes of memory at an offset.
fn open_at(file: &[u8], memory: &mut [u64], offset: usize, bytes: usize) -> (TqkvLmStatus, *mut TqkvLm) {
    let mut lm = null_mut();
    // SAFETY: memory and file have the passed lengths and outlive the handle. The place for the handle can be
    // written.
    let status = unsafe {
        let memory = memory.as_mut_ptr().cast::<u8>().add(offset).cast();
        let (data, length) = (file.as_ptr(), file.len());
        tqkv_lm_open(&TQKV_LM_64_S4_S3, data, length, CONTEXT, SINKS, memory, bytes, &raw mut lm)
    };
    (status, lm)
}

fn memory(file: &[u8]) -> Vec<u64> {
    vec![u64::MAX; needed(file, CONTEXT).1 / 8]
}

fn open(file: &[u8], memory: &mut [u64]) -> *mut TqkvLm {
    let bytes = size_of_val(memory);
    let (status, lm) = open_at(file, memory, 0, bytes);
    assert_eq!(status, TqkvLmOk);
    lm
}

fn logits(lm: *mut TqkvLm) -> TqkvLmLogits {
    let mut logits = TqkvLmLogits { values: null(), count: 0, exponent: 0 };
    // SAFETY: an opened handle, and a place that can be written.
    assert_eq!(unsafe { tqkv_lm_next_logits(lm, &raw mut logits) }, TqkvLmOk);
    logits
}

fn position(lm: *mut TqkvLm) -> u32 {
    let mut position = u32::MAX;
    // SAFETY: an opened handle, and a place that can be written.
    assert_eq!(unsafe { tqkv_lm_position(lm, &raw mut position) }, TqkvLmOk);
    position
}

#[test]
fn its_tokens_and_logits_are_those_of_the_crate() {
    let file = file();
    let (keys, values) = (FixedCodec::<64, S4>::DEFAULT, FixedCodec::<64, S3>::DEFAULT);
    let model = Model::load(&file).unwrap();
    let room = RingCache::<64, S4, S3>::bytes_for((CONTEXT - EXACT) as usize);
    let (mut tokens, mut work) = (vec![0; 2 * room], vec![0; model.shape().work_words()]);
    let mut exact = [const { ExactTokens::<64, i8, TQKV_LM_SINKS, TQKV_LM_NEWEST>::new() }; 2];
    let rings = tokens.chunks_exact_mut(room).zip(&mut exact);
    let mut heads: Vec<_> = rings
        .map(|(tokens, exact)| RingCache::new(&keys, &values, tokens, SINKS as usize).with_exact(exact))
        .map(Head::new)
        .collect();
    let mut rust = Lm::new(model, &mut heads, &mut work, Portable).unwrap();
    let mut draws = Sampler::new(205, 9);

    let mut memory = memory(&file);
    let lm = open(&file, &mut memory);
    let mut sampler = std::mem::MaybeUninit::uninit();
    let (prompt, mut token) = ([3, 1, 49], 0);
    // SAFETY: opened handles, readable numbers and places that can be written.
    unsafe {
        assert_eq!(tqkv_lm_sampler_init(205, 9, sampler.as_mut_ptr()), TqkvLmOk);
        assert_eq!(tqkv_lm_prefill(lm, prompt.as_ptr(), prompt.len()), TqkvLmOk);
    }
    for token in prompt {
        rust.push(token).unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..60 {
        let (got, want) = (logits(lm), rust.logits());
        // SAFETY: the pointer has `count` values until the next call.
        let values = unsafe { std::slice::from_raw_parts(got.values, got.count as usize) };
        assert_eq!((values, got.exponent), (want.values, want.exponent), "{step}");
        let (at, is_drawn) = (&raw const got, step % 2 == 0);
        let expected = if is_drawn { draws.pick(&want) } else { want.greedy() };
        // SAFETY: readable logits, a started sampler, and a place that can be written.
        let status = unsafe {
            if is_drawn {
                tqkv_lm_sample(sampler.as_mut_ptr(), at, &raw mut token)
            } else {
                tqkv_lm_greedy(at, &raw mut token)
            }
        };
        assert_eq!(status, TqkvLmOk);
        assert_eq!(token, expected, "{step}");
        seen.insert(token);
        rust.push(token).unwrap();
        // SAFETY: an opened handle.
        assert_eq!(unsafe { tqkv_lm_push(lm, token) }, TqkvLmOk);
    }
    // The context is smaller, so it was full. A model that always repeats one token would prove nothing.
    assert_eq!(position(lm), 63);
    assert!(seen.len() > 5, "{seen:?}");
    // SAFETY: an opened handle.
    assert_eq!(unsafe { tqkv_lm_clear(lm) }, TqkvLmOk);
    assert_eq!(position(lm), 0);
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let file = file();
    let mut place = memory(&file);
    let bytes = size_of_val(&*place);
    let changed = |at: usize, byte: u8| {
        let mut bytes = file[..file.len() - 4].to_vec();
        bytes[at] = byte;
        sealed(bytes)
    };
    let mut damaged = file.clone();
    damaged[200] ^= 1;
    let cases = [
        (file[..0].to_vec(), TqkvLmNotAModel),
        (file[..39].to_vec(), TqkvLmNotAModel),
        (file[..file.len() - 1].to_vec(), TqkvLmLength),
        ([&file[..], &[0]].concat(), TqkvLmLength),
        (changed(0, b'X'), TqkvLmNotAModel),
        (changed(4, 2), TqkvLmVersion),
        (changed(6, 5), TqkvLmField),
        (changed(18, 128), TqkvLmLength),
        (damaged, TqkvLmChecksum),
        // The exponent of the first norm.
        (changed(40 + 128 + 3, 1), TqkvLmExponent),
    ];
    for (index, (file, expected)) in cases.iter().enumerate() {
        let (status, lm) = open_at(file, &mut place, 0, bytes);
        assert_eq!((status, lm), (*expected, null_mut()), "{index}");
        if *expected != TqkvLmChecksum {
            assert_eq!(needed(file, CONTEXT).0, *expected, "{index}");
        }
    }
    let mut shape = std::mem::MaybeUninit::uninit();
    // SAFETY: the file has the passed length, and the place can be written.
    let status = unsafe { tqkv_lm_read_shape(file.as_ptr(), file.len(), shape.as_mut_ptr()) };
    // SAFETY: written, as the status says.
    let shape = unsafe { shape.assume_init() };
    assert_eq!((status, shape.vocab, shape.layers, shape.head_dim), (TqkvLmOk, 50, 2, 64));
    assert_eq!((shape.kv_heads, shape.context, shape.weight_bits), (1, 128, 8));
}

#[test]
fn memory_is_checked() {
    let file = file();
    let mut place = vec![0; memory(&file).len() + 8];
    let bytes = needed(&file, CONTEXT).1;
    assert_eq!(open_at(&file, &mut place, 0, bytes - 1).0, TqkvLmMemory);
    assert_eq!(open_at(&file, &mut place, 0, 0).0, TqkvLmMemory);
    for offset in [1, 2, 4] {
        assert_eq!(open_at(&file, &mut place, offset, bytes).0, TqkvLmMisaligned);
    }
    assert_eq!(open_at(&file, &mut place, 8, bytes).0, TqkvLmOk);
    assert_eq!(needed(&file, 0).0, TqkvLmContext);
    // A token takes 34 bytes for its key and 26 for its value in each of two KV heads. On a 64-bit machine
    // all fit.
    assert_eq!(needed(&file, u32::MAX).1 - needed(&file, EXACT).1, 120 * (u32::MAX - EXACT) as usize);
    // Exact tokens have a place of their own, which is the same for any context.
    assert_eq!(needed(&file, EXACT).1, needed(&file, 1).1);
    let mut lm = null_mut();
    let mut total = 0;
    let (data, length) = (file.as_ptr(), file.len());
    // SAFETY: lengths are those of the vectors, and refused memory is not touched.
    unsafe {
        let other = tqkv_lm_memory(&TQKV_LM_128_S4, data, length, 1, &raw mut total);
        assert_eq!((other, total), (TqkvLmHeadDim, 0));
        // The last bytes of the file are the first bytes of the memory.
        let mut both = vec![0_u64; (length + bytes) / 8 + 1];
        let within = both.as_mut_ptr().cast::<u8>();
        within.copy_from(data, length);
        let end = within.add((length - 1) & !7).cast();
        let status = tqkv_lm_open(&TQKV_LM_64_S4_S3, within, length, CONTEXT, SINKS, end, bytes, &raw mut lm);
        assert_eq!((status, lm), (TqkvLmOverlap, null_mut()));
    }
}

#[test]
fn null_and_misaligned_pointers_are_refused() {
    let file = file();
    let mut place = memory(&file);
    let bytes = size_of_val(&*place);
    let lm = open(&file, &mut place);
    let (data, length) = (file.as_ptr(), file.len());
    let (mut number, mut size, mut numbers) = (7_u32, 7_usize, [1_u32, 2]);
    // SAFETY: every pointer is good for its length, or null, or misaligned, which is refused before it is
    // read.
    unsafe {
        let cache = &raw const TQKV_LM_64_S4_S3;
        let odd = (&raw mut numbers).cast::<u8>().add(1);
        let mut got = logits(lm);
        assert_eq!(tqkv_lm_read_shape(null(), length, odd.cast()), TqkvLmMisaligned);
        assert_eq!(tqkv_lm_read_shape(data, length, null_mut()), TqkvLmNullPointer);
        assert_eq!(tqkv_lm_memory(null(), data, length, 1, &raw mut size), TqkvLmNullPointer);
        assert_eq!(tqkv_lm_memory(cache.byte_add(1), data, length, 1, &raw mut size), TqkvLmMisaligned);
        assert_eq!(tqkv_lm_memory(cache, null(), length, 1, &raw mut size), TqkvLmNullPointer);
        assert_eq!(tqkv_lm_memory(cache, data, usize::MAX, 1, &raw mut size), TqkvLmLength);
        assert_eq!(tqkv_lm_memory(cache, data, length, 1, null_mut()), TqkvLmNullPointer);
        let mut other = null_mut();
        let refused = [
            tqkv_lm_open(null(), data, length, 1, 0, place.as_mut_ptr().cast(), bytes, &raw mut other),
            tqkv_lm_open(cache, null(), length, 1, 0, place.as_mut_ptr().cast(), bytes, &raw mut other),
            tqkv_lm_open(cache, data, length, 1, 0, null_mut(), bytes, &raw mut other),
            tqkv_lm_open(cache, data, length, 1, 0, place.as_mut_ptr().cast(), bytes, null_mut()),
            tqkv_lm_push(null_mut(), 1),
            tqkv_lm_prefill(lm, null(), 1),
            tqkv_lm_prefill(null_mut(), numbers.as_ptr(), 1),
            tqkv_lm_next_logits(lm, null_mut()),
            tqkv_lm_next_logits(null_mut(), &raw mut got),
            tqkv_lm_position(lm, null_mut()),
            tqkv_lm_position(null_mut(), &raw mut number),
            tqkv_lm_clear(null_mut()),
            tqkv_lm_greedy(null(), &raw mut number),
            tqkv_lm_greedy(&raw const got, null_mut()),
            tqkv_lm_sampler_init(1, 1, null_mut()),
            tqkv_lm_sample(null_mut(), &raw const got, &raw mut number),
        ];
        assert_eq!(refused, [TqkvLmNullPointer; 16]);
        assert!(other.is_null());
        assert_eq!(tqkv_lm_prefill(lm, odd.cast(), 1), TqkvLmMisaligned);
        assert_eq!(tqkv_lm_push(odd.cast(), 1), TqkvLmMisaligned);
        assert_eq!(tqkv_lm_greedy(&raw const got, odd.cast()), TqkvLmMisaligned);
        let none = TqkvLmLogits { count: 0, ..got };
        assert_eq!(tqkv_lm_greedy(&raw const none, &raw mut number), TqkvLmLength);
        let nowhere = TqkvLmLogits { values: null(), ..got };
        assert_eq!(tqkv_lm_greedy(&raw const nowhere, &raw mut number), TqkvLmNullPointer);
    }
    assert_eq!((number, size, position(lm)), (7, 7, 0));
}

#[test]
fn tokens_and_handles_are_checked() {
    let file = file();
    let mut place = memory(&file);
    let lm = open(&file, &mut place);
    let tokens = [1, 2, 50, 3];
    let mut zeros = [0_u64; 64];
    // SAFETY: an opened handle, readable numbers, and memory without a handle.
    unsafe {
        assert_eq!(tqkv_lm_push(lm, 50), TqkvLmToken);
        assert_eq!(tqkv_lm_prefill(lm, tokens.as_ptr(), tokens.len()), TqkvLmToken);
        assert_eq!(position(lm), 0);
        assert_eq!(tqkv_lm_prefill(lm, tokens.as_ptr(), 0), TqkvLmOk);
        for _ in 0..11 {
            assert_eq!(tqkv_lm_prefill(lm, tokens.as_ptr(), 2), TqkvLmOk);
        }
        assert_eq!(position(lm), 22);
        assert_eq!(tqkv_lm_push(zeros.as_mut_ptr().cast(), 1), TqkvLmNotOpen);
        // Scales that are not finite, as a stray write may leave them.
        let bytes = size_of_val(&*place);
        place
            .as_mut_ptr()
            .cast::<u8>()
            .add(bytes - 2 * 60 * (CONTEXT - EXACT) as usize)
            .write_bytes(0xff, 720);
        assert_eq!(tqkv_lm_push(lm, 1), TqkvLmDecode);
        assert_eq!(tqkv_lm_clear(lm), TqkvLmOk);
        assert_eq!(tqkv_lm_push(lm, 1), TqkvLmOk);
    }
}

#[test]
fn every_status_has_a_line() {
    let lines: Vec<_> = (0..18)
        .map(|status| {
            // SAFETY: a constant text that ends with a zero.
            unsafe { CStr::from_ptr(tqkv_lm_status_text(status)) }.to_str().unwrap()
        })
        .collect();
    let all: std::collections::BTreeSet<_> = lines.iter().collect();
    assert_eq!((all.len(), TqkvLmDecode as usize), (18, 16));
    assert!(lines.iter().all(|line| line.lines().count() == 1));
    assert_eq!((lines[0], lines[17]), ("no error", "unknown status"));
}
