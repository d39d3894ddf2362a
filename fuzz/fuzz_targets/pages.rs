//! Pages of every codec, head dim and length, written in any order and repeatedly. Blocks come back as they
//! were written. Logits and sums are bit-identical to the portable ones on every level. They are as near to
//! the exact ones as rounding to bytes allows, and weights of 8-bit codes to 14 bits.
#![no_main]

mod numbers;
mod seeds;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use numbers::{Numbers, assert_same};
use tqkv_core::code::Layout;
use tqkv_core::{AnyCodec, CodecId, HEAD_DIMS, Options, f16};
use tqkv_simd::page::{
    Attention, HalfPages, KeyPages, Line, MAX_HEADS, MAX_SLOTS, SLOT_STEP, ValuePages, row_scores, row_sums,
    soften,
};
use tqkv_simd::{Level, codec};
use tqkv_tests::oracle::dot;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    codec: u8,
    dim: u8,
    slots: u8,
    heads: u8,
    from: u16,
    count: u16,
    /// Distance of consecutive writes in slots.
    step: u8,
    writes: u16,
    queries: Numbers,
    weights: Numbers,
    bytes: &'a [u8],
}

/// A written page, and the blocks that it must hold.
struct Written<'a> {
    codec: &'a AnyCodec,
    page: Vec<Line>,
    blocks: Vec<Vec<u8>>,
}

/// Heads and slots of one call.
#[derive(Clone, Copy)]
struct Call {
    heads: usize,
    from: usize,
    count: usize,
}

fuzz_target!(|input: Input<'_>| {
    let id = CodecId::ALL[usize::from(input.codec) % CodecId::ALL.len()];
    let dim = HEAD_DIMS[usize::from(input.dim) % HEAD_DIMS.len()];
    let Ok(codec) = AnyCodec::new(id, dim, Options::DEFAULT) else { return seeds::refused("no such codec") };
    let slots = SLOT_STEP * (1 + usize::from(input.slots) % (MAX_SLOTS / SLOT_STEP));
    let from = usize::from(input.from) % slots;
    let call = Call {
        heads: 1 + usize::from(input.heads) % MAX_HEADS,
        from,
        count: usize::from(input.count) % (slots - from + 1),
    };
    let queries = input.queries.of(input.bytes, call.heads * dim);
    let weights = input.weights.of(input.bytes, call.heads * call.count);
    softened(&queries, call.heads);
    let write = |lines, write: WriteBlock<'_>| written(&codec, lines, slots, &input, write);
    if let (Some(keys), Some(values)) = (KeyPages::new(&codec, slots), ValuePages::new(&codec, slots)) {
        let page = write(keys.lines(), &|page, slot, block| keys.write(page, slot, block));
        page.comes_back(|page, slot, block| keys.read(page, slot, block));
        page.scores(&keys, &queries, call);
        let page = write(values.lines(), &|page, slot, block| values.write(page, slot, block));
        page.comes_back(|page, slot, block| values.read(page, slot, block));
        page.sums(&values, &weights, call);
    } else if let (CodecId::F16, Some(halves)) = (id, HalfPages::new(dim, slots)) {
        let page = write(halves.lines(), &|page, slot, block| halves.write(page, slot, block));
        page.comes_back(|page, slot, block| halves.read(page, slot, block));
        page.halves(&halves, &queries, &weights, call);
    }
});

/// Writes a block to a slot of a page.
type WriteBlock<'a> = &'a dyn Fn(&mut [Line], usize, &[u8]);

/// Writes slots in a mixed order over zeros, some of them repeatedly.
fn written<'a>(
    codec: &'a AnyCodec,
    lines: usize,
    slots: usize,
    input: &Input<'_>,
    write: WriteBlock<'_>,
) -> Written<'a> {
    const GUARD: Line = Line([0xa5; 64]);
    let mut page = vec![Line([0x77; 64]); lines + 1];
    page[lines] = GUARD;
    let mut blocks = vec![vec![0; codec.block_bytes()]; slots];
    for (slot, block) in blocks.iter().enumerate() {
        write(&mut page, slot, block);
    }
    let mut bytes = input.bytes.iter().copied().cycle();
    let step = 1 + usize::from(input.step);
    for i in 0..usize::from(input.writes) % (2 * slots) {
        let block = &mut blocks[i * step % slots];
        // Each block differs, even when the bytes repeat.
        block.iter_mut().for_each(|byte| *byte = bytes.next().unwrap_or(0).wrapping_add(i as u8));
        finite(codec, block);
        write(&mut page, i * step % slots, block);
    }
    assert_eq!(page.pop(), Some(GUARD), "writing stays inside of the page");
    Written { codec, page, blocks }
}

/// Makes infinite and NaN scales finite. No encoder writes such scales, so nothing is promised for them.
fn finite(codec: &AnyCodec, block: &mut [u8]) {
    let stride = match codec.id().layout() {
        Layout::F16 => 2,
        Layout::Runs { bits } => 2 + 4 * usize::from(bits),
        _ => block.len(),
    };
    for scale in block.chunks_mut(stride).filter(|scale| scale[1] & 0x7c == 0x7c) {
        scale[1] &= 0xbf;
    }
}

impl Written<'_> {
    fn what(&self, level: Level, call: Call) -> String {
        let Call { heads, from, count } = call;
        let (codec, slots) = (self.codec, self.blocks.len());
        let (level, id, dim) = (level.name().name(), codec.id().name(), codec.dim());
        format!("{level} {id} dim {dim}, {heads} heads, {count} slots from {from} of {slots}")
    }

    fn comes_back(&self, read: impl Fn(&[Line], usize, &mut [u8])) {
        let mut block = vec![0x33; self.codec.block_bytes()];
        for (slot, want) in self.blocks.iter().enumerate() {
            read(&self.page, slot, &mut block);
            assert_eq!(block, *want, "slot {slot} of {} {}", self.codec.id().name(), self.codec.dim());
        }
    }

    /// The blocks of the call's slots as vectors in their own domain, `[count, dim]`.
    fn rows(&self, call: Call) -> Vec<f32> {
        let blocks = self.blocks[call.from..call.from + call.count].concat();
        let mut rows = vec![0.0; call.count * self.codec.dim()];
        self.codec.decode_rotated(&blocks, &mut rows);
        rows
    }

    fn scores(&self, pages: &KeyPages, queries: &[f32], call: Call) {
        let dim = self.codec.dim();
        let mut rotated = vec![0.0; queries.len()];
        codec::rotate_queries(Level::Portable, self.codec, queries, &mut rotated);
        let run = |level: Level| {
            let mut out = vec![0.5; call.heads * call.count];
            let queries = pages.queries(level, &rotated);
            pages.scores(level, &self.page, call.from, &queries, &self.page, &mut out);
            out
        };
        let want = run(Level::Portable);
        for level in Level::available().skip(1) {
            assert_same(&run(level), &want, || self.what(level, call));
        }
        let rows = self.rows(call);
        for (query, logits) in rotated.chunks_exact(dim).zip(want.chunks(call.count.max(1))) {
            let largest = query.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            if !query.iter().all(|v| v.is_finite()) {
                assert!(logits.iter().all(|logit| logit.is_nan()), "{}", self.what(Level::Portable, call));
                continue;
            }
            for (row, logit) in rows.chunks_exact(dim).zip(logits) {
                let size: f64 = row.iter().map(|v| f64::from(v.abs())).sum();
                // Half a step of the query per coordinate.
                let allowed = size * (f64::from(largest) * (0.501 / 127.0) + 1e-30) + 1e-30;
                let off = (f64::from(*logit) - dot(query, row)).abs();
                // Nothing is promised if dot products overflow f32, even at a scale of zero.
                let fits = largest < 1e28 && size * f64::from(largest) < 1e37;
                assert!(!fits || off <= allowed, "{}: {off}, {allowed}", self.what(Level::Portable, call));
            }
        }
    }

    fn sums(&self, pages: &ValuePages, weights: &[f32], call: Call) {
        let dim = self.codec.dim();
        // Nothing is promised for values that are not finite, or that are not finite after the product with a
        // scale.
        let weights: Vec<f32> = weights.iter().map(|w| if w.abs() < 1e30 { *w } else { 1.0 }).collect();
        let run = |level: Level| {
            let mut acc = vec![0.0; call.heads * dim];
            pages.accumulate(level, &self.page, call.from, &weights, &self.page, &mut acc);
            acc
        };
        let want = run(Level::Portable);
        for level in Level::available().skip(1) {
            assert_same(&run(level), &want, || self.what(level, call));
        }
        let rows = self.rows(call);
        let scales: Vec<f64> =
            self.blocks[call.from..call.from + call.count].iter().map(|b| scale(b)).collect();
        if call.count == 0 || !self.codec.id().layout().has_one_scale() {
            return;
        }
        for (weights, sums) in weights.chunks_exact(call.count).zip(want.chunks_exact(dim)) {
            let products = weights.iter().zip(&scales).map(|(w, s)| (f64::from(*w) * s).abs());
            // Weights of bytes carry their error on, so a token may be off by a whole step.
            let (steps, off_by) = if self.codec.id().bits() == 8 { (16383.0, 0.51) } else { (254.0, 1.01) };
            let step = products.fold(0.0, f64::max) / steps;
            for (j, sum) in sums.iter().enumerate() {
                let (mut exact, mut size, mut levels) = (0.0, 0.0, 0.0);
                for ((row, weight), scale) in rows.chunks_exact(dim).zip(weights).zip(&scales) {
                    let product = f64::from(*weight) * f64::from(row[j]);
                    (exact, size) = (exact + product, size + product.abs());
                    levels += if *scale == 0.0 { 0.0 } else { (f64::from(row[j]) / scale).abs() };
                }
                let (off, allowed) =
                    ((f64::from(*sum) - exact).abs(), off_by * step * levels + 1e-5 * size + 1e-25);
                assert!(off <= allowed, "{}: {off}, {allowed}", self.what(Level::Portable, call));
            }
        }
    }

    /// Rows of f16 are summed in any order, so they are as near to exact sums as f32 allows.
    fn halves(&self, pages: &HalfPages, queries: &[f32], weights: &[f32], call: Call) {
        let (dim, rows) = (self.codec.dim(), self.rows(call));
        let limit =
            |x: &[f32]| -> Vec<f32> { x.iter().map(|v| if v.abs() < 1e20 { *v } else { 1.0 }).collect() };
        let (queries, weights) = (limit(queries), limit(weights));
        let bits: Vec<u16> = rows.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
        let in_order = |level: Level| {
            let (mut logits, mut sums) = (vec![0.5; weights.len()], vec![0.25; queries.len()]);
            row_scores(level, &bits, dim, &queries, &mut logits);
            row_sums(level, &bits, dim, &weights, &mut sums);
            [logits, sums].concat()
        };
        if call.count == 0 {
            return;
        }
        let want = in_order(Level::Portable);
        for level in Level::available() {
            assert_same(&in_order(level), &want, || self.what(level, call));
            let (mut logits, mut sums) = (vec![0.5; weights.len()], vec![0.0; queries.len()]);
            pages.scores(level, &self.page, call.from, &queries, &self.page, &mut logits);
            pages.accumulate(level, &self.page, call.from, &weights, &self.page, &mut sums);
            let heads = queries.chunks_exact(dim).zip(weights.chunks_exact(call.count));
            for (h, (query, weights)) in heads.enumerate() {
                for (i, row) in rows.chunks_exact(dim).enumerate() {
                    let size: f64 = query.iter().zip(row).map(|(a, b)| f64::from((a * b).abs())).sum();
                    let off = (f64::from(logits[h * call.count + i]) - dot(query, row)).abs();
                    assert!(off <= 1e-4 * size + 1e-25, "{}: {off} of {size}", self.what(level, call));
                }
                for j in 0..dim {
                    let products = weights.iter().zip(rows.chunks_exact(dim));
                    let products = products.map(|(w, row)| f64::from(*w) * f64::from(row[j]));
                    let (exact, size) =
                        products.fold((0.0, 0.0), |(e, s): (f64, f64), p| (e + p, s + p.abs()));
                    let off = (f64::from(sums[h * dim + j]) - exact).abs();
                    assert!(off <= 1e-4 * size + 1e-25, "{}: {off} of {size}", self.what(level, call));
                }
            }
        }
    }
}

/// The scale of a block with one scale.
fn scale(block: &[u8]) -> f64 {
    f16::from_le_bytes([block[0], block[1]]).to_f64()
}

/// A softmax step over any logits, done twice, equals the portable one.
fn softened(logits: &[f32], heads: usize) {
    let run = |level: Level| {
        let (mut logits, mut state) = (logits.to_vec(), vec![Attention::EMPTY; heads]);
        let mut all = soften(level, &mut logits, &mut state).to_vec();
        all.extend(soften(level, &mut logits.clone(), &mut state));
        all.extend(logits);
        all.extend(state.iter().flat_map(|state| [state.max, state.sum]));
        all
    };
    let want = run(Level::Portable);
    for level in Level::available().skip(1) {
        assert_same(&run(level), &want, || format!("softmax on {}", level.name().name()));
    }
}
