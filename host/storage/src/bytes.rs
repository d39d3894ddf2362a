//! Numbers of tokens as signed bytes, in groups that share a scale.

use tqkv_simd::Level;
use tqkv_simd::page::Line;
use tqkv_simd::products::{self, Group, MAX_GROUP, RUN, Rounded, Scale, TILE};

/// The columns of a matrix and what a token has of each.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    tokens: usize,
    groups: Vec<Owned>,
}

/// A [`Group`] in memory of its own.
#[derive(Debug)]
struct Owned {
    runs: Vec<usize>,
    bytes: Vec<[u32; TILE]>,
    scales: Vec<Scale>,
}

impl Owned {
    fn new(tokens: usize, runs: &[usize]) -> Self {
        let bytes = tokens.div_ceil(TILE) * runs.len() * RUN / 4;
        Self { runs: runs.to_vec(), bytes: vec![[0; TILE]; bytes], scales: vec![Scale::default(); tokens] }
    }

    fn rounded(&mut self) -> Rounded<'_> {
        Rounded { bytes: &mut self.bytes, scales: &mut self.scales }
    }

    fn group(&self) -> Group<'_> {
        Group { runs: &self.runs, bytes: &self.bytes, scales: &self.scales }
    }
}

impl TokenBytes {
    pub(crate) const fn new(tokens: usize) -> Self {
        Self { tokens, groups: Vec::new() }
    }

    /// Adds numbers of all tokens, 16 for each of `runs` and `stride` from one token to the next. They are
    /// multiplied by factors. A number has one byte, or if they are `fine` two.
    pub(crate) fn add(
        &mut self,
        level: Level,
        x: &[f32],
        stride: usize,
        runs: &[usize],
        factors: &[f32],
        fine: bool,
    ) {
        let groups = runs.chunks(MAX_GROUP / RUN).zip(factors.chunks(MAX_GROUP)).enumerate();
        for (i, (runs, factors)) in groups {
            let mut coarse = Owned::new(self.tokens, runs);
            let mut rest = fine.then(|| Owned::new(self.tokens, runs));
            let x = (&x[i * MAX_GROUP..], stride);
            products::round(level, x, factors, coarse.rounded(), rest.as_mut().map(Owned::rounded));
            self.groups.push(coarse);
            self.groups.extend(rest);
        }
    }

    /// Numbers times columns of a matrix of `rows` rows, `[tokens, stride]`.
    pub(crate) fn product(&self, level: Level, matrix: &[Line], rows: usize, out: &mut [f32], stride: usize) {
        let groups: Vec<Group<'_>> = self.groups.iter().map(Owned::group).collect();
        products::product(level, matrix, rows, &groups, out, stride);
    }
}
