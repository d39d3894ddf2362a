//! Attention from all sequences, from some, and from the tokens of one chunk.

use super::{GpuCache, Lists, Token, Use, table, vectors};
use crate::GpuError;
use crate::current::Current;
use crate::paged::attention::{Also, Attention, Plan, Source, Words};
use crate::parts::Cut;
use crate::rows::{Out, Rows, check_len};
use crate::spec::MAX_CHUNK;
use tqkv_core::Chunk;

/// Query tokens of one sequence per launch.
const QUERY_TILE: usize = 256;

impl GpuCache {
    /// Attends from the newest position of every sequence. `queries` and `out` are
    /// `[num_sequences, num_heads, head_dim]`. Logits are scaled by 1/sqrt(head_dim). Empty sequences give
    /// zeros.
    ///
    /// # Errors
    /// Wrong shapes, a query that is not finite, or the driver's errors.
    pub fn attend(&mut self, layer: usize, queries: &[f32], out: &mut [f32]) -> Result<(), GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        check_len("out", out.len(), self.query_values(self.spec.num_sequences))?;
        self.attend_to_host(layer, &self.newest(layer, 0..self.spec.num_sequences), queries, out)
    }

    /// Does the same as [`GpuCache::attend`], and leaves the result on the device. It does not wait if the
    /// queries are already there. The result of a query on the device that is not finite is NaN.
    ///
    /// # Errors
    /// Wrong shapes, memory of another device, a query on the host that is not finite, or the driver's
    /// errors.
    pub fn attend_on_device<'a>(
        &mut self,
        layer: usize,
        queries: Rows<'_>,
        out: impl Into<Out<'a>>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        let newest = self.newest(layer, 0..self.spec.num_sequences);
        self.attend_tokens(layer, &newest, queries, out.into())
    }

    /// Does the same as [`GpuCache::attend_on_device`] for some sequences. Row i of `queries` and `out`, both
    /// `[sequences.len(), num_heads, head_dim]`, is for `sequences[i]`.
    ///
    /// # Errors
    /// A sequence out of range, or the errors of [`GpuCache::attend_on_device`].
    pub fn attend_some<'a>(
        &mut self,
        layer: usize,
        sequences: &[usize],
        queries: Rows<'_>,
        out: impl Into<Out<'a>>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        sequences.iter().try_for_each(|&sequence| self.check_sequence(sequence))?;
        let newest = self.newest(layer, sequences.iter().copied());
        self.attend_tokens(layer, &newest, queries, out.into())
    }

    /// Appends n tokens to one sequence and attends causally with each token's queries. `queries` and `out`
    /// are `[n, num_heads, head_dim]`. Each query reads the cache on its own. A long prompt is cheaper with a
    /// prefill kernel and [`GpuCache::append`].
    ///
    /// # Errors
    /// The errors of [`GpuCache::append`] and [`GpuCache::attend`].
    pub fn attend_chunk(
        &mut self,
        layer: usize,
        sequence: usize,
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        out: &mut [f32],
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let shape = self.spec.shape();
        let mut chunk = Chunk::new(shape, layer, queries, keys, values, out)?;
        let appended = self.check_append(layer, &vec![sequence; chunk.tokens()])?;
        // Each token attends before the ring of exact tokens loses one that it sees.
        let tile = QUERY_TILE.min(self.kept.together());
        let [keys, values] =
            [keys, values].map(|rows| rows.chunks(tile * shape.num_kv_heads * shape.head_dim));
        let queries = queries.chunks(tile * shape.query_values());
        let rows = keys.zip(values).zip(queries.zip(chunk.out().chunks_mut(tile * shape.query_values())));
        for (i, (tokens, ((keys, values), (queries, out)))) in appended.chunks(tile).zip(rows).enumerate() {
            let done = self.append(layer, &vec![sequence; tokens.len()], keys.into(), values.into());
            let done = done.and_then(|()| self.attend_to_host(layer, tokens, queries, out));
            if let Err(error) = done {
                self.layers[layer].lengths[sequence] = appended[0].1 - 1;
                self.trim(sequence);
                return Err(error.behind(i * tile));
            }
        }
        Ok(())
    }

    /// Uses this cut for all later launches of attention.
    #[doc(hidden)]
    pub fn set_cut(&mut self, cut: Option<Cut>) {
        self.paged.attention.set_cut(cut);
    }

    /// The kernels of attention.
    #[doc(hidden)]
    pub fn attention(&self) -> &Attention {
        &self.paged.attention
    }

    /// The newest token of each sequence, in the form that attention takes.
    fn newest(&self, layer: usize, sequences: impl Iterator<Item = usize>) -> Vec<Token> {
        sequences.map(|sequence| (sequence, self.layers[layer].lengths[sequence])).collect()
    }

    /// Number of values in the queries of `tokens` tokens.
    pub(super) fn query_values(&self, tokens: usize) -> usize {
        tokens * self.spec.num_heads * self.spec.head_dim
    }

    /// Attends with one query per token, from and to host memory.
    fn attend_to_host(
        &mut self,
        layer: usize,
        tokens: &[Token],
        queries: &[f32],
        out: &mut [f32],
    ) -> Result<(), GpuError> {
        let mut device_out = self.take_out(out.len())?;
        let result = self
            .attend_tokens(layer, tokens, Rows::Host(queries), Out::F32(&mut device_out))
            .and_then(|()| self.scratch.staging[1].receive(&self.device, &device_out, out));
        self.scratch.out = Some(device_out);
        result
    }

    /// Attends with one query per token. Each query sees its sequence up to its own token.
    fn attend_tokens(
        &mut self,
        layer: usize,
        tokens: &[Token],
        queries: Rows<'_>,
        out: Out<'_>,
    ) -> Result<(), GpuError> {
        if tokens.len() > MAX_CHUNK {
            return Err(GpuError::BadSpec(format!(
                "{} query tokens in one call; at most {MAX_CHUNK}",
                tokens.len()
            )));
        }
        queries.check_queries(&self.device, &self.spec, layer, tokens.len())?;
        self.update_table()?;
        let entries = self.send_tokens(Use::Alone, tokens, tokens)?;
        self.attend_sent(Use::Alone, layer, (tokens.len(), entries), queries, out)
    }

    /// Attends with one query for each of `count` tokens whose control words are on the device, with
    /// `entries` entries in the list of parts. It only launches kernels if the queries are on the device too.
    pub(super) fn attend_sent(
        &mut self,
        of: Use,
        layer: usize,
        (count, entries): (usize, usize),
        queries: Rows<'_>,
        out: Out<'_>,
    ) -> Result<(), GpuError> {
        let values = self.query_values(count);
        let out = out.memory(&self.device, values)?;
        if count == 0 {
            return Ok(());
        }
        if let Rows::Host(rows) = queries {
            self.scratch.staging[0].send(&self.device, rows, &mut self.scratch.rows[0])?;
        }
        let buffers = &mut self.buffers[of as usize];
        let lists = Lists::new(&buffers.tokens, count, &self.kept);
        let words = lists.plan();
        let plan = Plan { words: Words::View(&words), rows: count, entries };
        let attention = &self.paged.attention;
        let scratch = attention.scratch(&self.device, &mut buffers.work, count, entries)?;
        let queries = vectors(&queries, &self.scratch.rows[0], (values, count));
        let strides = self.paged.layout().page_bytes().map(|bytes| bytes as u32);
        let pools = self.paged.pools(self.layers[layer].pools.each_ref().map(Into::into), strides);
        let source = Source { pools, table: table(&self.table, &self.pages), plan };
        let exact_plan = lists.exact_plan(entries);
        let pages = exact_plan.as_ref().map(|[words, numbers]| Source {
            pools: self.paged.exact_pools(
                self.layers[layer].exact.each_ref().map(Into::into),
                [self.spec.exact_page_bytes() as u32; 2],
            ),
            table: self.kept.table(numbers, count),
            plan: Plan { words: Words::View(words), ..plan },
        });
        // SAFETY: shapes were checked above, and the plans were sent for these rows and entries.
        unsafe {
            attention.run(&self.device, scratch, queries, source, Also { pages, ..Also::default() }, out)
        }
    }
}
