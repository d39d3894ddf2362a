//! A cache as a stream of bytes, for storage beyond the process. SPEC.md has the format.
//!
//! ```text
//! magic, version | spec | one chunk a KV head | end          each chunk: length, payload, CRC-32
//! ```
//!
//! Blocks are written in their codec's own form, not as pages arrange them, so any machine can read the
//! snapshot. A restored cache continues with the same bits as the original. A snapshot is checked completely
//! before the cache changes.

#[cfg(feature = "object-store")]
mod object;
mod spec;
mod state;

use super::chunks::{Parser, read, read_chunk, refused, write_chunk};
use super::spec::CacheSpec;
use super::{Budget, KvCache, Layer};
use crate::error::CacheError;
use crate::file::flush::flush;
use crate::file::{AtomicFile, Existing};
use crate::memory;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// The first bytes of a snapshot. Like those of a `.tqk` file, they break in a transfer as text.
pub(super) const MAGIC: [u8; 8] = [0x89, b'T', b'Q', b'S', b'\r', b'\n', 0x1a, b'\n'];

/// The version that is written, and the only one that is read.
pub(super) const VERSION: u32 = 2;

/// Limit on the bytes of a chunk: no KV head is larger.
const MAX_CHUNK: u64 = 1 << 40;

/// Limit on the memory of a ring that a snapshot alone asks for.
const MAX_RING: usize = 256 << 20;

impl KvCache {
    /// Writes all of the state: every row, block and mean, and the text of the spec. The instruction set and the
    /// spill folder belong to the machine and [`CacheSpec::max_tokens`] to the program, so they are left out.
    ///
    /// # Errors
    /// An error of `writer`, or a page that cannot be read from the spill file.
    pub fn snapshot(&self, writer: &mut dyn Write) -> Result<(), CacheError> {
        let written =
            |result: io::Result<()>| result.map_err(|error| CacheError::Snapshot(error.to_string()));
        written(writer.write_all(&MAGIC).and_then(|()| writer.write_all(&VERSION.to_le_bytes())))?;
        written(write_chunk(writer, spec::write(&self.spec).as_bytes()))?;
        let mut payload = Vec::new();
        for head in self.heads() {
            payload.clear();
            state::write(head, &mut payload)?;
            written(write_chunk(writer, &payload))?;
        }
        written(write_chunk(writer, &[]))?;
        written(flush(writer))
    }

    /// Replaces the tokens of the cache with those of a snapshot.
    ///
    /// # Errors
    /// * The snapshot has another version, or is cut short or damaged.
    /// * It is of a cache with another spec; the error names the difference. [`CacheSpec::select`] may
    ///   differ.
    /// * It is larger than the free part of the budget.
    ///
    /// The cache does not change in these cases.
    pub fn restore(&mut self, reader: &mut dyn Read) -> Result<(), CacheError> {
        let spec = read_spec(reader)?;
        if let Some(difference) = spec::difference(&spec, &self.spec) {
            return refused(format!("of a cache with another spec: {difference}"));
        }
        self.read_heads(reader)
    }

    /// Makes the cache of a snapshot, with the spec of the snapshot and no budget. Spilled pages go to a file
    /// in the folder for temporary files. If the spec must be that of the program, use [`KvCache::restore`],
    /// which checks it.
    ///
    /// # Errors
    /// * The snapshot has another version, a spec that no cache can have, or is cut short or damaged.
    /// * It is of a ring of more than 256 MiB. Its bytes do not prove that much memory is wanted.
    pub fn from_snapshot(reader: &mut dyn Read) -> Result<Self, CacheError> {
        let mut cache = Self::without_memory(read_spec(reader)?, &Budget::unlimited())?;
        let bytes = cache.missing_bytes();
        if bytes > MAX_RING {
            return refused(format!(
                "of a ring of {bytes} bytes: expected at most {MAX_RING}, or a cache with this spec that restores it"
            ));
        }
        cache.hold()?;
        cache.read_heads(reader)?;
        Ok(cache)
    }

    fn read_heads(&mut self, reader: &mut dyn Read) -> Result<(), CacheError> {
        let mut payload = Vec::new();
        let mut layers: Vec<Layer> = self.layers.iter().map(Layer::emptied).collect();
        for (layer, Layer { heads, max_norms }) in layers.iter_mut().enumerate() {
            for (i, head) in heads.iter_mut().enumerate() {
                read_chunk(reader, &mut payload, MAX_CHUNK)?;
                // The blocks of each page, and the structures of pages. Only the last page may have spare
                // room.
                let last = head.keys.pages().page_bytes() + head.other.pages().page_bytes();
                let _room = self.budget.reserve(2 * payload.len() + last)?;
                memory::check(2 * payload.len() + last)?;
                let mut parser = Parser::new(&payload);
                let read = state::read(head, *max_norms, &mut parser).and_then(|()| parser.end());
                read.map_err(|error| error.within(format_args!("layer {layer}, KV head {i}")))?;
                self.spec.check_length(layer, head.len())?;
            }
            if heads.windows(2).any(|heads| heads[0].len() != heads[1].len()) {
                return refused(format!("KV heads of layer {layer} of different lengths"));
            }
        }
        read_chunk(reader, &mut payload, MAX_CHUNK)?;
        if !payload.is_empty() {
            return refused("more KV heads than the cache has");
        }
        self.layers = layers;
        self.hold()
    }

    /// Writes a snapshot to a file, which appears complete or not at all. A new file is readable by its owner
    /// only, because a snapshot reveals the text.
    ///
    /// # Errors
    /// The same as [`KvCache::snapshot`]. A file that was there before stays then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), CacheError> {
        let path = path.as_ref();
        let failed = |error: io::Error| CacheError::Snapshot(format!("{}: {error}", path.display()));
        let mut file = BufWriter::new(AtomicFile::create(path, Existing::Replace).map_err(failed)?);
        self.snapshot(&mut file)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.commit().map_err(failed)
    }

    /// Reads the cache that [`KvCache::save`] wrote, with its spec. See [`KvCache::from_snapshot`].
    ///
    /// ```
    /// # use tqkv::cache::{CacheSpec, KvCache};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("cache");
    /// let mut cache = KvCache::new(CacheSpec::new(1, 1, 1, 64))?;
    /// cache.append(0, &[0.5; 64], &[0.25; 64])?;
    /// cache.save(&path)?;
    /// assert_eq!(KvCache::load(&path)?.len(), 1);
    /// # Ok::<(), tqkv::error::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`KvCache::from_snapshot`], or a file that cannot be read. The text begins with its path.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, CacheError> {
        let path = path.as_ref();
        Self::from_snapshot(&mut open(path)?)
            .map_err(|error| error.within(format_args!("{}", path.display())))
    }

    /// Restores from a file into a cache with the spec of the snapshot. Budget and spill folder are those of
    /// this cache. See [`KvCache::restore`].
    ///
    /// # Errors
    /// The same as [`KvCache::restore`], or a file that cannot be read. The text begins with its path.
    pub fn restore_from(&mut self, path: impl AsRef<Path>) -> Result<(), CacheError> {
        let path = path.as_ref();
        self.restore(&mut open(path)?).map_err(|error| error.within(format_args!("{}", path.display())))
    }
}

fn open(path: &Path) -> Result<BufReader<File>, CacheError> {
    let file = File::open(path);
    Ok(BufReader::new(file.map_err(|error| CacheError::Snapshot(format!("{}: {error}", path.display())))?))
}

/// Checks the head of a snapshot, and reads its spec.
fn read_spec(reader: &mut dyn Read) -> Result<CacheSpec, CacheError> {
    let mut head = [0; 12];
    read(reader, &mut head)?;
    if head[..8] != MAGIC {
        return refused("not a snapshot of a cache (its first 8 bytes must be 89 54 51 53 0d 0a 1a 0a)");
    }
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if version != VERSION {
        return refused(format!("version {version} is not supported: expected {VERSION}"));
    }
    let mut payload = Vec::new();
    read_chunk(reader, &mut payload, MAX_CHUNK)?;
    spec::read(&payload)
}
