//! States through packs.

use crate::common::*;
use crate::layouts::{caches, states};
use half::f16;
use std::io::Cursor;
use tqkv_core::CodecId;
use tqkv_session::{Class, Codecs, Layout, Mode, Numbers, RowHeads, StateRows, StateSide, inspect};

fn layout(state: &[u8]) -> Layout {
    Layout::read(&mut Cursor::new(state)).unwrap()
}

/// Rows as f32, cell by cell.
fn values(state: &[u8], rows: &StateRows) -> Vec<Vec<f32>> {
    let bytes = &state[rows.at as usize..(rows.at + rows.bytes()) as usize];
    let (cells, width) = (rows.cells as usize, rows.width as usize);
    let flat: Vec<f32> = match rows.numbers {
        Numbers::F16 => bytes.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
        Numbers::Bf16 => bytes.as_chunks().0.iter().map(|x| half::bf16::from_le_bytes(*x).to_f32()).collect(),
        Numbers::F32 => bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        quantised => {
            let id = CodecId::from_name(quantised.name()).unwrap();
            let codec = tqkv_core::AnyCodec::new(id, 64, tqkv_core::Options::DEFAULT).unwrap();
            let mut out = vec![0.0; cells * width];
            tqkv_simd::codec::decode(level(), &codec, bytes, &mut out).unwrap();
            out
        }
    };
    let at = |cell: usize, j: usize| if rows.is_transposed { j * cells + cell } else { cell * width + j };
    (0..cells).map(|cell| (0..width).map(|j| flat[at(cell, j)]).collect()).collect()
}

fn error(a: &[f32], b: &[f32]) -> f32 {
    let distance: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (distance / a.iter().map(|x| x * x).sum::<f32>()).sqrt()
}

#[test]
fn exact_packs_give_the_same_bytes() {
    for (name, cache) in caches() {
        for (origin, mut state) in states(&cache) {
            state.recurrent();
            let (packed, _) = pack(&state.bytes, Mode::Exact).unwrap();
            assert_eq!(unpack(&packed).unwrap(), state.bytes, "{name} {origin:?}");
            let summary = inspect(&mut &packed[..]).unwrap();
            assert_eq!((summary.class, summary.groups.len()), (Class::Exact, 0));
        }
    }
}

#[test]
fn coded_rows_come_back_close_and_all_else_as_it_was() {
    for (name, cache) in caches().into_iter().filter(|cache| cache.0 != "q5_1") {
        for (origin, state) in states(&cache) {
            // q4_0 has 4.5 bits.
            let codec = if name == "q4_0" { "t2" } else { "t4" };
            let (packed, sizes) = pack(&state.bytes, codecs(codec)).unwrap();
            let back = unpack(&packed).unwrap();
            assert_eq!(unpack(&packed).unwrap(), back, "{name}: deterministic");
            let (before, after) = (layout(&state.bytes), layout(&back));
            assert_eq!(before, after, "{name} {origin:?}");
            assert!(sizes.coded_state > 0 && sizes.pack < sizes.state, "{name} {origin:?}: {sizes:?}");
            let mut at = 0;
            let (mut worst, mut exact): (f32, _) = (0.0, 0);
            for rows in &before.caches[0].rows {
                let start = rows.at as usize;
                assert_eq!(state.bytes[at..start], back[at..start], "{name} {origin:?}");
                at = start + rows.bytes() as usize;
                for (a, b) in values(&state.bytes, rows).iter().zip(values(&back, rows)) {
                    exact += usize::from(*a == b);
                    worst = worst.max(error(a, &b));
                }
            }
            assert_eq!(state.bytes[at..], back[at..], "{name} {origin:?}");
            let early: u32 =
                cache.streams.iter().map(|&(first, cells)| 4u32.saturating_sub(first).min(cells)).sum();
            let sides = 1 + u32::from(cache.value.is_some());
            assert_eq!(
                exact,
                (early * sides * cache.layers) as usize,
                "{name} {origin:?}: the first 4 tokens"
            );
            let most = if codec == "t2" { 0.45 } else { 0.12 };
            assert!(worst < most, "{name} {origin:?}: {worst}");
        }
    }
}

#[test]
fn every_codec_packs() {
    let mut state = State::sequence_file(3);
    state.cache(&Written { layers: 1, key: F32, value: Some(F32), ..Written::default() });
    let mut sizes = Vec::new();
    for &id in CodecId::ALL.iter().filter(|id| !id.rotates_quarters()) {
        let (packed, own) = pack(&state.bytes, codecs(id.name())).unwrap();
        let summary = inspect(&mut &packed[..]).unwrap();
        assert_eq!(summary.sizes, own);
        assert_eq!(summary.groups.len(), 2, "{id:?}");
        assert!(summary.groups.iter().all(|group| group.codec == Some(id) && group.matrices == 1));
        assert_eq!(layout(&unpack(&packed).unwrap()), layout(&state.bytes));
        sizes.push((own.coded_pack, id));
    }
    assert!(sizes.iter().any(|(bytes, _)| *bytes < sizes[0].0 / 4), "{sizes:?}");
}

/// No map orders the keys of a saved state, so the code of one width takes the place of a code of quarters.
#[test]
fn keys_of_quarters_are_packed_in_one_width() {
    let mut state = State::sequence_file(3);
    state.cache(&Written { layers: 1, ..Written::default() });
    for (id, one) in [(CodecId::M2, "t2,t2"), (CodecId::M3, "t3,t2")] {
        let packed = |codecs: &str| pack(&state.bytes, Mode::parse(codecs, None).unwrap()).unwrap().0;
        assert_eq!(packed(&format!("{},t2", id.name())), packed(one));
        let says = format!("{} is not valid for a saved state: expected a codec of one width", id.name());
        let values = Codecs { value: id, ..Codecs::DEFAULT };
        let values = pack(&state.bytes, Mode::Coded(values)).map(|_| ()).unwrap_err().to_string();
        // A pack that some other program wrote: a header of 24 bytes, entries of as many, their sum.
        let (mut packed, _) = pack(&state.bytes, codecs("t2")).unwrap();
        let end = 24 * (1 + usize::from(packed[12]));
        let entry = packed[24..end].chunks_mut(24).find(|entry| entry[0] == 1).unwrap();
        entry[2] = id.code();
        let sum = crc32fast::hash(&packed[..end]).to_le_bytes();
        packed[end..][..4].copy_from_slice(&sum);
        let read = unpack(&packed).map(|_| ()).unwrap_err().to_string();
        for error in [values, read] {
            assert!(error.contains(&says) && error.lines().count() == 1, "{error}");
        }
    }
}

/// Keys with a mean far from 0 lose as little as keys without one.
#[test]
fn keys_are_centred() {
    let mut errors = Vec::new();
    for shift in [0.0f32, 5.0] {
        let mut state = State::sequence_file(3);
        state.cache(&Written { layers: 1, ..Written::default() });
        let rows = layout(&state.bytes).caches[0].rows[0].clone();
        let range = rows.at as usize..(rows.at + rows.bytes()) as usize;
        for raw in state.bytes[range].as_chunks_mut().0 {
            *raw = f16::from_f32(f16::from_le_bytes(*raw).to_f32() + shift).to_le_bytes();
        }
        let back = unpack(&pack(&state.bytes, codecs("t3")).unwrap().0).unwrap();
        let (a, b) = (values(&state.bytes, &rows), values(&back, &rows));
        let pairs = a.iter().flatten().zip(b.iter().flatten());
        errors.push(pairs.map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt());
    }
    assert!(errors[1] < 1.1 * errors[0], "{errors:?}");
}

#[test]
fn rows_that_no_codec_takes_stay_as_they_are() {
    let mut state = State::sequence_file(3);
    state.cache(&Written { layers: 1, ..Written::default() });
    let rows = layout(&state.bytes).caches[0].rows[0].clone();
    for (cell, number) in [(10, f16::INFINITY), (70, f16::NAN), (149, f16::NEG_INFINITY)] {
        let at = rows.at as usize + cell * rows.row_bytes() as usize + 6;
        state.bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }
    let (packed, _) = pack(&state.bytes, codecs("t4")).unwrap();
    let back = unpack(&packed).unwrap();
    for cell in [0, 3, 10, 70, 149] {
        let at = rows.at as usize + cell * rows.row_bytes() as usize;
        let row = at..at + rows.row_bytes() as usize;
        assert_eq!(state.bytes[row.clone()], back[row], "{cell}");
    }
    let at = rows.at as usize + 11 * rows.row_bytes() as usize;
    assert_ne!(state.bytes[at..at + 128], back[at..at + 128]);
}

#[test]
fn types_and_codecs_that_would_not_save_stay_as_they_are() {
    for (kind, codec) in [(Q5_1, "t2"), (Q4_0, "s4"), (F16, "f16"), (Q8_0, "i8")] {
        let mut state = State::sequence_file(3);
        state.cache(&Written { key: kind, value: Some(kind), ..Written::default() });
        let (packed, sizes) = pack(&state.bytes, codecs(codec)).unwrap();
        let is_smaller = codec == "i8" || codec == "s4";
        assert_eq!(sizes.coded_state > 0, is_smaller, "{kind} {codec}");
        assert_eq!(unpack(&packed).unwrap() == state.bytes, !is_smaller);
    }
}

#[test]
fn a_head_dim_is_found_or_refused() {
    for (width, dims) in [(1024, 128), (192, 64), (576, 64), (320, 64), (80, 80), (96, 96), (48, 48)] {
        let mut state = State::sequence_file(3);
        state.cache(&Written { width, ..Written::default() });
        let (packed, _) = pack(&state.bytes, Mode::Coded(Codecs::DEFAULT)).unwrap();
        let summary = inspect(&mut &packed[..]).unwrap();
        assert_eq!(summary.groups[0].head_dim, dims, "{width}");
    }
    let mut state = State::sequence_file(3);
    state.cache(&Written { width: 192, ..Written::default() });
    let ask = |dim| Mode::Coded(Codecs { key_dim: Some(dim), ..Codecs::DEFAULT });
    let error = pack(&state.bytes, ask(128)).unwrap_err().to_string();
    assert_eq!(error, "layer 0, keys: rows of 192 values are no whole number of heads of 128");
    let error = pack(&state.bytes, ask(24)).unwrap_err().to_string();
    assert!(error.contains("head dim 24"), "{error}");
}

/// Layers of two shapes: a row has the head dim of the layer that is as wide.
#[test]
fn rows_of_several_widths_have_their_own_head_dims() {
    let mut state = State::sequence_file(3);
    state.cache(&Written { width: 1024, ..Written::default() });
    state.cache(&Written { width: 512, ..Written::default() });
    let row = |side, width, head_dim| RowHeads { side, width, head_dim };
    let both = |width, head_dim| [StateSide::Keys, StateSide::Values].map(|side| row(side, width, head_dim));
    let rows = [both(1024, 256), both(512, 512)].concat();
    let mode = |rows| Mode::Coded(Codecs { rows, ..Codecs::DEFAULT });
    let (packed, _) = pack(&state.bytes, mode(&rows)).unwrap();
    let summary = inspect(&mut &packed[..]).unwrap();
    let dims: Vec<_> = summary.groups.iter().map(|group| (group.head_dim, group.heads)).collect();
    assert!(dims.contains(&(256, 4)) && dims.contains(&(512, 1)), "{dims:?}");
    // Two layers with rows of one width: the narrower head divides both.
    let rows = [both(1024, 256), both(1024, 512), both(512, 512)].concat();
    let (packed, _) = pack(&state.bytes, mode(&rows)).unwrap();
    assert_eq!(inspect(&mut &packed[..]).unwrap().groups[0].head_dim, 256);
    let error = pack(&state.bytes, mode(&both(1024, 256))).unwrap_err().to_string();
    assert_eq!(error, "layer 0, keys: rows of 512 values, which no layer of the model has");
}

#[test]
fn a_memory_that_is_not_understood_needs_an_exact_pack() {
    let mut state = State::sequence_file(3);
    state.recurrent();
    let error = pack(&state.bytes, codecs("t4")).unwrap_err().to_string();
    assert!(error.contains("no KV cache") && error.contains("an exact pack keeps"), "{error}");
    let (packed, _) = pack(&state.bytes, Mode::Exact).unwrap();
    assert_eq!(unpack(&packed).unwrap(), state.bytes);
}
