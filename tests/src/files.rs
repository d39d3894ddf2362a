//! The golden files: `.tqk` files in bytes, with what a reader makes of each. They are put together here from SPEC.md alone, so that the writer
//! of the library cannot make the same mistake twice.

use std::fmt::Write;
use tqkv_core::{AnyCodec, CodecId, Options};

use crate::golden::painted;

/// Vectors of a file, in chunks of two.
const VECTORS: u64 = 3;

/// The parts of a file that can be wrong.
#[derive(Clone)]
struct Parts {
    magic: [u8; 8],
    version: u16,
    flags: u16,
    header_len: u32,
    codec: u8,
    scale_mode: u8,
    dim: u16,
    block_bytes: u32,
    count: u64,
    per_chunk: u32,
    mean: Vec<f32>,
    blocks: Vec<Vec<u8>>,
}

impl Parts {
    /// A right file of three vectors, and the decoded values.
    fn new(id: CodecId, dim: usize, mean: Vec<f32>) -> (Self, Vec<f32>) {
        let codec = AnyCodec::new(id, dim, Options::DEFAULT).expect("a codec of this head dim");
        let (mut blocks, mut decoded) = (Vec::new(), Vec::new());
        for salt in 0..VECTORS {
            let (mut block, mut back) = (vec![0; codec.block_bytes()], vec![0.0; dim]);
            let mut x = painted(dim, salt);
            x.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean);
            codec.encode(&x, &mut block).expect("a vector that can be encoded");
            codec.decode(&block, &mut back).expect("a block that was encoded");
            back.iter_mut().zip(&mean).for_each(|(x, mean)| *x += mean);
            blocks.push(block);
            decoded.extend(back);
        }
        let parts = Self {
            magic: *b"\x89TQK\x0d\x0a\x1a\x0a",
            version: 2,
            flags: u16::from(!mean.is_empty()),
            header_len: 48 + 4 * mean.len() as u32,
            codec: id.code(),
            scale_mode: Options::DEFAULT.scale_mode.code(),
            dim: dim as u16,
            block_bytes: codec.block_bytes() as u32,
            count: VECTORS,
            per_chunk: 2,
            mean,
            blocks,
        };
        (parts, decoded)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.header_len.to_le_bytes());
        out.extend([self.codec, self.scale_mode]);
        out.extend(self.dim.to_le_bytes());
        out.extend(self.block_bytes.to_le_bytes());
        out.extend(self.count.to_le_bytes());
        out.extend(Options::DEFAULT.seed.to_le_bytes());
        out.extend(self.per_chunk.to_le_bytes());
        self.mean.iter().for_each(|value| out.extend(value.to_le_bytes()));
        with_crc(out)
    }

    fn chunks(&self) -> Vec<Vec<u8>> {
        let chunk = |(i, blocks): (usize, &[Vec<u8>])| {
            let mut out = (2 * i as u64).to_le_bytes().to_vec();
            out.extend((blocks.len() as u32).to_le_bytes());
            out.extend(blocks.concat());
            with_crc(out)
        };
        self.blocks.chunks(2).enumerate().map(chunk).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        [self.header(), self.chunks().concat()].concat()
    }
}

fn with_crc(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files that a reader refuses: what is wrong in a word, the bytes, and the rule.
fn wrong() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let (right, _) = Parts::new(CodecId::S4, 16, Vec::new());
    let (with_mean, _) = Parts::new(CodecId::S4, 16, vec![0.5; 16]);
    let changed = |change: &dyn Fn(&mut Parts)| {
        let mut parts = right.clone();
        change(&mut parts);
        parts.bytes()
    };
    let (whole, header) = (right.bytes(), right.header().len());
    let chunks = right.chunks();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut misplaced = chunks[0].clone();
    misplaced.truncate(misplaced.len() - 4);
    misplaced[0] = 2;
    let mut not_finite = with_mean.clone();
    not_finite.mean[3] = f32::NAN;
    vec![
        ("empty", Vec::new(), "a file has a header"),
        ("magic", changed(&|parts| parts.magic[3] = b'L'), "the first eight bytes are the magic"),
        ("version-1", changed(&|parts| parts.version = 1), "the version is 2"),
        ("version-3", changed(&|parts| parts.version = 3), "the version is 2"),
        ("flags", changed(&|parts| parts.flags = 2), "bit 0 alone may be set"),
        ("header-length", changed(&|parts| parts.header_len = 49), "the header has 48 bytes without a mean"),
        ("header-crc", flipped(33), "the CRC of the header fits"),
        ("codec", changed(&|parts| parts.codec = 255), "the code is that of a codec"),
        ("scale-mode", changed(&|parts| parts.scale_mode = 4), "the scale mode is 0 to 3"),
        ("head-dim", changed(&|parts| parts.dim = 17), "the codec has blocks of the head dim"),
        ("no-blocks-in-a-chunk", changed(&|parts| parts.per_chunk = 0), "a chunk has at least one block"),
        (
            "chunk-too-large",
            changed(&|parts| parts.per_chunk = 1 << 24),
            "a chunk has at most 2^24 bytes of blocks",
        ),
        ("mean", not_finite.bytes(), "the mean is finite"),
        (
            "block-bytes",
            changed(&|parts| parts.block_bytes += 1),
            "the bytes per block are those of the codec",
        ),
        ("ends-in-header", whole[..40].to_vec(), "the header is complete"),
        ("ends-in-chunk", whole[..whole.len() - 5].to_vec(), "all chunks are complete"),
        ("no-last-chunk", [&whole[..header], &chunks[0]].concat(), "all chunks are there"),
        ("more", [&whole[..], &[0]].concat(), "nothing follows the last chunk"),
        ("chunk-crc", flipped(header + 14), "the CRC of a chunk fits"),
        (
            "chunk-order",
            [right.header(), with_crc(misplaced), chunks[1].clone()].concat(),
            "a chunk has the index of its place",
        ),
    ]
}

/// The text of the golden file.
pub fn files() -> String {
    let mut out = String::from(
        "# decodes NAME file values: a reader gives these values, f32 in little endian\n# refused NAME file rule: a reader refuses the file\n",
    );
    let right = CodecId::ALL.iter().filter_map(|&id| {
        let dim = [16, 64, 128].into_iter().find(|&dim| AnyCodec::new(id, dim, Options::DEFAULT).is_ok())?;
        Some((id.name().to_owned(), Parts::new(id, dim, Vec::new())))
    });
    let mean: Vec<f32> = (0..16).map(|i| i as f32 / 8.0).collect();
    let with_mean = [("s4-with-mean".to_owned(), Parts::new(CodecId::S4, 16, mean))];
    for (name, (parts, decoded)) in right.chain(with_mean) {
        let values: Vec<u8> = decoded.iter().flat_map(|value| value.to_le_bytes()).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "decodes {name} {} {}", hex(&parts.bytes()), hex(&values));
    }
    for (name, bytes, rule) in wrong() {
        let _ = writeln!(
            out,
            "refused {name} {} {rule}",
            if bytes.is_empty() { "-".into() } else { hex(&bytes) }
        );
    }
    out
}
