//! Tests steps of a model and cuts of launches by the number of calls to the driver and of waits.

use super::*;
use tqkv_gpu::unstable::attention::Cut;

#[test]
fn a_step_appends_keys_and_values_in_one_launch_a_layer_and_waits_once() {
    use CodecId::{I8, S2, S4, T2, T3};
    for (key, value) in [(S4, S4), (S4, S2), (T3, T3), (I8, T2), (T2, S4)] {
        let mut cache = GpuCache::new(&device(0), spec(2).codecs(key, value)).unwrap();
        let device = cache.device().clone();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for step in 0..3 {
            let (new_keys, new_values) = (noise(10 + step, 2 * ROW), noise(20 + step, 2 * ROW));
            let there = [upload(&device, &new_keys), upload(&device, &new_values)];
            let queries = upload(&device, &noise(30 + step, 2 * QUERY));
            let mut out = device.stream().alloc_zeros::<f32>(2 * QUERY).unwrap();
            let before = counts();
            cache.begin_step(&[2, 0]).unwrap();
            for layer in 0..2 {
                cache.append_step(layer, Rows::F32(&there[0]), Rows::F32(&there[1])).unwrap();
                cache.attend_step(layer, Rows::F32(&queries), &mut out).unwrap();
            }
            cache.end_step().unwrap();
            let step = since(before);
            assert!(
                (step.launches, step.waits) == (2 * (1 + 3), 1) || !on_paper(),
                "{key:?} {value:?}: {step:?}"
            );
            keys.extend_from_slice(&new_keys[..ROW]);
            values.extend_from_slice(&new_values[..ROW]);
        }
        for (side, rows) in [(Side::Keys, &keys), (Side::Values, &values)] {
            let wanted = blocks(cache.codec(side), rows);
            assert!((0..2).all(|layer| cache.blocks(layer, 2, side).unwrap() == wanted), "{key:?} {value:?}");
        }
    }
}

#[test]
fn steps_are_what_appends_and_attentions_are() {
    let (mut stepped, mut plain) = (cache(2), cache(2));
    let device = stepped.device().clone();
    for cache in [&mut stepped, &mut plain] {
        fill(cache, 2, 63, 1);
    }
    // Two tokens of one sequence, which crosses a page, and one token of another.
    let sequences = [2, 0, 2];
    let (keys, values, queries) = (noise(2, 3 * ROW), noise(3, 3 * ROW), noise(4, 3 * QUERY));
    let halves: Vec<u16> = keys.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect();
    let keys: Vec<f32> = halves.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect();
    let [halves_there, values_there] = [upload(&device, &halves), upload(&device, &[0_u16])];
    let (values_f32, queries_there) = (upload(&device, &values), upload(&device, &queries));
    drop(values_there);
    let mut out = device.stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    stepped.begin_step(&sequences).unwrap();
    for layer in 0..2 {
        stepped.append_step(layer, Rows::F16(&halves_there), Rows::F32(&values_f32)).unwrap();
        // Another call between two calls of a step does not disturb the step.
        let _ = stepped.scores(layer, 2, &queries[..QUERY]).unwrap();
        stepped.attend(layer, &noise(5, 3 * QUERY), &mut vec![0.0; 3 * QUERY]).unwrap();
        stepped.attend_step(layer, Rows::F32(&queries_there), &mut out).unwrap();
        plain.append(layer, &sequences, Rows::Host(&keys), Rows::Host(&values)).unwrap();
        for side in [Side::Keys, Side::Values] {
            for sequence in 0..3 {
                let blocks = |cache: &GpuCache| cache.blocks(layer, sequence, side).unwrap();
                assert!(blocks(&stepped) == blocks(&plain), "layer {layer} sequence {sequence} {side:?}");
            }
        }
        let got = device.stream().clone_dtoh(&out).unwrap();
        for (i, (sequence, length)) in [(2, 64), (0, 1), (2, 65)].into_iter().enumerate() {
            let part = i * QUERY..(i + 1) * QUERY;
            assert_near(&got[part.clone()], &wanted(&plain, layer, sequence, length, &queries[part]), 2e-4);
        }
    }
    stepped.end_step().unwrap();
}

#[test]
fn steps_that_cannot_be_are_refused() {
    let mut cache = cache(2);
    let message = |result: Result<(), GpuError>| result.unwrap_err().to_string();
    let rows = noise(1, ROW);
    assert_eq!(message(cache.end_step()), "no step has begun; call begin_step first");
    assert!(
        message(cache.append_step(0, Rows::Host(&rows), Rows::Host(&rows))).starts_with("no step has begun")
    );
    cache.append(0, &[1], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
    assert_eq!(
        message(cache.begin_step(&[0, 1])),
        "sequence 1 has 1 tokens in layer 0 and 0 in layer 1; a step needs the same number in all layers"
    );
    cache.begin_step(&[0]).unwrap();
    assert_eq!(message(cache.begin_step(&[0])), "a step has begun; end it first");
    assert_eq!(
        message(cache.append_step(0, Rows::Host(&rows[1..]), Rows::Host(&rows))),
        "keys has 127 values, expected 128"
    );
    // The tokens of a step may still be undone, so nothing is built on them.
    let open = "sequence 0 is in the step that has begun; end the step first";
    assert_eq!(message(cache.fork(0, 2, 9)), open);
    assert_eq!(
        message(cache.append(0, &[2, 0], Rows::Host(&noise(1, 2 * ROW)), Rows::Host(&noise(1, 2 * ROW)))),
        open
    );
    cache.fork(1, 2, 9).unwrap();
    cache.truncate(2, 0).unwrap();
    cache.end_step().unwrap();
    assert_eq!(cache.len(0), 1, "a layer that was left out counts");
    // After a truncate, pages that the step would write may belong to another sequence.
    cache.truncate(1, 0).unwrap();
    for end in [|cache: &mut GpuCache| cache.truncate(0, 0).unwrap(), GpuCache::reset] {
        cache.begin_step(&[0, 2]).unwrap();
        end(&mut cache);
        let late = cache.append_step(0, Rows::Host(&rows), Rows::Host(&rows));
        assert!(message(late).starts_with("no step has begun"));
        assert_eq!([0, 1, 2].map(|sequence| cache.len(sequence)), [0; 3], "no token that was never encoded");
    }
}

#[test]
fn a_captured_step_keeps_its_buffers_whatever_other_calls_need() {
    let mut cache = cache(1);
    let device = cache.device().clone();
    let stream = device.stream().clone();
    cache.reserve_scratch(2).unwrap();
    let rows = upload(&device, &noise(1, 2 * ROW));
    let queries = noise(2, 2 * QUERY);
    let there = upload(&device, &queries);
    let mut out = stream.alloc_zeros::<f32>(2 * QUERY).unwrap();
    cache.begin_step(&[0, 1]).unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    cache.append_step(0, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
    cache.attend_step(0, Rows::F32(&there), &mut out).unwrap();
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
    graph.launch().unwrap();
    cache.end_step().unwrap();

    // A prompt, more queries than the step has, and logits each need more room than the step.
    fill(&mut cache, 0, 10, 3);
    cache.attend(0, &noise(4, 3 * QUERY), &mut vec![0.0; 3 * QUERY]).unwrap();
    cache
        .attend_chunk(
            0,
            2,
            &noise(5, 9 * QUERY),
            &noise(6, 9 * ROW),
            &noise(7, 9 * ROW),
            &mut vec![0.0; 9 * QUERY],
        )
        .unwrap();
    let _ = cache.scores(0, 0, &noise(8, QUERY)).unwrap();

    cache.begin_step(&[0, 1]).unwrap();
    graph.launch().unwrap();
    cache.end_step().unwrap();
    let got = stream.clone_dtoh(&out).unwrap();
    for (i, length) in [12, 2].into_iter().enumerate() {
        let part = i * QUERY..(i + 1) * QUERY;
        assert_near(&got[part.clone()], &wanted(&cache, 0, i, length, &queries[part]), 2e-4);
    }

    let message = |result: Result<(), GpuError>| result.unwrap_err().to_string();
    assert_eq!(message(cache.begin_step(&[0, 1, 2])), "a step of 3 tokens; reserve_scratch made room for 2");
    assert_eq!(
        message(cache.reserve_scratch(3)),
        "room for steps of 3 tokens; reserve_scratch made room for 2, and graphs may hold it"
    );
    cache.reserve_scratch(1).unwrap();
    assert_eq!([0, 1, 2].map(|sequence| cache.len(sequence)), [12, 2, 9]);
}

#[test]
fn a_captured_step_is_launched_again() {
    let mut cache = cache(2);
    let device = cache.device().clone();
    let stream = device.stream().clone();
    cache.reserve_scratch(2).unwrap();
    let mut rows = upload(&device, &noise(1, 2 * ROW));
    let mut queries = upload(&device, &noise(2, 2 * QUERY));
    let mut outs = [0, 1].map(|_| stream.alloc_zeros::<f32>(2 * QUERY).unwrap());

    cache.begin_step(&[0, 1]).unwrap();
    stream.synchronize().unwrap();
    let before = counts();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    for (layer, out) in outs.iter_mut().enumerate() {
        cache.append_step(layer, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
        cache.attend_step(layer, Rows::F32(&queries), &mut *out).unwrap();
    }
    let captured = since(before);
    assert_eq!((captured.allocations, captured.copies_in, captured.waits), (0, 0, 0), "launches only");
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
    graph.launch().unwrap();
    cache.end_step().unwrap();

    // The same graph runs for later tokens, in a second page and in another sequence.
    for (step, sequences) in (1..70).map(|step| (step, if step % 2 == 0 { [0, 1] } else { [1, 2] })) {
        let (new_rows, new_queries) = (noise(10 + step, 2 * ROW), noise(100 + step, 2 * QUERY));
        stream.memcpy_htod(&new_rows, &mut rows).unwrap();
        stream.memcpy_htod(&new_queries, &mut queries).unwrap();
        let before = counts();
        cache.begin_step(&sequences).unwrap();
        graph.launch().unwrap();
        cache.end_step().unwrap();
        let waits = since(before).waits;
        assert!(waits == 1 || !on_paper(), "step {step} waits {waits} times");
        if step < 66 {
            continue;
        }
        for (layer, out) in outs.iter().enumerate() {
            let got = stream.clone_dtoh(out).unwrap();
            for (i, &sequence) in sequences.iter().enumerate() {
                let part = i * QUERY..(i + 1) * QUERY;
                let want = wanted(&cache, layer, sequence, cache.len(sequence), &new_queries[part.clone()]);
                assert_near(&got[part], &want, 2e-4);
            }
        }
    }
    assert_eq!([0, 1, 2].map(|sequence| cache.len(sequence)), [35, 70, 35]);
}

#[test]
fn launches_that_a_graph_may_hold_do_not_depend_on_lengths_on_paper() {
    must_be_on_paper();
    let mut cache = GpuCache::new(&device(0), spec(1).sequences(3, 2000).pool_tokens(2000)).unwrap();
    let device = cache.device().clone();
    let queries = upload(&device, &noise(1, QUERY));
    let rows = upload(&device, &noise(2, ROW));
    let mut out = device.stream().alloc_zeros::<f32>(QUERY).unwrap();
    let mut warps = |cache: &mut GpuCache, sequence| {
        cache.begin_step(&[sequence]).unwrap();
        let before = counts();
        cache.append_step(0, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
        cache.attend_step(0, Rows::F32(&queries), &mut out).unwrap();
        let step = since(before);
        cache.end_step().unwrap();
        step.warps
    };
    let short = warps(&mut cache, 0);
    fill(&mut cache, 1, 1500, 1);
    assert!(warps(&mut cache, 1) > short, "parts follow the longest sequence");
    cache.reserve_scratch(3).unwrap();
    assert_eq!(warps(&mut cache, 1), warps(&mut cache, 0));
}

#[test]
fn a_step_copies_what_changed_and_one_word_back_on_paper() {
    must_be_on_paper();
    let spec = GpuSpec::new(4, HEADS, KV_HEADS, DIM).sequences(16, 6400).pool_tokens(1600).exact(0, 0);
    let mut cache = GpuCache::new(&device(0), spec).unwrap();
    let sequences: Vec<usize> = (0..16).collect();
    let rows = upload(cache.device(), &noise(1, 16 * ROW));
    let step = |cache: &mut GpuCache| {
        let before = counts();
        cache.begin_step(&sequences).unwrap();
        for layer in 0..4 {
            cache.append_step(layer, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
        }
        cache.end_step().unwrap();
        since(before)
    };
    // Place (of two words), sequence, length and first part of each row; then the parts, of three words each.
    let (words, table) = (5 * 16 + 1 + 3 * 16, 16 * 100);
    assert_eq!(step(&mut cache).bytes_in, 4 * (words + table), "a new table");
    let second = step(&mut cache);
    assert_eq!((second.bytes_in, second.bytes_out), (4 * words, 4), "control words; is a vector refused");
    fill(&mut cache, 5, 61, 2);
    assert_eq!(step(&mut cache).bytes_in, 4 * words, "token 64 of sequence 5");
    assert_eq!(step(&mut cache).bytes_in, 4 * (words + 3 + 100), "a page of one sequence is another part");
}

#[test]
fn launches_are_cut_as_asked_on_paper() {
    must_be_on_paper();
    let mut cache = cache(1);
    fill(&mut cache, 0, 200, 1);
    let queries = upload(cache.device(), &noise(2, 3 * QUERY));
    let mut out = cache.device().stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    let mut warps = |cut: Option<Cut>| {
        cache.set_cut(cut);
        let before = counts();
        cache.attend_on_device(0, Rows::F32(&queries), &mut out).unwrap();
        since(before).warps
    };
    let one = warps(Some(Cut::new(9, 1).unwrap()));
    // Each part adds a warp per KV head; the merge has the same number as before. Two sequences are empty.
    let a_part = KV_HEADS as u64;
    assert_eq!(warps(Some(Cut::new(2, 1).unwrap())), one + a_part);
    assert_eq!(warps(Some(Cut::new(1, 2).unwrap())), one + 3 * a_part, "six parts");
    assert_eq!(warps(Some(Cut::new(1, 4).unwrap())), one + 5 * a_part, "two warps without an entry");
    assert_eq!(warps(None), one + a_part, "two pages each, in one block per KV head");
}

/// Attends over sequences of these lengths, alone and in a captured step, and compares with f64.
fn attends_over(lengths: &[usize]) {
    let (most, rows) = (lengths.iter().max().unwrap() + 2, lengths.len());
    let spec = GpuSpec::new(1, HEADS, KV_HEADS, DIM).codecs(CodecId::S2, CodecId::S2).exact(0, 0);
    let spec = spec.sequences(rows, most).pool_tokens(lengths.iter().map(|length| length + 66).sum());
    let mut cache = GpuCache::new(&device(0), spec).unwrap();
    for (sequence, &length) in lengths.iter().enumerate() {
        let tokens = noise(sequence as u64, 64 * ROW);
        for start in (0..length).step_by(64) {
            let count = usize::min(64, length - start);
            let tokens = Rows::Host(&tokens[..count * ROW]);
            cache.append(0, &vec![sequence; count], tokens, tokens).unwrap();
        }
    }
    let queries = noise(9, rows * QUERY);
    let mut out = vec![0.0; rows * QUERY];
    let check = |cache: &GpuCache, out: &[f32]| {
        for (sequence, (queries, out)) in queries.chunks(QUERY).zip(out.chunks(QUERY)).enumerate() {
            assert_near(out, &wanted(cache, 0, sequence, cache.len(sequence), queries), 2e-4);
        }
    };
    cache.attend(0, &queries, &mut out).unwrap();
    check(&cache, &out);

    cache.reserve_scratch(rows).unwrap();
    let (device, all) = (cache.device().clone(), (0..rows).collect::<Vec<_>>());
    let (stream, there) = (device.stream().clone(), upload(&device, &queries));
    let mut got = stream.alloc_zeros::<f32>(rows * QUERY).unwrap();
    let tokens = upload(&device, &noise(10, rows * ROW));
    cache.begin_step(&all).unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    cache.append_step(0, Rows::F32(&tokens), Rows::F32(&tokens)).unwrap();
    cache.attend_step(0, Rows::F32(&there), &mut got).unwrap();
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
    graph.launch().unwrap();
    cache.end_step().unwrap();
    check(&cache, &stream.clone_dtoh(&got).unwrap());
    // The same graph, after one of the sequences was emptied: the list follows the lengths.
    cache.truncate(rows - 1, 0).unwrap();
    cache.begin_step(&all).unwrap();
    graph.launch().unwrap();
    cache.end_step().unwrap();
    check(&cache, &stream.clone_dtoh(&got).unwrap());
}

#[test]
fn one_long_sequence_among_short_ones_is_attended() {
    let mut lengths = vec![64; 15];
    lengths.push(2048);
    attends_over(&lengths);
}

#[test]
fn sequences_of_one_length_are_attended() {
    attends_over(&[192; 5]);
}

#[test]
fn one_sequence_and_an_empty_one_are_attended() {
    attends_over(&[1500]);
    attends_over(&[0]);
    attends_over(&[0, 65, 0]);
}
