//! Lives of the blocks of an engine: sequences that store tokens, share blocks, copy and free them, and attend in batches. A
//! test and a fuzz target run them; each makes choices of its own.
//!
//! Codes are those of the codec, to the bit. Attention is compared with f64 over the rows that they decode to. Places and
//! blocks that are not there leave no trace, and wrong lengths change nothing.

use tqkv::paged::{ExactTokens, Layout, Line, Paged, Pages, Rule, Side, Step};
use tqkv::{AnyCodec, CodecId};

/// The choices of a life.
pub(crate) trait Choose {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize;

    /// True once there are no more choices.
    fn is_done(&self) -> bool;
}

const BLOCKS: usize = 12;
/// Blocks of a sequence at most, and so entries of a table.
const ENTRIES: usize = 4;

/// A sequence: its blocks and the number of its tokens.
#[derive(Clone, Debug, Default)]
struct Sequence {
    blocks: Vec<usize>,
    tokens: usize,
}

struct Life<'a, C> {
    choose: &'a mut C,
    paged: Paged,
    codecs: [AnyCodec; 2],
    pages: Pages<Vec<Line>>,
    /// What each place decodes to, `[num_kv_heads, head_dim]`, as keys and values.
    rows: Vec<Option<[Vec<f32>; 2]>>,
    sequences: Vec<Sequence>,
    compared: usize,
}

/// Codecs that blocks of this head dim can have.
pub(crate) fn codecs(dim: usize) -> Vec<CodecId> {
    let is_served = |id: &CodecId| Paged::new(Layout::new(1, 1, dim).codecs(*id, *id)).is_ok();
    CodecId::ALL.iter().copied().filter(|id| !id.rotates_quarters()).filter(is_served).collect()
}

/// Lives until the choices end. Returns the number of results that were compared.
pub(crate) fn live(choose: &mut impl Choose) -> usize {
    let dim = [64, 128, 32, 96][choose.below(4)];
    let all = codecs(dim);
    let [key, value] = [(); 2].map(|()| all[choose.below(all.len())]);
    let kv_heads = 1 + choose.below(2);
    let tokens = [32, 64, 128, 160, 512][choose.below(5)];
    let layout =
        Layout::new(kv_heads * (1 + choose.below(5)), kv_heads, dim).codecs(key, value).block_tokens(tokens);
    let paged = Paged::new(layout).unwrap();
    let slack = choose.below(3);
    // Memory that nobody has cleared.
    let junk = Line([[0, 255][choose.below(2)]; 64]);
    let memory = |lines: usize| vec![junk; (BLOCKS - 1) * (lines + slack) + lines];
    let pages = if choose.below(2) == 0 {
        let lines = paged.block_lines();
        Pages::together(&paged, memory(lines), lines + slack)
    } else {
        let lines = paged.side_lines();
        Pages::apart(&paged, lines.map(memory), lines.map(|lines| lines + slack))
    }
    .unwrap();
    assert_eq!(pages.blocks(), BLOCKS);
    let codecs = [key, value].map(|id| AnyCodec::new(id, dim, layout.options).unwrap());
    let (rows, sequences) = (vec![None; BLOCKS * tokens], vec![Sequence::default(); 3]);
    let mut life = Life { choose, paged, codecs, pages, rows, sequences, compared: 0 };
    while !life.choose.is_done() {
        match life.choose.below(8) {
            0 => life.free(),
            1 => life.copy(),
            2 => life.mistakes(),
            3 | 4 => life.store(),
            _ => life.attend(),
        }
    }
    life.compared
}

impl<C: Choose> Life<'_, C> {
    fn tokens(&self) -> usize {
        self.paged.layout().block_tokens
    }

    fn number(&mut self) -> f32 {
        (self.choose.below(65) as f32 - 32.0) / 16.0
    }

    fn width(&self) -> usize {
        self.paged.layout().num_kv_heads * self.paged.layout().head_dim
    }

    /// Numbers that a few choices make, so that choices last.
    fn numbers(&mut self, n: usize) -> Vec<f32> {
        let (a, b) = (self.number(), self.number());
        let mut state = self.choose.below(1 << 16) as u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 32768.0 - 1.0
        };
        (0..n).map(|i| next() + if i % 7 == 0 { a } else { b / 8.0 }).collect()
    }

    fn place(&self, sequence: &Sequence, token: usize) -> usize {
        sequence.blocks[token / self.tokens()] * self.tokens() + token % self.tokens()
    }

    /// The next tokens of a sequence, padding among them, and vectors that cannot be encoded.
    fn store(&mut self) {
        let (at, more) = (self.choose.below(3), 1 + self.choose.below(90));
        let mut sequence = std::mem::take(&mut self.sequences[at]);
        let tokens = self.tokens();
        let mut free: Vec<_> =
            (0..BLOCKS).filter(|block| self.sequences.iter().all(|s| !s.blocks.contains(block))).collect();
        free.retain(|block| !sequence.blocks.contains(block));
        while sequence.blocks.len() < (sequence.tokens + more).div_ceil(tokens).min(ENTRIES)
            && let Some(block) = free.pop()
        {
            sequence.blocks.push(block);
        }
        let end = (sequence.tokens + more).min(sequence.blocks.len() * tokens);
        let mut places: Vec<i64> =
            (sequence.tokens..end).map(|token| self.place(&sequence, token) as i64).collect();
        for wrong in [-1, i64::MIN, (BLOCKS * tokens) as i64, i64::MAX] {
            if self.choose.below(3) == 0 {
                places.insert(self.choose.below(places.len() + 1), wrong);
            }
        }
        let mut given = [(); 2].map(|()| self.numbers(places.len() * self.width()));
        let mut odd = 0;
        if !places.is_empty() && self.choose.below(4) == 0 {
            let (token, side) = (self.choose.below(places.len()), self.choose.below(2));
            given[side][token * self.width()] = [f32::NAN, f32::INFINITY, 1e30][self.choose.below(3)];
            odd = usize::from(self.held(places[token]).is_some());
        }
        let refused = self.paged.store(&given[0], &given[1], &places, &mut self.pages).unwrap();
        assert_eq!(refused, odd);
        let width = self.width();
        for (row, place) in places.iter().enumerate() {
            if let Some(place) = self.held(*place) {
                let row = |side: usize| self.coded(side, &given[side][row * width..(row + 1) * width]);
                self.rows[place] = Some([row(0), row(1)]);
            }
        }
        sequence.tokens = sequence.tokens.max(end);
        self.sequences[at] = sequence;
        self.check(at);
    }

    fn held(&self, place: i64) -> Option<usize> {
        usize::try_from(place).ok().filter(|place| *place < self.rows.len())
    }

    /// What the codec makes of a row.
    fn coded(&self, side: usize, row: &[f32]) -> Vec<f32> {
        let (codec, mut out) = (&self.codecs[side], vec![0.0; row.len()]);
        let mut block = vec![0; codec.block_bytes()];
        for (x, out) in row.chunks_exact(codec.dim()).zip(out.chunks_exact_mut(codec.dim())) {
            if codec.encode(x, &mut block).is_ok() {
                codec.decode(&block, out).unwrap();
            }
        }
        out
    }

    /// A sequence reads back as the rows that were stored.
    fn check(&self, at: usize) {
        let sequence = &self.sequences[at];
        let mut table = vec![-7i32; ENTRIES];
        table.iter_mut().zip(&sequence.blocks).for_each(|(entry, block)| *entry = *block as i32);
        for side in [Side::Keys, Side::Values] {
            let mut out = vec![f32::NAN; (sequence.tokens + 1) * self.width()];
            let step = Step { table: &table, lengths: &[sequence.tokens as i32], starts: &[] };
            self.paged.gather(side, &self.pages, &step, &[1], &mut out).unwrap();
            assert!(out[..self.width()].iter().all(|x| x.is_nan()), "a row before the first");
            for (token, row) in out.chunks_exact(self.width()).skip(1).enumerate() {
                let held = self.rows[self.place(sequence, token)].as_ref().unwrap();
                assert_eq!(row, held[side as usize], "{side:?} of token {token} of {sequence:?}");
            }
        }
    }

    fn free(&mut self) {
        let at = self.choose.below(3);
        self.sequences[at] = Sequence::default();
    }

    /// Another sequence begins as this one: full blocks are shared, and the last one is copied.
    fn copy(&mut self) {
        let (from, to) = (self.choose.below(3), self.choose.below(3));
        let mut copy = self.sequences[from].clone();
        let used = |block: &usize| self.sequences.iter().any(|sequence| sequence.blocks.contains(block));
        let Some(free) = (0..BLOCKS).find(|block| !used(block)) else { return };
        let Some(last) = copy.blocks.last_mut() else { return };
        if from != to {
            self.pages.copy(&[(*last, free)]).unwrap();
            let tokens = self.tokens();
            let rows = self.rows[*last * tokens..(*last + 1) * tokens].to_vec();
            self.rows[free * tokens..(free + 1) * tokens].clone_from_slice(&rows);
            *last = free;
            // Blocks that both have are written by neither.
            copy.tokens = copy.tokens.max((copy.blocks.len() - 1) * tokens);
            self.sequences[to] = copy;
            self.check(to);
        }
    }

    /// Rows of all sequences: one each, or some newest ones of a sequence.
    fn attend(&mut self) {
        let Layout { num_heads: heads, num_kv_heads: kv_heads, head_dim: dim, .. } = *self.paged.layout();
        let (mut table, mut lengths, mut starts, mut of) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let has_starts = self.choose.below(3) == 0;
        for at in 0..self.sequences.len() {
            let sequence = self.sequences[at].clone();
            let rows = [0, 1, 1, 2, 5][self.choose.below(5)];
            for back in (0..rows).rev() {
                let length = sequence.tokens.saturating_sub(back);
                let used = length.div_ceil(self.tokens());
                let junk = [i32::MIN, -1, BLOCKS as i32, i32::MAX][self.choose.below(4)];
                let same = if rows > 1 { sequence.blocks.len() } else { used };
                table.extend((0..ENTRIES).map(|i| {
                    if i < same { sequence.blocks[i] as i32 } else { if rows > 1 { -1 } else { junk } }
                }));
                lengths.push(if length == 0 { [0, -3][self.choose.below(2)] } else { length as i32 });
                starts.push(self.choose.below(length.max(1) + 2) as i32);
                of.push(at);
            }
        }
        // Rows that are not codes, some of which no row sees.
        let (given, columns) = (5, self.choose.below(4));
        let exact = [(); 2].map(|()| self.numbers(kv_heads * given * dim));
        let places: Vec<_> =
            (0..lengths.len() * columns).map(|_| self.choose.below(given + 2) as i64 - 1).collect();
        let rule = Rule {
            exact: (columns > 0).then_some(ExactTokens {
                keys: (&exact[0]).into(),
                values: (&exact[1]).into(),
                places: &places,
                held: given - 1,
            }),
            scale: [None, Some(0.3)][self.choose.below(2)],
            soft_cap: [None, Some(4.0)][self.choose.below(2)],
            window: [None, Some(1 + self.choose.below(200))][self.choose.below(2)],
            sinks: &[0.5, -2.0, 3.0, 0.0, 1.0, 2.0, -1.0, 0.25, 0.75, 1.5]
                [..if self.choose.below(2) == 0 { heads } else { 0 }],
        };
        let queries = self.numbers(lengths.len() * heads * dim);
        let (mut out, mut lse) = (vec![f32::NAN; queries.len()], vec![f32::NAN; lengths.len() * heads]);
        let step = Step { table: &table, lengths: &lengths, starts: if has_starts { &starts } else { &[] } };
        self.paged.attend(&queries, &self.pages, &step, &rule, &mut out, Some(&mut lse)).unwrap();
        for (row, at) in of.iter().enumerate() {
            let end = lengths[row].max(0) as usize;
            let start = if has_starts { starts[row] as usize } else { 0 };
            let start = start.max(end.saturating_sub(rule.window.unwrap_or(end))).min(end);
            for head in 0..heads {
                let q = &queries[(row * heads + head) * dim..][..dim];
                let kv_head = head / (heads / kv_heads);
                let own = places[row * columns..(row + 1) * columns]
                    .iter()
                    .filter(|place| (0..given as i64 - 1).contains(*place));
                let own: Vec<_> = own.map(|place| (kv_head * given + *place as usize) * dim).collect();
                let own = own.iter().map(|at| [0, 1].map(|side| &exact[side][*at..at + dim]));
                let (want, want_lse, most) = self.exact(*at, start..end, (q, kv_head), own, &rule, head);
                let got = &out[(row * heads + head) * dim..][..dim];
                for (got, want) in got.iter().zip(&want) {
                    assert!(
                        (f64::from(*got) - want).abs() <= 0.04 * most + 1e-6,
                        "row {row}, head {head}: {got} {want}, {most}"
                    );
                }
                let lse = f64::from(lse[row * heads + head]);
                assert!(
                    lse == want_lse || (lse - want_lse).abs() < 0.1,
                    "row {row}, head {head}: {lse} {want_lse}"
                );
                self.compared += 1;
            }
        }
    }

    /// Attention of a query in f64, the logarithm of its sum, and the largest value.
    fn exact<'b>(
        &'b self,
        at: usize,
        seen: std::ops::Range<usize>,
        (q, kv_head): (&[f32], usize),
        own: impl Iterator<Item = [&'b [f32]; 2]>,
        rule: &Rule<'_>,
        head: usize,
    ) -> (Vec<f64>, f64, f64) {
        let dim = q.len();
        let scale = rule.scale.map_or(1.0 / (dim as f64).sqrt(), f64::from);
        let (mut sum, mut out, mut most) = (0.0, vec![0.0; dim], 0.0f64);
        if let Some(sink) = rule.sinks.get(head) {
            sum += f64::from(*sink).exp();
        }
        let coded = seen.map(|token| {
            let row = self.rows[self.place(&self.sequences[at], token)].as_ref().unwrap();
            [0, 1].map(|side: usize| &row[side][kv_head * dim..(kv_head + 1) * dim])
        });
        for [key, value] in coded.chain(own) {
            let mut logit: f64 =
                q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale;
            if let Some(cap) = rule.soft_cap {
                logit = f64::from(cap) * (logit / f64::from(cap)).tanh();
            }
            let weight = logit.exp();
            sum += weight;
            for (out, v) in out.iter_mut().zip(value) {
                *out += weight * f64::from(*v);
                most = most.max(f64::from(v.abs()));
            }
        }
        if sum > 0.0 {
            out.iter_mut().for_each(|x| *x /= sum);
        }
        (out, sum.ln(), most)
    }

    /// Calls with wrong lengths, which change nothing.
    fn mistakes(&mut self) {
        let Layout { num_heads: heads, head_dim: dim, .. } = *self.paged.layout();
        let (width, q) = (self.width(), vec![0.5; heads * dim]);
        let mut out = vec![7.0; heads * dim];
        let paged = self.paged.clone();
        assert!(paged.store(&q[..width - 1], &q[..width], &[0], &mut self.pages).is_err());
        assert!(paged.store(&vec![0.5; width], &vec![0.5; width], &[0, 1], &mut self.pages).is_err());
        let step = |table, lengths| Step { table, lengths, starts: &[] };
        let rule = Rule::default();
        for (q, step) in
            [(&q[1..], step(&[0, 1], &[3])), (&q[..], step(&[0, 1, 2], &[3, 4])), (&q[..], step(&[0], &[]))]
        {
            assert!(paged.attend(q, &self.pages, &step, &rule, &mut out, None).is_err());
        }
        for wrong in [
            Rule { soft_cap: Some(0.0), ..rule },
            Rule { scale: Some(f32::NAN), ..rule },
            Rule { window: Some(0), ..rule },
        ] {
            assert!(paged.attend(&q, &self.pages, &step(&[0], &[1]), &wrong, &mut out, None).is_err());
        }
        assert!(self.pages.copy(&[(0, 1), (BLOCKS, 0)]).is_err());
        assert!(out.iter().all(|x| *x == 7.0));
        (0..3).for_each(|at| self.check(at));
    }
}
