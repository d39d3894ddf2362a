//! A cache is put away as a stream of chunks, and another process or machine takes it up again.
//!
//! An archive holds chunks of all layers, one after another, at consecutive positions from 0 on. Nothing
//! stands between or after the chunks. Writing and reading hold one chunk in memory. A snapshot of a cache
//! ([`KvCache::snapshot`]) keeps its codes bit for bit. An archive is a fraction of that size, and its tokens
//! come back near the originals, not equal to them.

use std::io::{ErrorKind, Read, Write};

use half::f16;
use tqkv::cache::KvCache;
use tqkv_core::KvShape;

use crate::chunk::{ChunkHeader, MAX_TOKENS, Span};
use crate::codec::{Budget, StorageCodec};
use crate::error::StorageError;
use crate::shape::Shape;

impl StorageCodec {
    /// Writes all tokens of a cache in chunks, as the cache holds them. Returns the bytes written.
    ///
    /// # Errors
    /// * A cache of another shape, or of latent vectors.
    /// * Tokens that left a sliding window, or a page that cannot be read.
    /// * Numbers too large for the basis.
    /// * An error of `out`.
    pub fn archive(&self, budget: Budget, cache: &KvCache, out: &mut dyn Write) -> Result<u64, StorageError> {
        check_cache(self.shape(), cache)?;
        let mut bytes = 0;
        for first in (0..cache.len()).step_by(MAX_TOKENS) {
            let tokens = MAX_TOKENS.min(cache.len() - first);
            let span = Span::of(self.shape(), first as u64, tokens);
            let (k, v) = gather(cache, first, tokens)?;
            let chunk = self.encode(budget, &span, &k, &v)?;
            out.write_all(&chunk)?;
            bytes += chunk.len() as u64;
        }
        tqkv::file::flush(out)?;
        Ok(bytes)
    }

    /// Appends the tokens of an archive to an empty cache. Returns the number of tokens.
    ///
    /// # Errors
    /// * A cache that is not empty or of another shape. It stays as it is.
    /// * The errors of [`StorageCodec::decode`], chunks that do not follow one another, and errors of the
    ///   cache. The cache is empty then.
    pub fn restore(&self, input: &mut dyn Read, cache: &mut KvCache) -> Result<usize, StorageError> {
        check_cache(self.shape(), cache)?;
        if !cache.is_empty() {
            return Err(StorageError::Cache(format!(
                "it holds {} tokens; expected an empty one",
                cache.len()
            )));
        }
        let result = self.append_all(input, cache);
        if result.is_err() {
            cache.reset();
        }
        result
    }

    fn append_all(&self, input: &mut dyn Read, cache: &mut KvCache) -> Result<usize, StorageError> {
        let (mut chunk, layers) = (Vec::new(), self.shape().num_layers());
        let (mut k, mut v) = (Vec::new(), Vec::new());
        while self.read_chunk(input, &mut chunk)? {
            let span = self.span(&chunk)?;
            if span.first_position != cache.len() as u64 || span.layers != layers {
                return Err(StorageError::chunk(format!(
                    "{} layers of tokens from {} on; expected are all layers from {} on",
                    span.layers,
                    span.first_position,
                    cache.len()
                )));
            }
            k.resize(layers * span.tokens * self.shape().key_values(), f16::ZERO);
            v.resize(layers * span.tokens * self.shape().value_values(), f16::ZERO);
            self.decode(&chunk, &mut k, &mut v)?;
            for (layer, (k, v)) in
                k.chunks_exact(k.len() / layers).zip(v.chunks_exact(v.len() / layers)).enumerate()
            {
                cache.append(layer, k, v)?;
            }
        }
        Ok(cache.len())
    }

    /// Reads the next chunk of an archive into `chunk` and reuses its memory. Returns false at the end.
    ///
    /// # Errors
    /// The errors of [`StorageCodec::span`], a chunk without all of its streams, a truncated chunk, and
    /// errors of `input`.
    pub fn read_chunk(&self, input: &mut dyn Read, chunk: &mut Vec<u8>) -> Result<bool, StorageError> {
        chunk.resize(ChunkHeader::BYTES, 0);
        let read = read_up_to(input, chunk)?;
        if read == 0 {
            return Ok(false);
        }
        let bytes = self.whole_bytes(&chunk[..read])?;
        chunk.resize(bytes, 0);
        input.read_exact(&mut chunk[read..]).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => StorageError::chunk(format!("truncated: shorter than {bytes} bytes")),
            _ => error.into(),
        })?;
        Ok(true)
    }
}

/// Reads until `to` is full or the input ends. Returns the bytes read.
fn read_up_to(input: &mut dyn Read, to: &mut [u8]) -> Result<usize, StorageError> {
    let mut filled = 0;
    while filled < to.len() {
        match input.read(&mut to[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

fn check_cache(shape: &Shape, cache: &KvCache) -> Result<(), StorageError> {
    let KvShape { num_layers, num_kv_heads, head_dim, value_dim, .. } = cache.spec().shape;
    let Shape { num_layers: layers, num_kv_heads: heads, head_dim: keys, value_dim: values, .. } = shape;
    if (num_layers, num_kv_heads, head_dim, value_dim) == (*layers, *heads, *keys, *values) {
        return Ok(());
    }
    Err(StorageError::Cache(format!(
        "it is of {num_layers} layers, {num_kv_heads} KV heads of {head_dim} and {value_dim} values; expected {layers} layers, {heads} \
         KV heads of {keys} and {values} values"
    )))
}

/// Keys and values `[layers, tokens, num_kv_heads, dim]` as the cache holds them.
fn gather(cache: &KvCache, first: usize, tokens: usize) -> Result<(Vec<f16>, Vec<f16>), StorageError> {
    let KvShape { num_layers, num_kv_heads, head_dim, value_dim, .. } = cache.spec().shape;
    let mut k = vec![f16::ZERO; num_layers * tokens * num_kv_heads * head_dim];
    let mut v = vec![f16::ZERO; num_layers * tokens * num_kv_heads * value_dim];
    for layer in 0..num_layers {
        for head in 0..num_kv_heads {
            let range = first..first + tokens;
            for (out, rows, dim) in [
                (&mut k, cache.keys(layer, head, range.clone())?, head_dim),
                (&mut v, cache.values(layer, head, range)?, value_dim),
            ] {
                let places = out.chunks_exact_mut(dim).skip(layer * tokens * num_kv_heads + head);
                for (to, row) in places.step_by(num_kv_heads).zip(rows.chunks_exact(dim)) {
                    to.iter_mut().zip(row).for_each(|(to, x)| *to = f16::from_f32(*x));
                }
            }
        }
    }
    Ok((k, v))
}
