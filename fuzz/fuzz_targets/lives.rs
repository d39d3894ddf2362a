//! Takes bytes as a program over a few caches, and compares them with the plain model of the tests. The model
//! knows the rules of a token's life and no pages. The contents are bit-identical to the tokens encoded in
//! one tier after the other. Attention is f64 attention over the contents. Lengths, counts and refusals are
//! the model's.
#![no_main]

#[path = "../../tests/tests/it/lives"]
mod lives {
    pub(crate) mod exact;
    pub(crate) mod model;
    pub(crate) mod truth;
    pub(crate) mod world;
}

mod seeds;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use lives::truth::Rows;
use lives::world::{Kind, Op, World};
use tqkv::Level;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, KvCache, LayerKind};
use tqkv_core::{CodecId, Effort, KvShape, Options, ScaleMode};

/// Steps of a program. Each is checked against all tokens of the contents.
const MOST_STEPS: usize = 12;

#[derive(Arbitrary, Debug)]
struct Input {
    ageing: u8,
    codecs: [u8; 2],
    dims: [u8; 2],
    heads: u8,
    hot: u8,
    sinks: u8,
    window: u8,
    options: [u8; 3],
    level: u8,
    limit: u8,
    is_exact: bool,
    is_spiky: bool,
    is_centred: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Append(bool, u8),
    OneByOne(u8),
    Prefill(bool, u8),
    Truncate(u8),
    Cut(u8),
    Fork,
    Switch(u8),
    Drop,
    Restore(u8),
    Reset,
    Refused(u8, u8),
}

/// The first codecs of pages, and the codecs of their later tiers.
const AGEING: [&[(&str, &str, usize)]; 10] = [
    &[("n4", "n4", 0), ("n3", "n3", 20), ("n2", "n2", 140), ("", "", 300)],
    &[("n4", "n3", 0), ("n2", "n3", 0)],
    &[("s5", "s4", 0), ("s3", "s2", 90)],
    &[("t4", "s3", 0), ("t2", "t2s8", 50), ("", "", 200)],
    &[("i8", "f16", 0), ("s4", "q8_0", 30), ("t2", "q4_0", 250)],
    &[("q8_0", "q8_0", 0), ("q4_0", "q8_0", 100)],
    &[("f16", "f16", 0), ("q4_0", "q8_0", 64), ("", "", 128)],
    &[("i8", "i8", 0), ("s4", "t2h", 0), ("s2", "t2h", 129)],
    &[("i8", "s5", 0), ("n2", "n4", 127), ("t1", "t1", 128)],
    &[("", "", 60)],
];

/// Codes whose errors stay near those of the codec under a map.
const WIDE: [CodecId; 5] = [CodecId::T4, CodecId::S4, CodecId::T3, CodecId::S5, CodecId::Q4_0];

fuzz_target!(|input: Input| {
    let Some(kind) = input.kind() else { return seeds::refused("no such cache") };
    let mut world = World::new(&kind);
    for (number, step) in (0..).zip(input.steps.iter().take(MOST_STEPS)) {
        world.step(&step.op());
        world.check(number);
    }
    world.end();
});

fn pick<T: Copy>(number: u8, of: &[T]) -> T {
    of[usize::from(number) % of.len()]
}

impl Input {
    /// The kind of the caches, if such caches exist.
    fn kind(&self) -> Option<Kind> {
        let dims = self.dims.map(|dim| pick(dim, &[32, 48, 16, 64, 80, 128]));
        let heads = pick(self.heads, &[(1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 4, 2), (1, 9, 1)]);
        let shape = KvShape::new(heads.0, heads.1, heads.2, dims[0]).with_value_dim(dims[1]);
        let id = |name: &str| CodecId::from_name(name).expect("a codec");
        let [mut key, mut value] = self.codecs.map(|codec| pick(codec, CodecId::ALL));
        // The byte of the sinks says more than their number.
        let map = [None, Some("map=pairs"), None, None, None][usize::from(self.sinks / 7) % 5];
        let is_ring = self.sinks / 7 % 5 == 3;
        // Codes of quarters need a map.
        if key.rotates_quarters() && map.is_none() || value.rotates_quarters() {
            return None;
        }
        let mut spec = CacheSpec::from(shape);
        for (after, &(k, v, tokens)) in AGEING[usize::from(self.ageing) % AGEING.len()].iter().enumerate() {
            spec = match (after, k) {
                // The bounds of maps hold for wide codes of one tier.
                _ if map.is_some() => {
                    key = if key.rotates_quarters() { key } else { pick(self.codecs[0], &WIDE) };
                    break;
                }
                (_, "") => spec.cold(tokens, Cold::Spill(std::env::temp_dir())),
                // Half of the programs have one tier, with any codecs.
                (0, _) if self.ageing >= 128 => break,
                (0, _) => {
                    (key, value) = (id(k), id(v));
                    spec
                }
                _ => spec.cold(tokens, Cold::Demote { key: id(k), value: id(v) }),
            };
        }
        let tiers = spec.cold.iter().filter_map(|(_, cold)| match cold {
            Cold::Demote { key, value } => Some([*key, *value]),
            Cold::Spill(_) => None,
        });
        let has = |[key, value]: [CodecId; 2]| {
            key.block_bytes(dims[0]).is_some() && value.block_bytes(dims[1]).is_some()
        };
        if !tiers.chain([[key, value]]).all(has) {
            return None;
        }
        let hot = usize::from(self.hot % 41);
        // A few, or up to 131: more than several runs and a page have.
        let (sinks, more) = (usize::from(self.sinks % 7), usize::from(self.heads / 5));
        let sinks = if more % 4 == 3 { 20 * sinks + more / 4 } else { sinks };
        let kinds = match self.window {
            0..128 => vec![LayerKind::Full; heads.0],
            window => vec![LayerKind::Sliding(hot + 1 + usize::from(window - 128)); heads.0],
        };
        let options = Options::DEFAULT
            .scale_mode(pick(self.options[0], &ScaleMode::ALL))
            .effort(pick(self.options[1], &Effort::ALL))
            .seed(u64::from(self.options[2]));
        let levels: Vec<Level> = Level::available().collect();
        spec = spec.codecs(key, value).hot(hot).sinks(sinks).kinds(kinds).options(options);
        spec.level = Some(pick(self.level, &levels));
        spec.arithmetic = if self.is_exact { Arithmetic::F32 } else { Arithmetic::Int8 };
        spec.centring = if self.is_centred { Centring::On } else { Centring::Off };
        if let Some(map) = map {
            spec = spec.with(map).expect("the words of a spec");
        }
        if is_ring {
            spec = spec.ring(hot + 1 + usize::from(self.window));
        }
        // A ring takes all its memory at once.
        let limit = if self.limit < 200 || is_ring { usize::MAX } else { usize::from(self.limit) * 400 };
        // Keys of quarters take certain dims.
        let is_made = KvCache::new(spec.clone()).is_ok();
        let rows = Rows { shift: 0.0, spiky: self.is_spiky && map.is_none() };
        is_made.then_some(Kind { spec, rows, limit })
    }
}

impl Step {
    fn op(self) -> Op {
        let wide = usize::from;
        match self {
            Self::Append(all, count) => Op::Append(if all { 2 } else { 0 }, 1 + wide(count)),
            Self::OneByOne(count) => Op::OneByOne(0, 1 + wide(count) % 24),
            Self::Prefill(all, count) => Op::Prefill(if all { 2 } else { 0 }, 1 + wide(count)),
            Self::Truncate(back) => Op::Truncate(wide(back)),
            Self::Cut(share) => Op::Cut(wide(share) % 100),
            Self::Fork => Op::Fork,
            Self::Switch(to) => Op::Switch(wide(to)),
            Self::Drop => Op::Drop,
            Self::Restore(to) => Op::Restore(wide(to)),
            Self::Reset => Op::Reset,
            Self::Refused(layer, what) => Op::Refused(wide(layer), wide(what) % 9),
        }
    }
}
