//! Tests exact tokens: the first tokens of a sequence and its newest attend as they were given, and all others as
//! codes. A model on the host says which, and f64 attends.

use super::*;

/// A sequence: keys and values, `[tokens, KV heads, head dim]`, and the first token that the ring still has.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) rows: [Vec<f32>; 2],
    pub(super) tokens: usize,
    from: usize,
}

/// The rows that the sequences of a cache were given, the same in all layers.
pub(super) struct Model {
    sinks: usize,
    hot: usize,
    /// Newest tokens whose rows a sequence keeps: the window and 63 more, in pages of 64.
    ring: usize,
    row: usize,
    /// The largest difference from f64. Most of it comes from f16.
    tolerance: f64,
    pub(super) sequences: Vec<Held>,
}

impl Model {
    fn new(spec: &GpuSpec) -> Self {
        let GpuSpec { sinks, hot, num_kv_heads, head_dim, num_sequences, .. } = *spec;
        let ring = if hot == 0 { 0 } else { (hot + 63).next_multiple_of(64) };
        let tolerance = if sinks + hot == 0 { 2e-4 } else { 1e-3 };
        let sequences = vec![Held::default(); num_sequences];
        Self { sinks, hot, ring, row: num_kv_heads * head_dim, tolerance, sequences }
    }

    /// Keys and values of a token of each of `sequences`, which the model takes as appended.
    fn append(&mut self, sequences: &[usize], seed: u64) -> [Vec<f32>; 2] {
        let rows = [seed, seed + 1].map(|seed| noise(seed, sequences.len() * self.row));
        for (i, &sequence) in sequences.iter().enumerate() {
            let held = &mut self.sequences[sequence];
            for (held, rows) in held.rows.iter_mut().zip(&rows) {
                held.extend_from_slice(&rows[i * self.row..(i + 1) * self.row]);
            }
            held.tokens += 1;
        }
        for held in &mut self.sequences {
            held.from = held.from.max(held.tokens.saturating_sub(self.ring));
        }
        rows
    }

    pub(super) fn truncate(&mut self, sequence: usize, tokens: usize) {
        let held = &mut self.sequences[sequence];
        held.tokens = held.tokens.min(tokens);
        held.from = held.from.min(held.tokens);
        held.rows.iter_mut().for_each(|rows| rows.truncate(held.tokens * self.row));
    }

    pub(super) fn fork(&mut self, from: usize, to: usize, tokens: usize) {
        self.sequences[to] = self.sequences[from].clone();
        self.truncate(to, tokens);
    }

    /// The first token of the window of a query that sees `length` tokens.
    fn window(&self, sequence: usize, length: usize) -> usize {
        length.saturating_sub(self.hot).max(self.sequences[sequence].from)
    }

    /// Rows of one KV head as a query sees them: as they were given, or decoded.
    fn seen(&self, cache: &GpuCache, at: (usize, usize, usize), side: Side, head: usize) -> Vec<Vec<f32>> {
        let (layer, sequence, length) = at;
        let (codec, heads) = (cache.codec(side), cache.spec().num_kv_heads);
        let codes = cache.blocks(layer, sequence, side).unwrap();
        let window = self.window(sequence, length);
        let row = |token: usize| {
            let vector = token * heads + head;
            if token < self.sinks || token >= window {
                return self.sequences[sequence].rows[side as usize][vector * codec.dim()..][..codec.dim()]
                    .to_vec();
            }
            let mut out = vec![0.0; codec.dim()];
            codec.decode(&codes[vector * codec.block_bytes()..][..codec.block_bytes()], &mut out).unwrap();
            out
        };
        (0..length).map(row).collect()
    }

    /// Attention in f64 of one token's queries over the first `length` tokens of a sequence.
    fn wanted(&self, cache: &GpuCache, at: (usize, usize, usize), queries: &[f32]) -> Vec<f64> {
        let GpuSpec { num_heads, num_kv_heads, head_dim, .. } = *cache.spec();
        if at.2 == 0 {
            return vec![0.0; queries.len()];
        }
        let kv: Vec<_> = (0..num_kv_heads)
            .map(|head| [Side::Keys, Side::Values].map(|side| self.seen(cache, at, side, head)))
            .collect();
        let heads = queries.chunks_exact(head_dim).enumerate();
        heads
            .flat_map(|(head, query)| {
                let [keys, values] = &kv[head * num_kv_heads / num_heads];
                oracle::attention(query, keys, values)
            })
            .collect()
    }

    /// Compares attention from the newest token of each sequence with f64.
    fn check(&self, cache: &mut GpuCache, seed: u64) {
        let values = cache.spec().num_heads * cache.spec().head_dim;
        let queries = noise(seed, self.sequences.len() * values);
        let mut out = vec![f32::NAN; queries.len()];
        for layer in 0..cache.spec().num_layers {
            cache.attend(layer, &queries, &mut out).unwrap();
            for (sequence, held) in self.sequences.iter().enumerate() {
                let part = sequence * values..(sequence + 1) * values;
                let want = self.wanted(cache, (layer, sequence, held.tokens), &queries[part.clone()]);
                assert_near(&out[part], &want, self.tolerance);
            }
        }
    }
}

/// A cache and its model. Every window is of `hot` tokens after `sinks`.
pub(super) fn both(spec: GpuSpec) -> (GpuCache, Model) {
    let model = Model::new(&spec);
    (GpuCache::new(&device(0), spec).unwrap(), model)
}

/// Appends `tokens` tokens to a sequence in all layers.
pub(super) fn extend(cache: &mut GpuCache, model: &mut Model, sequence: usize, tokens: usize, seed: u64) {
    let sequences = vec![sequence; tokens];
    let [keys, values] = model.append(&sequences, seed);
    for layer in 0..cache.spec().num_layers {
        cache.append(layer, &sequences, Rows::Host(&keys), Rows::Host(&values)).unwrap();
    }
}

/// A step of all layers, whose attention is compared with f64 in the last.
pub(super) fn step(cache: &mut GpuCache, model: &mut Model, sequences: &[usize], seed: u64) {
    let device = cache.device().clone();
    let rows = model.append(sequences, seed).map(|rows| upload(&device, &rows));
    let queries = noise(seed + 2, sequences.len() * QUERY);
    let asked = upload(&device, &queries);
    let mut out = device.stream().alloc_zeros::<f32>(queries.len()).unwrap();
    cache.begin_step(sequences).unwrap();
    for layer in 0..cache.spec().num_layers {
        cache.append_step(layer, Rows::F32(&rows[0]), Rows::F32(&rows[1])).unwrap();
        cache.attend_step(layer, Rows::F32(&asked), &mut out).unwrap();
    }
    cache.end_step().unwrap();
    let got = device.stream().clone_dtoh(&out).unwrap();
    check_step(cache, model, sequences, &queries, &got);
}

/// Compares the results of a step with f64. Each token sees the tokens of the step up to itself.
fn check_step(cache: &GpuCache, model: &Model, sequences: &[usize], queries: &[f32], got: &[f32]) {
    let layer = cache.spec().num_layers - 1;
    for (i, &sequence) in sequences.iter().enumerate() {
        let later = sequences[i + 1..].iter().filter(|other| **other == sequence).count();
        let at = (layer, sequence, model.sequences[sequence].tokens - later);
        let part = i * QUERY..(i + 1) * QUERY;
        assert_near(&got[part.clone()], &model.wanted(cache, at, &queries[part]), model.tolerance);
    }
}

/// The default: 4 first tokens and 64 newest.
fn exact(layers: usize) -> GpuSpec {
    spec(layers).exact(4, 64)
}

#[test]
fn first_and_newest_tokens_attend_as_they_were_given() {
    use CodecId::{I8, S2, S4, T2};
    for (key, value, sinks, hot) in [
        (S4, S2, 4, 64),
        (T2, T2, 2, 8),
        (I8, S4, 4, 64),
        (S2, S2, 0, 30),
        (S4, T2, 5, 0),
        (S2, S2, 1, 1),
        (S2, S2, 65, 130),
    ] {
        // The interpreter takes a second for a few dozen tokens of a trellis code.
        let (lengths, pool) =
            if [key, value].contains(&T2) { ([0, 1, 25, 9], 192) } else { ([0, 3, 199, 68], 512) };
        let spec = spec(1).codecs(key, value).exact(sinks, hot).sequences(4, 300).pool_tokens(pool);
        let (mut cache, mut model) = both(spec);
        for (sequence, length) in lengths.into_iter().enumerate() {
            extend(&mut cache, &mut model, sequence, length, 10 * sequence as u64);
        }
        model.check(&mut cache, 99);
        // Codes are those of all tokens, whatever is exact.
        for (side, rows) in [Side::Keys, Side::Values].into_iter().zip(&model.sequences[2].rows) {
            assert!(cache.blocks(0, 2, side).unwrap() == blocks(cache.codec(side), rows));
        }
    }
}

#[test]
fn every_shape_of_heads_has_exact_tokens() {
    use CodecId::{I8, S4, T2, T3};
    for (group, dim, key, value) in [
        (1, 64, S4, S4),
        (1, 128, T2, S4),
        (4, 128, S4, I8),
        (8, 64, S4, S4),
        (8, 256, S4, S4),
        (3, 128, T3, S4),
    ] {
        let spec = GpuSpec::new(1, 2 * group, 2, dim)
            .codecs(key, value)
            .sequences(2, 20)
            .exact(2, 5)
            .pool_tokens(65);
        let (mut cache, mut model) = both(spec.options(Options::DEFAULT.seed(3)));
        extend(&mut cache, &mut model, 0, 13, 1);
        extend(&mut cache, &mut model, 1, 4, 3);
        model.check(&mut cache, 5);
    }
}

#[test]
fn each_token_of_a_step_has_a_window_of_its_own() {
    let (mut cache, mut model) = both(exact(1).codecs(CodecId::S2, CodecId::S2));
    extend(&mut cache, &mut model, 2, 100, 1);
    step(&mut cache, &mut model, &[2, 0, 2, 2], 10);
    // The 65 tokens that find all of theirs.
    let before = model.sequences[2].tokens;
    step(&mut cache, &mut model, &[2; 65], 20);
    assert_eq!(model.window(2, before + 1), before + 1 - 64);
    // More of them: the first see less of it, and what they see is still theirs.
    step(&mut cache, &mut model, &[1; 150], 30);
    step(&mut cache, &mut model, &[1, 2, 0], 40);
    model.check(&mut cache, 50);
}

#[test]
fn chunks_have_the_windows_of_single_tokens() {
    let (mut cache, mut model) = both(exact(1).codecs(CodecId::S2, CodecId::S2));
    extend(&mut cache, &mut model, 0, 30, 1);
    let tokens = 150;
    let [keys, values] = model.append(&[0; 150], 3);
    let queries = noise(5, tokens * QUERY);
    let mut out = vec![f32::NAN; queries.len()];
    cache.attend_chunk(0, 0, &queries, &keys, &values, &mut out).unwrap();
    for (i, (queries, out)) in queries.chunks_exact(QUERY).zip(out.chunks_exact(QUERY)).enumerate() {
        let length = 31 + i;
        model.sequences[0].from = length.saturating_sub(64);
        assert_near(out, &model.wanted(&cache, (0, 0, length), queries), model.tolerance);
    }
    // A bad vector of a later tile leaves nothing behind.
    let mut bad = values.clone();
    bad[140 * ROW] = f32::NAN;
    cache.truncate(0, 40).unwrap();
    let error = cache.attend_chunk(0, 0, &queries, &keys, &bad, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "value of layer 0, token 140, KV head 0 is not finite");
    assert_eq!((cache.len(0), cache.stats().pages_used), (40, 1));
    model.truncate(0, 40);
    model.sequences[0].from = 40;
    model.check(&mut cache, 7);
    extend(&mut cache, &mut model, 0, 20, 9);
    model.check(&mut cache, 8);
}

#[test]
fn forks_and_cuts_keep_what_the_ring_still_has() {
    let (mut cache, mut model) = both(exact(2).codecs(CodecId::S2, CodecId::S4));
    extend(&mut cache, &mut model, 0, 150, 1);
    // Inside of the window, then before all that the ring has, and into the first tokens.
    for (round, tokens) in [140, 90, 20, 2].into_iter().enumerate() {
        let seed = 100 * (round as u64 + 1);
        cache.fork(0, 1, tokens).unwrap();
        model.fork(0, 1, tokens);
        model.check(&mut cache, seed);
        // Each writes to pages that both have.
        step(&mut cache, &mut model, &[1, 0, 1], seed + 10);
        extend(&mut cache, &mut model, 1, 40, seed + 20);
        model.check(&mut cache, seed + 30);
        for (sequence, kept) in [(1, 0), (0, tokens)] {
            cache.truncate(sequence, kept).unwrap();
            model.truncate(sequence, kept);
        }
        model.check(&mut cache, seed + 40);
        extend(&mut cache, &mut model, 0, 5, seed + 50);
        model.check(&mut cache, seed + 60);
    }
    cache.reset();
    (0..3).for_each(|sequence| model.truncate(sequence, 0));
    extend(&mut cache, &mut model, 2, 70, 1000);
    model.check(&mut cache, 1001);
}

#[test]
fn a_captured_step_finds_its_exact_tokens() {
    let (mut cache, mut model) = both(exact(2).codecs(CodecId::S2, CodecId::S2).exact(4, 20));
    extend(&mut cache, &mut model, 1, 30, 1);
    let device = cache.device().clone();
    let stream = device.stream().clone();
    cache.reserve_scratch(3).unwrap();
    let mut rows = [0, 1].map(|_| upload(&device, &vec![0.0; 2 * ROW]));
    let mut asked = upload(&device, &vec![0.0; 2 * QUERY]);
    let mut out = stream.alloc_zeros::<f32>(2 * QUERY).unwrap();
    let mut graph = None;
    for round in 0..80 {
        let sequences = if round % 3 == 0 { [1, 1] } else { [0, 1] };
        let new = model.append(&sequences, 10 * round + 7);
        let queries = noise(10 * round + 9, 2 * QUERY);
        for (rows, new) in rows.iter_mut().zip(&new) {
            stream.memcpy_htod(new, rows).unwrap();
        }
        stream.memcpy_htod(&queries, &mut asked).unwrap();
        stream.synchronize().unwrap();
        cache.begin_step(&sequences).unwrap();
        if graph.is_none() {
            let before = counts();
            stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            for layer in 0..2 {
                cache.append_step(layer, Rows::F32(&rows[0]), Rows::F32(&rows[1])).unwrap();
                cache.attend_step(layer, Rows::F32(&asked), &mut out).unwrap();
            }
            let captured = since(before);
            assert_eq!(
                (captured.allocations, captured.copies_in, captured.waits),
                (0, 0, 0),
                "launches only"
            );
            graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
        }
        graph.as_ref().expect("a graph").launch().unwrap();
        cache.end_step().unwrap();
        if round % 9 == 0 {
            // A prompt between two steps has words of its own.
            extend(&mut cache, &mut model, 2, 10, 10 * round + 1);
            let _ = cache.attend(0, &noise(1, 3 * QUERY), &mut vec![0.0; 3 * QUERY]);
        }
        if round % 13 == 0 || round == 79 {
            let got = stream.clone_dtoh(&out).unwrap();
            check_step(&cache, &model, &sequences, &queries, &got);
        }
    }
    model.check(&mut cache, 3);
}

#[test]
fn launches_and_copies_of_exact_tokens_are_few_on_paper() {
    must_be_on_paper();
    let mut cache = GpuCache::new(&device(0), exact(2)).unwrap();
    let device = cache.device().clone();
    let (rows, queries) = (upload(&device, &noise(1, 2 * ROW)), upload(&device, &noise(2, 2 * QUERY)));
    let mut out = device.stream().alloc_zeros::<f32>(2 * QUERY).unwrap();
    for round in 0..2 {
        let before = counts();
        cache.begin_step(&[0, 2]).unwrap();
        for layer in 0..2 {
            cache.append_step(layer, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
            cache.attend_step(layer, Rows::F32(&queries), &mut out).unwrap();
        }
        cache.end_step().unwrap();
        let step = since(before);
        assert_eq!((step.launches, step.waits), (2 * (1 + 4), 1), "one more than over codes alone");
        assert!(round == 0 || step.copies_in == 1, "the words of all layers");
    }
    let stats = cache.stats();
    assert_eq!(stats.exact_bytes, 2 * 3 * 3 * 64 * KV_HEADS * DIM * 2 * 2, "three pages of each sequence");
    assert_eq!((GpuSpec::new(1, 2, 1, 64).sinks, GpuSpec::new(1, 2, 1, 64).hot), (4, 64));
}

#[test]
fn exact_tokens_decode_to_what_they_were() {
    let (mut cache, mut model) = both(exact(1).codecs(CodecId::S2, CodecId::S2).exact(70, 66));
    for (sequence, tokens) in [(0, 200), (1, 100), (2, 3)] {
        extend(&mut cache, &mut model, sequence, tokens, sequence as u64);
    }
    let stream = cache.device().stream().clone();
    for (sequence, side) in [(0, Side::Keys), (0, Side::Values), (1, Side::Keys), (2, Side::Values)] {
        let held = &model.sequences[sequence];
        let mut out = stream.alloc_zeros::<f32>(held.tokens * ROW).unwrap();
        cache.decode(0, sequence, side, &mut out).unwrap();
        let got = stream.clone_dtoh(&out).unwrap();
        let mut halves = stream.alloc_zeros::<u16>(held.tokens * ROW).unwrap();
        cache.decode(0, sequence, side, Out::F16(&mut halves)).unwrap();
        let f16: Vec<u16> = got.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect();
        assert_eq!(stream.clone_dtoh(&halves).unwrap(), f16);
        for head in 0..KV_HEADS {
            let want = model.seen(&cache, (0, sequence, held.tokens), side, head);
            for (got, want) in got.chunks_exact(DIM).skip(head).step_by(KV_HEADS).zip(want) {
                let want: Vec<f64> = want.iter().map(|&v| f64::from(v)).collect();
                assert_near(got, &want, 5e-3);
            }
        }
    }
}

#[test]
fn a_vector_that_is_too_large_for_f16_once_rotated_is_refused() {
    let mut cache = GpuCache::new(&device(0), exact(2)).unwrap();
    let rows = noise(1, 2 * ROW);
    let mut large = rows.clone();
    // Its coordinates fit f16, and so does its scale.
    large[ROW + DIM..].fill(0.0);
    large[ROW + DIM] = 33_000.0;
    large[ROW + DIM + 1] = 33_000.0;
    let error = cache.append(1, &[0, 0], Rows::Host(&rows), Rows::Host(&large)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "value of layer 1, token 1, KV head 1 is too large: rotated, it does not fit f16"
    );
    cache.begin_step(&[0, 2]).unwrap();
    for layer in 0..2 {
        let keys = if layer == 1 { &large } else { &rows };
        cache.append_step(layer, Rows::Host(keys), Rows::Host(&rows)).unwrap();
    }
    let error = cache.end_step().unwrap_err();
    assert!(
        error.to_string().starts_with("key of layer 1, token 1, KV head 1 is too large: rotated"),
        "{error}"
    );
    assert_eq!([0, 2].map(|sequence| cache.len(sequence)), [1, 0]);
    let mut codes = GpuCache::new(&device(0), spec(2)).unwrap();
    codes.append(1, &[0, 0], Rows::Host(&rows), Rows::Host(&large)).unwrap();
}
