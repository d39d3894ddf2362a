//! Packs in a basis of the storage tier.

use std::io::Cursor;
use std::sync::Arc;

use half::f16;
use tqkv_session::{Basis, Budget, Class, Layout, Mode, Numbers, StorageCodec, inspect};
use tqkv_storage::{Join, Learner, Rope, RopePairing, Shape};

use crate::common::*;

/// Keys and values of a model: maps of one hidden vector of few directions, and keys turned by RoPE.
struct Model {
    width: usize,
    /// `[layers, 2, width, DIRECTIONS]`: a map per layer for keys and for values.
    maps: Vec<f32>,
    means: Vec<f32>,
}

const DIRECTIONS: usize = 12;
const HEAD: usize = 32;

fn rope() -> Rope {
    Rope::new(
        0,
        RopePairing::Half,
        (0..HEAD / 2).map(|i| 1e4f64.powf(-(i as f64) / (HEAD / 2) as f64)).collect(),
    )
}

impl Model {
    fn new(layers: usize, width: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let maps = (0..layers * 2 * width * DIRECTIONS).map(|_| random.f32() - 0.5).collect();
        let means = (0..layers * width).map(|_| 4.0 * (random.f32() - 0.5)).collect();
        Self { width, maps, means }
    }

    /// Keys and values `[layers, tokens, width]` from a position on.
    fn rows(&self, first: usize, tokens: usize) -> [Vec<f32>; 2] {
        let layers = self.means.len() / self.width;
        let hidden = |token: usize| {
            let mut random = fastrand::Rng::with_seed(1000 + (first + token) as u64);
            (0..DIRECTIONS).map(|i| (random.f32() - 0.5) * 0.8f32.powi(i as i32)).collect::<Vec<_>>()
        };
        let hidden: Vec<Vec<f32>> = (0..tokens).map(hidden).collect();
        [0, 1].map(|side| {
            let mut rows = Vec::new();
            for layer in 0..layers {
                for (token, hidden) in hidden.iter().enumerate() {
                    let row = |i: usize| {
                        let at = ((layer * 2 + side) * self.width + i) * DIRECTIONS;
                        let map = &self.maps[at..at + DIRECTIONS];
                        let sum: f32 = map.iter().zip(hidden).map(|(a, b)| a * b).sum();
                        if side == 0 { sum + self.means[layer * self.width + i] } else { sum }
                    };
                    let mut row: Vec<f32> = (0..self.width).map(row).collect();
                    if side == 0 {
                        turn(&mut row, first + token);
                    }
                    rows.extend(row);
                }
            }
            rows
        })
    }
}

fn turn(key: &mut [f32], position: usize) {
    let rope = rope();
    for head in key.chunks_mut(HEAD) {
        for (i, frequency) in rope.inv_freq.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (a, b) = (f64::from(head[i]), f64::from(head[i + HEAD / 2]));
            head[i] = (a * cos - b * sin) as f32;
            head[i + HEAD / 2] = (b * cos + a * sin) as f32;
        }
    }
}

/// A basis of the model with seed 1.
pub(crate) struct Stored {
    pub(crate) codec: StorageCodec,
}

impl Stored {
    pub(crate) fn of(layers: usize, width: usize) -> Self {
        Self::learned(layers, width, 1, Join::Joint)
    }

    fn learned(layers: usize, width: usize, seed: u64, join: Join) -> Self {
        let shape = Shape::new(layers, width / HEAD, HEAD, HEAD, rope()).unwrap();
        let mut learner = Learner::new(shape.clone(), join).unwrap();
        let [k, v] = Model::new(layers, width, seed).rows(5000, 600);
        learner.learn(&k, &v, 5000).unwrap();
        let basis = Arc::new(learner.freeze("a model").unwrap());
        Self { codec: StorageCodec::new(shape, Some(basis)).unwrap() }
    }

    pub(crate) fn mode(&self, bits: f32) -> Mode<'_> {
        Mode::Stored(tqkv_session::BasisCoder::new(&self.codec, Budget::new(bits).unwrap()).unwrap())
    }

    fn basis(&self) -> &Basis {
        self.codec.basis().unwrap()
    }
}

/// A state with the keys and values of the model with seed 1, in f16.
pub(crate) fn state_in_basis(layers: usize, width: usize, cells: u32) -> Vec<u8> {
    filled(
        &Written {
            streams: vec![(0, cells)],
            layers: layers as u32,
            width: width as u32,
            ..Written::default()
        },
        false,
    )
}

/// A state whose rows are those of the model. With `is_paired`, keys as llama.cpp has them for some families.
fn filled(cache: &Written, is_paired: bool) -> Vec<u8> {
    let mut state = State::sequence_file(3);
    state.cache(cache);
    state.recurrent();
    let layout = Layout::read(&mut Cursor::new(&state.bytes)).unwrap();
    let (layers, width) = (cache.layers as usize, cache.width as usize);
    let streams = cache.streams.iter().filter(|stream| stream.1 > 0);
    for (i, &(first, cells)) in streams.enumerate() {
        let [k, v] = Model::new(layers, width, 1).rows(first as usize, cells as usize);
        let own = &layout.caches[0].rows[2 * i * layers..2 * (i + 1) * layers];
        for (layer, rows) in own.iter().enumerate() {
            let all = if layer < layers { &k } else { &v };
            let from = &all[(layer % layers) * width * cells as usize..][..width * cells as usize];
            for (at, x) in from.iter().enumerate() {
                let (cell, mut j) = (at / width, at % width);
                if is_paired && layer < layers {
                    j = j / HEAD * HEAD + j % (HEAD / 2) * 2 + j % HEAD / (HEAD / 2);
                }
                let to = if rows.is_transposed { j * cells as usize + cell } else { cell * width + j };
                let to = rows.at as usize + 2 * to;
                assert_eq!(rows.numbers, Numbers::F16);
                state.bytes[to..to + 2].copy_from_slice(&f16::from_f32(*x).to_le_bytes());
            }
        }
    }
    state.bytes
}

/// The squared error of all rows over their energy, and how many bytes outside of rows differ.
fn loss(before: &[u8], after: &[u8]) -> (f64, usize) {
    let layout = |bytes: &[u8]| Layout::read(&mut Cursor::new(bytes)).unwrap();
    let layout = (layout(before), layout(after));
    assert_eq!(layout.0, layout.1);
    let (mut wrong, mut energy, mut at, mut others) = (0.0, 0.0, 0, 0);
    let differ = |a: usize, b: usize| (a..b).filter(|i| before[*i] != after[*i]).count();
    for rows in layout.0.caches.iter().flat_map(|cache| &cache.rows) {
        let (start, end) = (rows.at as usize, (rows.at + rows.bytes()) as usize);
        others += differ(at, start);
        at = end;
        for (a, b) in before[start..end].as_chunks().0.iter().zip(after[start..end].as_chunks().0) {
            let [a, b] = [a, b].map(|raw| f64::from(f16::from_le_bytes(*raw).to_f32()));
            wrong += (a - b).powi(2);
            energy += a * a;
        }
    }
    (wrong / energy, others + differ(at, before.len()))
}

#[test]
fn a_basis_takes_few_bits_and_loses_little() {
    let (layers, width) = (3, 64);
    let cache = Written { streams: vec![(0, 700)], layers: 3, width: 64, ..Written::default() };
    let several = Written { streams: vec![(0, 90), (0, 0), (300, 520)], ..cache.clone() };
    let transposed = Written { is_transposed: true, ..cache.clone() };
    for join in [Join::Joint, Join::Apart, Join::Layers(3)] {
        let stored = Stored::learned(layers, width, 1, join);
        for (cache, is_paired) in [(&cache, false), (&cache, true), (&several, false), (&transposed, true)] {
            let state = filled(cache, is_paired);
            let (packed, sizes) = pack(&state, stored.mode(1.1)).unwrap();
            let back = unpack_with(&packed, Some(&stored.codec)).unwrap();
            let (lost, others) = loss(&state, &back);
            assert!(lost < 0.01 && others == 0, "{join:?} {is_paired}: {lost}, {others}");
            assert!(sizes.coded_state > 10 * sizes.coded_pack, "{join:?}: {sizes:?}");
            let summary = inspect(&mut &packed[..]).unwrap();
            assert_eq!((summary.class, summary.sizes), (Class::Stored, sizes));
            assert_eq!(summary.basis, Some(stored.basis().id()));
            assert_eq!(
                summary.groups.iter().map(|group| (group.codec, group.heads)).collect::<Vec<_>>(),
                [(None, 2); 2]
            );
            let (again, _) = pack(&state, stored.mode(1.1)).unwrap();
            assert!(again == packed, "deterministic");
        }
    }
}

#[test]
fn first_tokens_and_numbers_that_are_not_finite_stay() {
    let stored = Stored::of(1, 64);
    let mut state = state_in_basis(1, 64, 600);
    let rows = Layout::read(&mut Cursor::new(&state)).unwrap().caches[0].rows[0].clone();
    let row = |cell: usize| rows.at as usize + cell * 128..rows.at as usize + (cell + 1) * 128;
    state[row(300)][6..8].copy_from_slice(&f16::NAN.to_le_bytes());
    let back = unpack_with(&pack(&state, stored.mode(2.1)).unwrap().0, Some(&stored.codec)).unwrap();
    for cell in [0, 1, 2, 3, 300] {
        assert_eq!(state[row(cell)], back[row(cell)], "{cell}");
    }
    assert_ne!(state[row(4)], back[row(4)]);
}

/// Every type that codecs take, by way of f32.
#[test]
fn rows_of_each_type_come_back() {
    let stored = Stored::of(3, 128);
    for kind in [F32, F16, BF16, Q8_0, Q4_0] {
        let mut state = State::sequence_file(4);
        state.cache(&Written { key: kind, value: Some(kind), has_rotation: true, ..Written::default() });
        // Numbers without any structure: a basis gains nothing, and says so.
        let error = pack(&state.bytes, stored.mode(2.1)).unwrap_err().to_string();
        assert!(error.starts_with("basis: the basis does not fit the state: it loses"), "{kind}: {error}");
        // Too few cells to judge.
        let mut state = State::sequence_file(4);
        let streams = vec![(0, 60)];
        state.cache(&Written {
            streams,
            key: kind,
            value: Some(kind),
            has_rotation: true,
            ..Written::default()
        });
        let (packed, _) = pack(&state.bytes, stored.mode(2.1)).unwrap();
        let back = unpack_with(&packed, Some(&stored.codec)).unwrap();
        let layout = |bytes: &[u8]| Layout::read(&mut Cursor::new(bytes)).unwrap();
        assert_eq!(layout(&back), layout(&state.bytes), "{kind}");
    }
}

#[test]
fn another_basis_or_shape_is_refused_by_name() {
    let (stored, foreign) = (Stored::of(2, 64), Stored::learned(2, 64, 2, Join::Joint));
    let state = state_in_basis(2, 64, 300);
    let (packed, _) = pack(&state, stored.mode(2.1)).unwrap();
    let wanted = format!("basis: the pack needs {}; given is ", stored.basis().id());
    let missing = unpack(&packed).unwrap_err().to_string();
    assert_eq!(missing, format!("{wanted}none"));
    let other = unpack_with(&packed, Some(&foreign.codec)).unwrap_err().to_string();
    assert_eq!(other, format!("{wanted}{}", foreign.basis().id()));
    // A basis is no matter to a pack that names none.
    let (coded, _) = pack(&state, codecs("t2")).unwrap();
    assert_eq!(unpack_with(&coded, Some(&foreign.codec)).unwrap(), unpack(&coded).unwrap());

    let written = Written { streams: vec![(0, 40)], layers: 2, width: 64, ..Written::default() };
    let state_of = |caches: &[Written]| {
        let mut state = State::sequence_file(3);
        caches.iter().for_each(|cache| state.cache(cache));
        state.bytes
    };
    for (caches, said) in [
        (vec![Written { layers: 3, ..written.clone() }], "it has 3 layers; the basis has 2"),
        (
            vec![Written { width: 128, ..written.clone() }],
            "layer 0, keys: rows of 128 values; the basis has 64",
        ),
        (vec![Written { value: None, ..written.clone() }], "it has a cache without values"),
        (vec![Written { layers: 1, ..written.clone() }; 2], "does not say which layers have which"),
        (vec![Written { key: Q5_1, value: Some(Q5_1), ..written.clone() }], "layer 0, keys: rows of q5_1"),
        (vec![Written { streams: vec![(0, 19)], ..written.clone() }], "no 16 cells"),
    ] {
        let error = pack(&state_of(&caches), stored.mode(2.1)).unwrap_err().to_string();
        assert!(
            error.starts_with("basis: ") && error.contains(said) && error.lines().count() == 1,
            "{error}"
        );
    }
    let error = pack(&state, foreign.mode(2.1)).unwrap_err().to_string();
    assert!(error.contains("the basis does not fit the state: it loses"), "{error}");
    let without = StorageCodec::new(stored.codec.shape().clone(), None).unwrap();
    let error = tqkv_session::BasisCoder::new(&without, Budget::new(2.0).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "basis: a codec without a basis: expected one with a basis");
}

/// Layers with windows have a cache of their own, and their RoPE tells them.
#[test]
fn a_second_cache_has_the_layers_of_another_rope() {
    let local =
        Rope::new(0, RopePairing::Half, (0..HEAD / 2).map(|i| 100f64.powf(-(i as f64) / 16.0)).collect());
    let shape = Shape::new(4, 2, HEAD, HEAD, rope()).unwrap().with_rope(local, [0, 1, 3]).unwrap();
    let mut learner = Learner::new(shape.clone(), Join::Joint).unwrap();
    let [k, v] = Model::new(4, 64, 1).rows(0, 600);
    learner.learn(&k, &v, 0).unwrap();
    let basis = Arc::new(learner.freeze("windows").unwrap());
    let stored = Stored { codec: StorageCodec::new(shape, Some(basis)).unwrap() };
    let cache = |first, cells, layers| Written {
        streams: vec![(first, cells)],
        layers,
        width: 64,
        ..Written::default()
    };
    for counts in [[1, 3], [3, 1]] {
        let mut state = State::sequence_file(3);
        state.cache(&cache(0, 100, counts[0]));
        state.cache(&cache(40, 60, counts[1]));
        let (packed, sizes) = pack(&state.bytes, stored.mode(2.1)).unwrap();
        let back = unpack_with(&packed, Some(&stored.codec)).unwrap();
        assert_eq!(loss(&state.bytes, &back).1, 0);
        assert!(sizes.coded_pack * 4 < sizes.coded_state, "{sizes:?}");
    }
    let mut state = State::sequence_file(3);
    state.cache(&cache(0, 100, 2));
    state.cache(&cache(40, 60, 2));
    let error = pack(&state.bytes, stored.mode(2.1)).unwrap_err().to_string();
    assert!(error.contains("two caches of 2 and 2 layers"), "{error}");
}
