//! What the kernels are measured against: the dot product of ggml's quantised caches.
//!
//! `q4_0` rows as stored, the query as `q8_0`, a scale product for every run of 32: what
//! llama.cpp does for each key. Not for use in a cache; the page kernels are faster.

use crate::level::{Kernel, Level};
use crate::lines::Machine;

/// Bytes of a `q4_0` and of a `q8_0` run of 32 values.
const Q4: usize = 18;
const Q8: usize = 34;

/// `out[i]` = dot product of row i (`q4_0` blocks back to back) and the query (a `q8_0` block).
pub fn q4_0_scores(level: Level, query: &[u8], rows: &[u8], out: &mut [f32]) {
    level.run(Q4Scores { query, rows, out });
}

struct Q4Scores<'a> {
    query: &'a [u8],
    rows: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Q4Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let query = self.query.as_chunks::<Q8>().0;
        let runs = query.len().max(1);
        for (out, row) in self.out.iter_mut().zip(self.rows.as_chunks::<Q4>().0.chunks_exact(runs)) {
            *out = isa.q4_0_dot(row, query);
        }
    }
}
