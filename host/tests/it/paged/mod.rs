//! Blocks of an engine.

mod lives;

use lives::Choose;
use tqkv::paged::{Layout, Line, Paged, Pages, Rule, Step};
use tqkv::{CodecId, Level, Options};

/// Random choices.
struct Random {
    state: u64,
    left: usize,
}

impl Choose for Random {
    fn below(&mut self, n: usize) -> usize {
        self.left = self.left.saturating_sub(1);
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % n
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }
}

#[test]
fn random_lives_attend_as_f64() {
    let compared: usize = (0..60).map(|seed| lives::live(&mut Random { state: seed, left: 600 })).sum();
    assert!(compared > 3000, "{compared}");
}

/// Blocks of three sequences of 5,000, 40 and 2,049 tokens, and the table and the lengths of their newest `rows` rows.
fn stored(layout: Layout, rows: usize) -> (Pages<Vec<Line>>, Vec<i32>, Vec<i32>) {
    let paged = Paged::new(layout).unwrap();
    let mut pages =
        Pages::together(&paged, vec![Line::ZERO; 120 * paged.block_lines()], paged.block_lines()).unwrap();
    let (mut table, mut lengths, mut next) = (Vec::new(), Vec::new(), 0);
    for tokens in [5000usize, 40, 2049] {
        let blocks: Vec<i32> = (next..next + tokens.div_ceil(64) as i32).collect();
        next += blocks.len() as i32;
        let places: Vec<i64> = (0..tokens).map(|t| i64::from(blocks[t / 64]) * 64 + t as i64 % 64).collect();
        let numbers = |seed: usize| -> Vec<f32> {
            (0..tokens * 128).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
        };
        assert_eq!(paged.store(&numbers(1), &numbers(2), &places, &mut pages).unwrap(), 0);
        for back in (0..rows).rev() {
            table.extend((0..80).map(|i| blocks.get(i).copied().unwrap_or(-1)));
            lengths.push((tokens - back) as i32);
        }
    }
    (pages, table, lengths)
}

/// Neither the number of threads nor the instruction set changes a bit.
#[test]
fn threads_and_levels_give_equal_bits() {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    for (key, value, rows) in
        [(CodecId::S4, CodecId::T2, 1), (CodecId::T3, CodecId::S3, 4), (CodecId::I8, CodecId::S4, 3)]
    {
        let layout = Layout::new(6, 2, 64).codecs(key, value).block_tokens(64);
        let (pages, table, lengths) = stored(layout, rows);
        let q: Vec<f32> = (0..lengths.len() * 6 * 64).map(|i| ((i * 31) % 97) as f32 / 48.5 - 1.0).collect();
        let step = Step { table: &table, lengths: &lengths, starts: &[] };
        let attend = |level| {
            let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; lengths.len() * 6]);
            let paged = Paged::with_level(layout, level).unwrap();
            paged.attend(&q, &pages, &step, &Rule::default(), &mut out, Some(&mut lse)).unwrap();
            (out, lse)
        };
        let want = pool(1).install(|| attend(Level::Portable));
        for level in Level::available() {
            for threads in [1, 2, 5] {
                let got = pool(threads).install(|| attend(level));
                assert!(got == want, "{key:?}, {rows} rows, {level:?}, {threads} threads");
            }
        }
    }
}

#[test]
fn wrong_layouts_are_refused_by_name() {
    let refused = |layout: Layout| Paged::new(layout).unwrap_err().to_string();
    let plain = Layout::new(8, 2, 64);
    for tokens in [0, 16, 48, 544] {
        let error = refused(plain.block_tokens(tokens));
        assert!(
            error.contains(&format!(
                "blocks of {tokens} tokens are not valid: expected a multiple of 32 up to 512"
            )),
            "{error}"
        );
    }
    assert!(refused(Layout::new(3, 2, 64)).contains("heads"), "{}", refused(Layout::new(3, 2, 64)));
    assert!(refused(Layout::new(8, 2, 33)).contains("head dim not supported: accepted are multiples of 16"));
    let paged = Paged::new(plain).unwrap();
    let short = Pages::together(&paged, vec![Line::ZERO; paged.block_lines() - 1], paged.block_lines());
    assert!(short.unwrap_err().to_string().contains("expected at least"));
    // Blocks of the same bytes, whose codes mean something else.
    let other = Paged::new(plain.options(Options::DEFAULT.seed(7))).unwrap();
    let pages = Pages::together(&other, vec![Line::ZERO; other.block_lines()], other.block_lines()).unwrap();
    let step = Step { table: &[0], lengths: &[1], starts: &[] };
    let (q, mut out) = (vec![0.5; 512], vec![0.0; 512]);
    let error = paged.attend(&q, &pages, &step, &Rule::default(), &mut out, None).unwrap_err().to_string();
    assert!(error.contains("pages of another layout"), "{error}");
}
