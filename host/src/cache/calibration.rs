//! Moments of the keys and queries of a model, learnt from text beforehand: a `.tqm` file. SPEC.md has the
//! format. A cache with it makes its maps at once, and no key waits for them.

use super::chunks::{Parser, put, put_count, put_rope, read, read_chunk, write_chunk};
use super::kept_moments::KeptMoments;
use crate::error::CacheError;
use crate::file::{AtomicFile, Existing};
use crate::rope::Rope;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tqkv_core::{KvShape, MAX_HEAD_DIM};

/// The first bytes of the file. Like those of a snapshot, they break in a transfer as text.
const MAGIC: [u8; 8] = [0x89, b'T', b'Q', b'M', b'\r', b'\n', 0x1a, b'\n'];

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Limit on the bytes of the header, which grow with the number of layers.
const MOST_HEADER: u64 = 1 << 28;

/// Limit on the layers, and on the KV heads of a layer.
const MOST_HEADS: usize = 1 << 20;

/// Bytes of the hash of a model.
const HASH: usize = 32;

/// Moments of the keys and queries of a model, from which a cache with [`CacheSpec::calibration`] makes its maps
/// at once. A [`Calibrator`](crate::cache::Calibrator) learns them from text.
///
/// [`CacheSpec::calibration`]: crate::cache::CacheSpec::calibration
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The file. Empty if the moments come from elsewhere.
    path: PathBuf,
    model: [u8; HASH],
    tokens: u64,
    num_kv_heads: usize,
    head_dim: usize,
    /// One per layer.
    rope: Vec<Rope>,
    /// `[num_layers, num_kv_heads]`. A head that keeps no keys has none.
    heads: Vec<Arc<KeptMoments>>,
}

impl Calibration {
    /// `heads` is `[num_layers, num_kv_heads]`, and there is one RoPE per layer. Each head has moments of
    /// its head dim, or none.
    pub(super) fn new(
        model: [u8; HASH],
        tokens: u64,
        shape: &KvShape,
        rope: Vec<Rope>,
        heads: Vec<KeptMoments>,
    ) -> Self {
        let KvShape { num_kv_heads, head_dim, .. } = *shape;
        let heads = heads.into_iter().map(Arc::new).collect();
        Self { path: PathBuf::new(), model, tokens, num_kv_heads, head_dim, rope, heads }
    }

    /// The hash of the model.
    pub const fn model(&self) -> &[u8; HASH] {
        &self.model
    }

    /// Number of tokens that taught the moments.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The file that the moments were read from.
    pub fn path(&self) -> Option<&Path> {
        Some(&*self.path).filter(|path| !path.as_os_str().is_empty())
    }

    /// The moments of one layer, for a cache of that layer alone. `None` past the last layer.
    pub fn of_layer(&self, layer: usize) -> Option<Self> {
        let rope = vec![self.rope.get(layer)?.clone()];
        let first = layer * self.num_kv_heads;
        let heads = self.heads.get(first..first + self.num_kv_heads)?.to_vec();
        let Self { model, tokens, num_kv_heads, head_dim, .. } = *self;
        Some(Self { path: PathBuf::new(), model, tokens, num_kv_heads, head_dim, rope, heads })
    }

    pub(super) fn rope(&self, layer: usize) -> Option<&Rope> {
        self.rope.get(layer)
    }

    /// The moments of a head. [`Calibration::check`] has passed.
    pub(super) fn head(&self, layer: usize, kv_head: usize) -> Option<&Arc<KeptMoments>> {
        self.heads.get(layer * self.num_kv_heads + kv_head)
    }

    /// Refuses a cache of another shape, or with another RoPE.
    pub(super) fn check<'a>(
        &self,
        shape: &KvShape,
        rope: impl Fn(usize) -> Option<&'a Rope>,
    ) -> Result<(), String> {
        let found = [self.rope.len(), self.num_kv_heads, self.head_dim];
        let wanted = [shape.num_layers, shape.num_kv_heads, shape.head_dim];
        let text = |[layers, heads, dim]: [usize; 3]| {
            format!("{layers} layers of {heads} KV heads with head_dim {dim}")
        };
        if found != wanted {
            return Err(format!("{}: it is of {}: expected {}", self.name(), text(found), text(wanted)));
        }
        for (layer, own) in self.rope.iter().enumerate() {
            if rope(layer).is_some_and(|other| !is_same(own, other)) {
                let name = self.name();
                return Err(format!("{name}: another RoPE in layer {layer}: expected that of the cache"));
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.path().map_or_else(|| "moments".to_owned(), |path| path.display().to_string())
    }

    /// The bytes of the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(&mut bytes);
        bytes
    }

    fn write(&self, writer: &mut dyn Write) -> io::Result<()> {
        writer.write_all(&MAGIC)?;
        writer.write_all(&VERSION.to_le_bytes())?;
        let mut payload = self.model.to_vec();
        put(&mut payload, &[self.tokens]);
        for count in [self.rope.len(), self.num_kv_heads, self.head_dim] {
            put_count(&mut payload, count);
        }
        self.rope.iter().for_each(|rope| put_rope(&mut payload, Some(rope)));
        write_chunk(writer, &payload)?;
        for head in &self.heads {
            payload.clear();
            head.write(&mut payload);
            write_chunk(writer, &payload)?;
        }
        Ok(())
    }

    /// Reads the bytes of a file to their end. Memory grows with the bytes that arrive. The error says what
    /// is wrong.
    pub(super) fn read(reader: &mut dyn Read) -> Result<Self, String> {
        Self::read_all(reader).map_err(|error| match error {
            CacheError::Snapshot(why) => why,
            other => other.to_string(),
        })
    }

    fn read_all(reader: &mut dyn Read) -> Result<Self, CacheError> {
        let refused = |why: String| Err(CacheError::Snapshot(why));
        let mut head = [0; 12];
        read(reader, &mut head)?;
        if head[..8] != MAGIC {
            return refused(
                "not a file of moments (its first 8 bytes must be 89 54 51 4d 0d 0a 1a 0a)".into(),
            );
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return refused(format!("version {version} is not supported: expected {VERSION}"));
        }
        let mut payload = Vec::new();
        read_chunk(reader, &mut payload, MOST_HEADER)?;
        let mut read = Self::read_header(&payload)?;
        let dim = read.head_dim;
        for _ in 0..read.rope.len() * read.num_kv_heads {
            read_chunk(reader, &mut payload, KeptMoments::bytes(dim) as u64)?;
            if payload.is_empty() {
                read.heads.push(Arc::new(KeptMoments::none()));
                continue;
            }
            let mut parser = Parser::new(&payload);
            let Some(head) = KeptMoments::read(&mut parser, dim)? else {
                return refused("moments that no text has".into());
            };
            parser.end()?;
            read.heads.push(Arc::new(head));
        }
        match reader.read(&mut [0]) {
            Ok(0) => Ok(read),
            Ok(_) => refused("longer than its moments".into()),
            Err(error) => refused(error.to_string()),
        }
    }

    /// The fields of the header, without moments.
    fn read_header(payload: &[u8]) -> Result<Self, CacheError> {
        let mut parser = Parser::new(payload);
        let mut model = [0; HASH];
        model.copy_from_slice(parser.bytes(1, HASH)?);
        let tokens = parser.values::<u64>(1)?.first().copied().unwrap_or_default();
        let layers = parser.count("layers", MOST_HEADS)?;
        let num_kv_heads = parser.count("KV heads", MOST_HEADS)?;
        let head_dim = parser.count("coordinates", MAX_HEAD_DIM)?;
        let mut rope = Vec::new();
        for _ in 0..layers {
            rope.push(parser.rope(head_dim)?);
        }
        parser.end()?;
        Ok(Self { path: PathBuf::new(), model, tokens, num_kv_heads, head_dim, rope, heads: Vec::new() })
    }

    /// Reads a file that [`Calibration::save`] wrote.
    ///
    /// # Errors
    /// [`CacheError::BadSpec`], which begins with the path: a file that cannot be read, or that has no moments.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, CacheError> {
        Self::read_file(path.as_ref()).map_err(CacheError::BadSpec)
    }

    /// [`Calibration::load`], for the reader of a text, whose error has its own beginning.
    pub(super) fn read_file(path: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let read = Self::read(&mut BufReader::new(file)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), ..read })
    }

    /// Writes a file, which appears whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = BufWriter::new(AtomicFile::create(path, Existing::Replace)?);
        self.write(&mut file)?;
        file.into_inner().map_err(|error| error.into_error())?.commit()
    }
}

/// True if two tables of frequencies are the same but for their rounding.
fn is_same(a: &Rope, b: &Rope) -> bool {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * b.abs();
    let kind = a.first == b.first && (a.pairs == b.pairs || a.inv_freq.is_empty());
    kind && a.inv_freq.len() == b.inv_freq.len() && a.inv_freq.iter().zip(&b.inv_freq).all(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::Pairs;

    const DIM: usize = 4;

    /// Two layers of two heads. One keeps no keys.
    fn some() -> Calibration {
        let shape = KvShape::new(2, 2, 2, DIM);
        let rope = |speed| Rope::new(0, Pairs::Half, vec![1.0, speed]);
        let head = |i: u8| {
            let mut bytes: Vec<u8> = (0..4 * DIM).flat_map(|j| (j as f32).to_le_bytes()).collect();
            bytes.extend(vec![i; KeptMoments::bytes(DIM) - bytes.len()]);
            KeptMoments::read(&mut Parser::new(&bytes), DIM).unwrap().unwrap()
        };
        let heads = vec![head(0), head(1), KeptMoments::none(), head(3)];
        Calibration::new([7; HASH], 4096, &shape, vec![rope(0.1), rope(0.01)], heads)
    }

    #[test]
    fn a_file_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.tqm");
        some().save(&path).unwrap();
        let read = Calibration::load(&path).unwrap();
        assert_eq!(read.path(), Some(&*path));
        assert_eq!(Calibration { path: PathBuf::new(), ..read }, some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no other file stays");
        assert!(some().save(folder.path().join("none/some.tqm")).is_err());
    }

    #[test]
    fn a_layer_has_its_own_moments() {
        let (all, second) = (some(), some().of_layer(1).unwrap());
        assert_eq!(second.check(&KvShape::new(1, 2, 2, DIM), |_| all.rope(1)), Ok(()));
        assert_eq!([second.head(0, 0), second.head(0, 1)], [all.head(1, 0), all.head(1, 1)]);
        assert!(second.rope(0) == all.rope(1) && all.of_layer(2).is_none());
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let bytes = some().to_bytes();
        let read = |bytes: &[u8]| Calibration::read(&mut &bytes[..]);
        assert_eq!(read(&bytes).unwrap(), some());
        for len in 0..bytes.len() {
            read(&bytes[..len]).unwrap_err();
        }
        assert_eq!(read(&[&bytes[..], &[0]].concat()).unwrap_err(), "longer than its moments");
        let mut damaged = 0;
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let why = read(&bytes).unwrap_err();
            assert!(!why.contains('\n') && !why.is_empty());
            damaged += usize::from(why.contains("damaged"));
        }
        assert!(8 * bytes.len() > 3000 && damaged > 1500, "{damaged}");
    }

    /// Fields with right checksums that contradict each other are refused, or make a file that no cache of
    /// this shape accepts. None of them takes much memory.
    #[test]
    fn wrong_fields_with_right_checksums_are_refused() {
        let good = some().to_bytes();
        let header = 12 + 8..good.len() - 4 - 3 * (12 + KeptMoments::bytes(DIM)) - 12;
        let shape = KvShape::new(2, 2, 2, DIM);
        let mut cases = 0;
        for at in (header.start + HASH..header.end - 7).step_by(1) {
            for value in [0, 1, 3, 5, 255, 1 << 20, 1 << 32, 1 << 62, u64::MAX] {
                let mut bytes = good.clone();
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                let crc = crc32fast::hash(&bytes[header.clone()]);
                bytes[header.end..header.end + 4].copy_from_slice(&crc.to_le_bytes());
                cases += 1;
                if let Ok(read) = Calibration::read(&mut &bytes[..]) {
                    assert!(bytes == good || read != some());
                    let _ = read.check(&shape, |layer| some().rope.get(layer).map(|_| &NO_ROPE));
                }
            }
        }
        assert!(cases > 600, "{cases}");
        let mut bytes = good;
        let first = header.end + 4 + 8;
        bytes[first..first + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let crc = crc32fast::hash(&bytes[first..first + KeptMoments::bytes(DIM)]);
        bytes[first + KeptMoments::bytes(DIM)..][..4].copy_from_slice(&crc.to_le_bytes());
        assert!(Calibration::read(&mut &bytes[..]).unwrap_err().contains("moments that no text has"));
    }

    static NO_ROPE: Rope = Rope::none();

    #[test]
    fn another_shape_or_rope_is_refused_by_name() {
        let own = some();
        let check = |layers, heads, dim| own.check(&KvShape::new(layers, heads, heads, dim), |_| None);
        assert_eq!(check(2, 2, DIM), Ok(()));
        for (layers, heads, dim) in [(3, 2, DIM), (2, 1, DIM), (2, 2, 8)] {
            let why = check(layers, heads, dim).unwrap_err();
            assert!(why.contains("it is of 2 layers of 2 KV heads with head_dim 4: expected"), "{why}");
        }
        let turned = |pairs, speed| Rope::new(0, pairs, vec![1.0, speed]);
        let shape = KvShape::new(2, 2, 2, DIM);
        let with = |rope: &Rope| own.check(&shape, |layer| (layer == 0).then_some(rope));
        assert_eq!(with(&turned(Pairs::Half, 0.1 + 1e-9)), Ok(()), "rounding");
        for rope in [turned(Pairs::Half, 0.2), turned(Pairs::Interleaved, 0.1), Rope::none()] {
            assert!(with(&rope).unwrap_err().contains("another RoPE in layer 0"));
        }
    }
}
