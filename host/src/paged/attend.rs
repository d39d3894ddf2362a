//! A step of an engine as tasks that threads share.

use super::pages::check;
use super::step::{Rule, Step};
use super::task::Task;
use super::tokens::Sequence;
use super::{Paged, Pages};
use crate::cache::vectors::Floats;
use crate::error::CacheError;
use crate::{memory, threads};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;
use tqkv_simd::page::Line;

/// Most rows of one sequence that are attended to together.
const MOST_ROWS: usize = 64;

/// Fewest tokens and KV heads of a step for which threads are worth their wake.
const SHARED: usize = 4096;

impl Paged {
    /// Attends with the queries of each row, `[rows, num_heads, head_dim]`, to its tokens; `out` has their shape. A row
    /// without tokens gets zeros. `lse`, `[rows, num_heads]`, gets the logarithms of the sums of exponentials, learned sinks
    /// included, with which results over different tokens are joined.
    ///
    /// # Errors
    /// [`CacheError::Shape`] for a wrong length, and [`CacheError::Blocks`] for pages of another layout, a table that rows do
    /// not divide, or a `rule` with which no layer attends, before anything is written.
    pub fn attend<'a, M: AsRef<[Line]> + Sync>(
        &self,
        queries: impl Into<Floats<'a>>,
        pages: &Pages<M>,
        step: &Step<'_>,
        rule: &Rule<'_>,
        out: &mut [f32],
        lse: Option<&mut [f32]>,
    ) -> Result<(), CacheError> {
        let (queries, rows) = (queries.into(), step.lengths.len());
        let (heads, dim, kv_heads) = (self.layout.num_heads, self.layout.head_dim, self.layout.num_kv_heads);
        pages.check(self)?;
        check("queries", queries.len(), rows * heads * dim)?;
        check("results", out.len(), rows * heads * dim)?;
        self.check(step, rule)?;
        let mut room = memory::filled(if lse.is_none() { rows * heads } else { 0 }, 0.0)?;
        let lse = lse.unwrap_or(&mut room);
        check("lse", lse.len(), rows * heads)?;
        let queries = match queries {
            Floats::F32(values) => Cow::Borrowed(values),
            other => {
                let mut wide = memory::filled(other.len(), 0.0)?;
                other.widen(self.level(), &mut wide);
                Cow::Owned(wide)
            }
        };
        let tokens = self.layout.block_tokens;
        let seen: Vec<_> = (0..rows).map(|row| step.seen(row, tokens, rule.window)).collect();
        let (entries, runs) = (step.table.len() / rows.max(1), runs(step));
        let (mut tasks, mut outs, mut lses) = (Vec::new(), &mut *out, &mut *lse);
        for run in &runs {
            let table = &step.table[run.start * entries..(run.start + 1) * entries];
            let places = rule.exact.map_or(&[][..], |exact| {
                let columns = exact.places.len() / rows;
                &exact.places[run.start * columns..run.end * columns]
            });
            let (of_run, rest) = outs.split_at_mut(run.len() * heads * dim);
            let (lse_of_run, rest_of_lse) = lses.split_at_mut(run.len() * heads);
            let of_head = run.len() * heads / kv_heads;
            let results = of_run.chunks_mut(of_head * dim).zip(lse_of_run.chunks_mut(of_head));
            for (kv_head, results) in results.enumerate() {
                let sequence = Sequence { paged: self, pages, table, kv_head, soft_cap: rule.soft_cap };
                let task = Task { sequence, rule, seen: &seen[run.clone()], places };
                tasks.push((task, &queries[run.start * heads * dim..run.end * heads * dim], results));
            }
            (outs, lses) = (rest, rest_of_lse);
        }
        let places = rule.exact.map_or(0, |exact| exact.places.len());
        let work = (seen.iter().map(Range::len).sum::<usize>() + places) * kv_heads;
        if threads::several() && work >= SHARED {
            threads::share(|| {
                let at_once = tasks.len() < 2 * rayon::current_num_threads();
                tasks
                    .par_iter_mut()
                    .for_each(|(task, queries, (out, lse))| task.run(queries, at_once, out, lse));
            });
        } else {
            tasks.iter_mut().for_each(|(task, queries, (out, lse))| task.run(queries, false, out, lse));
        }
        drop(tasks);
        for run in runs {
            let rows = run.start * heads..run.end * heads;
            by_row(&mut out[rows.start * dim..rows.end * dim], run.len(), kv_heads);
            by_row(&mut lse[rows], run.len(), kv_heads);
        }
        Ok(())
    }

    /// Refuses lengths that are not those of the rows of a step, and numbers with which no layer attends.
    fn check(&self, step: &Step<'_>, rule: &Rule<'_>) -> Result<(), CacheError> {
        let rows = step.lengths.len();
        step.entries()?;
        if !step.starts.is_empty() {
            check("starts", step.starts.len(), rows)?;
        }
        if !rule.sinks.is_empty() {
            check("sinks", rule.sinks.len(), self.layout.num_heads)?;
        }
        if let Some(exact) = &rule.exact {
            exact.check(rows, self.layout.num_kv_heads, self.layout.head_dim)?;
        }
        let refused = |why: String| Err(CacheError::Blocks(why));
        match *rule {
            Rule { soft_cap: Some(cap), .. } if !(cap.is_finite() && cap > 0.0) => {
                refused(format!("soft cap {cap} is not valid: expected a positive number"))
            }
            Rule { scale: Some(scale), .. } if !scale.is_finite() => {
                refused(format!("scale {scale} is not valid: expected a finite number"))
            }
            Rule { window: Some(0), .. } => {
                refused("a window of 0 tokens is not valid: expected at least 1".into())
            }
            _ => Ok(()),
        }
    }
}

/// Rows that follow each other and have the same blocks.
fn runs(step: &Step<'_>) -> Vec<Range<usize>> {
    let (rows, entries) = (step.lengths.len(), step.table.len() / step.lengths.len().max(1));
    let table = |row: usize| &step.table[row * entries..(row + 1) * entries];
    let (mut runs, mut first) = (Vec::new(), 0);
    while first < rows {
        let most = rows.min(first + MOST_ROWS);
        let end = (first + 1..most).find(|row| entries == 0 || table(*row) != table(first)).unwrap_or(most);
        runs.push(first..end);
        first = end;
    }
    runs
}

/// Brings results of a run of rows from `[kv_heads, rows, ..]` to `[rows, kv_heads, ..]`.
fn by_row(results: &mut [f32], rows: usize, kv_heads: usize) {
    if rows > 1 && kv_heads > 1 {
        let (given, width) = (results.to_vec(), results.len() / rows / kv_heads);
        for (i, part) in given.chunks_exact(width).enumerate() {
            let at = (i % rows * kv_heads + i / rows) * width;
            results[at..at + width].copy_from_slice(part);
        }
    }
}
