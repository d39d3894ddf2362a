//! [`GpuCache`]: paged keys and values of many sequences in device memory.

mod coder;
mod read;
mod rows;

use crate::GpuError;
use crate::attention::{Attention, Batch, Pool, Queries};
use crate::device::{Device, Staging};
use crate::pages::PageTable;
use crate::spec::{GpuSpec, MAX_CHUNK};
use coder::Coder;
use cudarc::driver::CudaSlice;
pub use rows::Rows;
use rows::on_device;
use tqkv_core::Chunk;

/// Query tokens of one sequence that are attended in one launch.
const QUERY_TILE: usize = 256;

/// Which of the two tensors of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// What a cache holds and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuStats {
    /// Tokens of all sequences in layer 0.
    pub tokens: usize,
    /// Pages in use; all layers use the same.
    pub pages_used: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Device memory of keys and values.
    pub pool_bytes: usize,
    /// Device memory of the encoders' workspace.
    pub workspace_bytes: usize,
    /// Bytes of one token in all layers, keys and values, without the slack of pages.
    pub token_bytes: usize,
}

/// One layer's pages and the tokens of every sequence in it.
#[derive(Debug)]
struct Layer {
    pools: [CudaSlice<u8>; 2],
    lengths: Vec<usize>,
}

/// Buffers that calls reuse.
#[derive(Debug)]
struct Scratch {
    rows: CudaSlice<f32>,
    /// Taken while a call runs.
    out: Option<CudaSlice<f32>>,
    sequence_of: CudaSlice<u32>,
    position_of: CudaSlice<u32>,
    lengths: CudaSlice<u32>,
    table: CudaSlice<u32>,
    /// Of trellis encoders, which run one after the other.
    workspace: CudaSlice<u8>,
    staging: Staging,
}

/// Keys and values of `num_sequences` sequences, encoded, in pages of 64 tokens.
///
/// Every token is encoded as it is appended, the newest too: there are no sinks, no uncompressed
/// window and no centring. Codes are those of the CPU to the bit. For a single sequence on a machine
/// without a GPU use `tqkv::cache::KvCache`.
#[derive(Debug)]
pub struct GpuCache {
    device: Device,
    spec: GpuSpec,
    coders: [Coder; 2],
    attention: Attention,
    layers: Vec<Layer>,
    pages: PageTable,
    table: CudaSlice<u32>,
    scratch: Scratch,
}

impl GpuCache {
    /// An empty cache; takes its device memory at once.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`], [`GpuError::OutOfMemory`], or what the driver reports.
    pub fn new(device: &Device, spec: GpuSpec) -> Result<Self, GpuError> {
        let bytes = spec.pool_bytes()? + spec.workspace_bytes();
        let (free, _) = device.memory()?;
        if bytes > free {
            return Err(GpuError::OutOfMemory { bytes });
        }
        let coders = [Coder::new(device, &spec, spec.key)?, Coder::new(device, &spec, spec.value)?];
        let attention =
            Attention::new(device, spec.num_kv_heads, spec.group(), spec.head_dim, spec.formats())?;
        let layer = || -> Result<Layer, GpuError> {
            let pools =
                [device.zeros(spec.side_bytes(spec.key))?, device.zeros(spec.side_bytes(spec.value))?];
            Ok(Layer { pools, lengths: vec![0; spec.num_sequences] })
        };
        let layers = (0..spec.num_layers).map(|_| layer()).collect::<Result<_, _>>()?;
        let pages = PageTable::new(spec.num_sequences, spec.max_pages(), spec.pages());
        let table = device.zeros(spec.num_sequences * spec.max_pages())?;
        let scratch = Scratch {
            rows: device.zeros(1)?,
            out: None,
            sequence_of: device.zeros(1)?,
            position_of: device.zeros(1)?,
            lengths: device.zeros(1)?,
            table: device.zeros(1)?,
            workspace: device.zeros(spec.workspace_bytes())?,
            staging: Staging::new(),
        };
        Ok(Self { device: device.clone(), spec, coders, attention, layers, pages, table, scratch })
    }

    /// What the cache was built from.
    pub fn spec(&self) -> &GpuSpec {
        &self.spec
    }

    /// Tokens of a sequence in layer 0; 0 for a sequence out of range.
    pub fn len(&self, sequence: usize) -> usize {
        self.layers[0].lengths.get(sequence).copied().unwrap_or(0)
    }

    /// Whether no sequence holds a token.
    pub fn is_empty(&self) -> bool {
        self.layers[0].lengths.iter().all(|&length| length == 0)
    }

    /// Appends tokens to one layer: token i goes to the end of `sequences[i]`, which may repeat.
    /// `keys`, `values`: `[sequences.len(), num_kv_heads, head_dim]`, keys after RoPE.
    ///
    /// Waits for the device, because what the encoder made of each vector is looked at.
    ///
    /// # Errors
    /// Shapes, a full sequence or pool, or a vector that cannot be encoded, named by token and KV
    /// head; nothing is appended then.
    pub fn append(
        &mut self,
        layer: usize,
        sequences: &[usize],
        keys: Rows<'_>,
        values: Rows<'_>,
    ) -> Result<(), GpuError> {
        let positions = self.check_append(layer, sequences, keys, values)?;
        if sequences.is_empty() {
            return Ok(());
        }
        let result = self.reserve(sequences, &positions).and_then(|()| {
            let words = |numbers: &[usize]| numbers.iter().map(|&n| n as u32).collect::<Vec<_>>();
            let stream = self.device.stream().clone();
            self.device.grow(&mut self.scratch.sequence_of, sequences.len())?;
            self.device.grow(&mut self.scratch.position_of, sequences.len())?;
            stream.memcpy_htod(&words(sequences), &mut self.scratch.sequence_of)?;
            stream.memcpy_htod(&words(&positions), &mut self.scratch.position_of)?;
            self.encode(layer, Side::Keys, keys, sequences.len())?;
            self.encode(layer, Side::Values, values, sequences.len())
        });
        if result.is_err() {
            for &sequence in sequences {
                self.trim(sequence);
            }
            return result;
        }
        for (&sequence, &position) in sequences.iter().zip(&positions) {
            self.layers[layer].lengths[sequence] = position + 1;
        }
        Ok(())
    }

    /// Attends from the newest position of every sequence: `queries`, `out` are `[num_sequences,
    /// num_heads, head_dim]`, logits are scaled by 1/sqrt(head_dim). Empty sequences give zeros.
    ///
    /// # Errors
    /// Wrong shapes, or what the driver reports.
    pub fn attend(&mut self, layer: usize, queries: &[f32], out: &mut [f32]) -> Result<(), GpuError> {
        let values = self.spec.num_sequences * self.spec.num_heads * self.spec.head_dim;
        check_len("out", out.len(), values)?;
        let mut device_out = self.take_out(values)?;
        let result = self.attend_on_device(layer, Rows::Host(queries), &mut device_out).and_then(|()| {
            self.device.finish()?;
            self.scratch.staging.receive(&self.device, &device_out, out)
        });
        self.scratch.out = Some(device_out);
        result
    }

    /// As [`GpuCache::attend`], with the result left on the device. Does not wait where the queries
    /// are there already.
    ///
    /// # Errors
    /// Wrong shapes, or what the driver reports.
    pub fn attend_on_device(
        &mut self,
        layer: usize,
        queries: Rows<'_>,
        out: &mut CudaSlice<f32>,
    ) -> Result<(), GpuError> {
        self.check_layer(layer)?;
        let values = self.spec.num_sequences * self.spec.num_heads * self.spec.head_dim;
        check_len("queries", queries.len(), values)?;
        check_room(out, values)?;
        self.update_table()?;
        let lengths: Vec<u32> = self.layers[layer].lengths.iter().map(|&length| length as u32).collect();
        self.device.grow(&mut self.scratch.lengths, lengths.len())?;
        self.device.stream().memcpy_htod(&lengths, &mut self.scratch.lengths)?;
        if let Rows::Host(rows) = queries {
            self.device.finish()?;
            self.scratch.staging.send(&self.device, rows, &mut self.scratch.rows)?;
        }
        let batch = Batch {
            table: &self.table,
            max_pages: self.pages.max_pages(),
            lengths: &self.scratch.lengths,
            sequences: lengths.len(),
            longest: lengths.iter().max().map_or(0, |&longest| longest as usize),
        };
        let queries = on_device(queries, &self.scratch.rows);
        let pools = pools(&self.coders, &self.layers[layer]);
        // SAFETY: shapes were checked above, the table's pages are inside the pools.
        unsafe { self.attention.run(&self.device, queries, pools, batch, out) }
    }

    /// Appends n tokens to one sequence and attends causally with each token's queries: `queries`,
    /// `out` are `[n, num_heads, head_dim]`. Each query reads the cache on its own, so a long prompt
    /// is cheaper with a prefill kernel and [`GpuCache::append`].
    ///
    /// # Errors
    /// As [`GpuCache::append`] and [`GpuCache::attend`].
    pub fn attend_chunk(
        &mut self,
        layer: usize,
        sequence: usize,
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        out: &mut [f32],
    ) -> Result<(), GpuError> {
        let shape = self.spec.shape();
        let mut chunk = Chunk::new(shape, layer, queries, keys, values, out)?;
        let tokens = chunk.tokens();
        self.append(layer, &vec![sequence; tokens], keys.into(), values.into())?;
        if tokens == 0 {
            return Ok(());
        }
        let before = self.layers[layer].lengths[sequence] - tokens;
        let tile = QUERY_TILE * shape.query_values();
        for (i, (queries, out)) in queries.chunks(tile).zip(chunk.out().chunks_mut(tile)).enumerate() {
            self.attend_tile(layer, sequence, before + i * QUERY_TILE, queries, out)?;
        }
        Ok(())
    }

    /// Attends with queries of one sequence, the first of which sees tokens 0..=`first`. To the
    /// kernel they are sequences that share their pages.
    fn attend_tile(
        &mut self,
        layer: usize,
        sequence: usize,
        first: usize,
        queries: &[f32],
        out: &mut [f32],
    ) -> Result<(), GpuError> {
        let count = queries.len() / (self.spec.num_heads * self.spec.head_dim);
        let lengths: Vec<u32> = (first + 1..=first + count).map(|length| length as u32).collect();
        let pages = self.pages.of(sequence);
        let (table, max_pages) = (pages.repeat(count), pages.len());
        let mut device_out = self.take_out(queries.len())?;
        let (device, scratch) = (&self.device, &mut self.scratch);
        device.grow(&mut scratch.table, table.len())?;
        device.grow(&mut scratch.lengths, count)?;
        device.stream().memcpy_htod(&table, &mut scratch.table)?;
        device.stream().memcpy_htod(&lengths, &mut scratch.lengths)?;
        device.finish()?;
        scratch.staging.send(device, queries, &mut scratch.rows)?;
        let batch = Batch {
            table: &scratch.table,
            max_pages,
            lengths: &scratch.lengths,
            sequences: count,
            longest: first + count,
        };
        let pools = pools(&self.coders, &self.layers[layer]);
        let queries = Queries::Floats(&scratch.rows);
        // SAFETY: table and lengths were made for `count` queries above; pages are the sequence's own.
        let result = unsafe { self.attention.run(device, queries, pools, batch, &mut device_out) };
        let result = result.and_then(|()| {
            device.finish()?;
            scratch.staging.receive(device, &device_out, out)
        });
        scratch.out = Some(device_out);
        result
    }

    /// Drops the tokens of one sequence from index `len` on, in every layer, and takes their pages back.
    ///
    /// # Errors
    /// [`GpuError::SequenceOutOfRange`].
    pub fn truncate(&mut self, sequence: usize, len: usize) -> Result<(), GpuError> {
        self.check_sequence(sequence)?;
        for layer in &mut self.layers {
            layer.lengths[sequence] = layer.lengths[sequence].min(len);
        }
        self.trim(sequence);
        Ok(())
    }

    /// Back to the empty cache; the memory stays.
    pub fn reset(&mut self) {
        for sequence in 0..self.spec.num_sequences {
            for layer in &mut self.layers {
                layer.lengths[sequence] = 0;
            }
            self.trim(sequence);
        }
    }

    /// What is held, and what it takes.
    pub fn stats(&self) -> GpuStats {
        let block_bytes: usize = self.coders.iter().map(|coder| coder.codec.block_bytes()).sum();
        GpuStats {
            tokens: self.layers[0].lengths.iter().sum(),
            pages_used: self.pages.used(),
            pages: self.spec.pages(),
            pool_bytes: self.layers.iter().flat_map(|layer| &layer.pools).map(CudaSlice::num_bytes).sum(),
            workspace_bytes: self.spec.workspace_bytes(),
            token_bytes: self.spec.num_layers * self.spec.num_kv_heads * block_bytes,
        }
    }

    /// Checks an append; returns the position of each token.
    fn check_append(
        &self,
        layer: usize,
        sequences: &[usize],
        keys: Rows<'_>,
        values: Rows<'_>,
    ) -> Result<Vec<usize>, GpuError> {
        self.check_layer(layer)?;
        let expected = sequences.len() * self.spec.num_kv_heads * self.spec.head_dim;
        check_len("keys", keys.len(), expected)?;
        check_len("values", values.len(), expected)?;
        if sequences.len() > MAX_CHUNK {
            return Err(GpuError::BadSpec(format!(
                "{} tokens in one call; at most {MAX_CHUNK}",
                sequences.len()
            )));
        }
        let (mut next, max_tokens) = (self.layers[layer].lengths.clone(), self.spec.max_tokens);
        let mut positions = Vec::with_capacity(sequences.len());
        for &sequence in sequences {
            self.check_sequence(sequence)?;
            if next[sequence] == max_tokens {
                return Err(GpuError::SequenceFull { sequence, max_tokens });
            }
            positions.push(next[sequence]);
            next[sequence] += 1;
        }
        Ok(positions)
    }

    fn reserve(&mut self, sequences: &[usize], positions: &[usize]) -> Result<(), GpuError> {
        for (&sequence, &position) in sequences.iter().zip(positions) {
            self.pages.reserve(sequence, position + 1)?;
        }
        self.update_table()
    }

    /// Takes back the pages that no layer's tokens of `sequence` are in.
    fn trim(&mut self, sequence: usize) {
        let needed = self.layers.iter().map(|layer| layer.lengths[sequence]).max().unwrap_or(0);
        self.pages.trim(sequence, needed);
    }

    fn update_table(&mut self) -> Result<(), GpuError> {
        let (stream, table) = (self.device.stream(), &mut self.table);
        Ok(self.pages.copy_changes(|entries| stream.memcpy_htod(entries, table))?)
    }

    /// The output buffer, at least `values` long; the caller puts it back.
    fn take_out(&mut self, values: usize) -> Result<CudaSlice<f32>, GpuError> {
        match self.scratch.out.take() {
            Some(out) if out.len() >= values => Ok(out),
            _ => self.device.zeros(values),
        }
    }

    fn check_layer(&self, layer: usize) -> Result<(), GpuError> {
        let num_layers = self.spec.num_layers;
        if layer < num_layers { Ok(()) } else { Err(GpuError::LayerOutOfRange { layer, num_layers }) }
    }

    fn check_sequence(&self, sequence: usize) -> Result<(), GpuError> {
        let num_sequences = self.spec.num_sequences;
        if sequence < num_sequences {
            Ok(())
        } else {
            Err(GpuError::SequenceOutOfRange { sequence, num_sequences })
        }
    }
}

fn pools<'a>([key, value]: &'a [Coder; 2], layer: &'a Layer) -> [Pool<'a>; 2] {
    [key.pool(&layer.pools[0]), value.pool(&layer.pools[1])]
}

fn check_len(what: &'static str, got: usize, expected: usize) -> Result<(), GpuError> {
    if got == expected { Ok(()) } else { Err(GpuError::WrongLength { what, got, expected }) }
}

fn check_room(out: &CudaSlice<f32>, expected: usize) -> Result<(), GpuError> {
    if out.len() >= expected {
        Ok(())
    } else {
        Err(GpuError::WrongLength { what: "out", got: out.len(), expected })
    }
}
