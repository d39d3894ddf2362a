//! `.tqk` files: round trips, and every kind of damage to a small file.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use proptest::prelude::*;
use tqkv::file::{FileError, Header, Reader, TqkView, Writer};
use tqkv_core::{AnyCodec, CodecId, Options, ScaleMode};

const DIM: usize = 16;

fn header(codec: CodecId, blocks_per_chunk: u32, mean: Option<Vec<f32>>) -> Header {
    let options = Options::DEFAULT.seed(7).scale_mode(ScaleMode::Preserving);
    let codec = AnyCodec::new(codec, DIM, options).unwrap();
    Header { blocks_per_chunk, ..Header::new(&codec, mean) }
}

/// A block whose bytes depend on its index.
fn block(header: &Header, index: u64) -> Vec<u8> {
    let len = header.codec.block_bytes(header.dim).unwrap();
    (0..len).map(|i| (31 * index as usize + i) as u8).collect()
}

fn file(header: &Header, count: u64) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new()), header.clone()).unwrap();
    for index in 0..count {
        writer.push(&block(header, index)).unwrap();
    }
    writer.finish().unwrap().0.into_inner()
}

/// Reads all blocks as a stream.
fn stream(bytes: &[u8]) -> Result<Vec<u8>, FileError> {
    let mut reader = Reader::new(bytes)?;
    let mut blocks = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        blocks.extend_from_slice(chunk);
    }
    Ok(blocks)
}

/// Reads all blocks by index, last first.
fn random_access(bytes: &[u8]) -> Result<Vec<u8>, FileError> {
    let view = TqkView::new(bytes)?;
    let mut blocks = Vec::new();
    for index in (0..view.header().count).rev() {
        blocks.splice(0..0, view.block(index)?.iter().copied());
    }
    view.verify()?;
    Ok(blocks)
}

/// Reads with both readers, which must agree on whether the file is intact.
fn read(bytes: &[u8]) -> Result<Vec<u8>, String> {
    match (stream(bytes), random_access(bytes)) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a, b, "the two readers differ");
            Ok(a)
        }
        (Err(a), Err(b)) => {
            for error in [&a, &b] {
                let text = error.to_string();
                assert!(
                    !text.is_empty() && !text.contains('\n') && !matches!(error, FileError::Io(_)),
                    "{text}"
                );
            }
            Err(a.to_string())
        }
        (a, b) => panic!("one reader accepts what the other refuses: {a:?} {b:?}"),
    }
}

fn small_files() -> Vec<Vec<u8>> {
    let mean = Some((0..DIM).map(|i| i as f32 - 4.0).collect());
    vec![
        file(&header(CodecId::S2, 2, None), 5),
        file(&header(CodecId::S2, 3, mean), 3),
        file(&header(CodecId::F16, 1, None), 0),
    ]
}

#[test]
fn every_flipped_bit_is_an_error() {
    for whole in small_files() {
        read(&whole).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                assert!(read(&bytes).is_err(), "bit {bit} of byte {at} of {}", whole.len());
            }
        }
    }
}

#[test]
fn every_other_value_of_every_byte_is_an_error() {
    let whole = file(&header(CodecId::S2, 1, None), 2);
    for at in 0..whole.len() {
        for value in 0..=255 {
            let mut bytes = whole.clone();
            bytes[at] = value;
            assert_eq!(read(&bytes).is_ok(), value == whole[at], "byte {at} as {value}");
        }
    }
}

#[test]
fn every_truncation_and_every_extension_is_an_error() {
    for whole in small_files() {
        for len in 0..whole.len() {
            let error = read(&whole[..len]).unwrap_err();
            let expected = if len < 8 { "not a .tqk file" } else { "truncated" };
            assert!(error.contains(expected), "{len} bytes: {error}");
        }
        for extra in [&[0][..], &whole] {
            let error = read(&[&whole, extra].concat()).unwrap_err();
            assert!(error.contains("bytes after the last"), "{error}");
        }
    }
}

#[test]
fn chunks_in_the_wrong_place_are_errors_although_their_crc_fits() {
    let whole = file(&header(CodecId::S2, 2, None), 6);
    let (head, chunks) = whole.split_at(48);
    let len = chunks.len() / 3;
    let (a, b, c) = (&chunks[..len], &chunks[len..2 * len], &chunks[2 * len..]);
    assert!(read(&[head, a, b, c].concat()).is_ok());
    for wrong in [[b, a, c], [a, a, c], [a, c, b]] {
        let error = read(&[head, &wrong.concat()].concat()).unwrap_err();
        assert!(error.contains("at the wrong place"), "{error}");
    }
}

/// A file with an edited header and a matching CRC.
fn forged(edit: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = file(&header(CodecId::S2, 2, None), 2);
    edit(&mut bytes);
    let crc = crc32fast::hash(&bytes[..44]);
    bytes[44..48].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn hostile_headers_with_a_good_crc_are_errors() {
    type Edit = fn(&mut Vec<u8>);
    let cases: &[(&str, Edit)] = &[
        ("version 1", |b| b[8] = 1),
        ("version 3", |b| b[8] = 3),
        ("flags 0x8000 are not valid", |b| b[11] = 0x80),
        ("header length", |b| b[10] = 1),
        ("header length", |b| b[12..16].fill(0xff)),
        ("codec code 200 is not valid: expected 0 f16", |b| b[16] = 200),
        ("scale mode code 9 is not valid: expected 0 raw", |b| b[17] = 9),
        ("head dim 100", |b| b[18] = 100),
        ("codec q4_0 at head dim 16", |b| b[16] = CodecId::Q4_0.code()),
        ("bytes per block", |b| b[20] = 7),
        ("truncated", |b| b[24..32].fill(0xff)),
        ("truncated", |b| b[24] = 3),
        ("bytes after the last of 0 blocks", |b| b[24] = 0),
        ("0 blocks of 6 bytes in a chunk", |b| b[40] = 0),
        ("in a chunk", |b| b[40..44].fill(0xff)),
    ];
    for (expected, edit) in cases {
        let error = read(&forged(edit)).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_non_finite_mean_is_an_error() {
    let mean = |x| Some(vec![x; DIM]);
    let result = Writer::new(Cursor::new(Vec::new()), header(CodecId::S2, 2, mean(f32::NAN)));
    assert!(matches!(result, Err(FileError::NonFiniteMean)));
    let mut bytes = file(&header(CodecId::S2, 2, mean(1.0)), 1);
    bytes[44..48].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let end = 44 + 4 * DIM;
    let crc = crc32fast::hash(&bytes[..end]);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    assert!(read(&bytes).unwrap_err().contains("NaN or infinity"));
}

#[test]
fn foreign_files_are_refused_by_their_first_bytes() {
    for foreign in [&b""[..], b"\x93NUMPY\x01\0v\0{'descr'", b"PK\x03\x04", &[0; 4096], b"\x89TQK\n\x1a\n"] {
        assert!(read(foreign).unwrap_err().contains("not a .tqk file"));
    }
}

#[test]
fn the_writer_refuses_what_the_format_cannot_carry() {
    let sink = || Cursor::new(Vec::new());
    for blocks in [0, u32::MAX, (1 << 24) / 6 + 1] {
        let result = Writer::new(sink(), header(CodecId::S2, blocks, None));
        assert!(matches!(result, Err(FileError::ChunkSize { .. })), "{blocks}");
    }
    let short = header(CodecId::S2, 2, Some(vec![0.0; DIM - 1]));
    assert!(matches!(Writer::new(sink(), short), Err(FileError::InconsistentHeader(_))));
    let mut writer = Writer::new(sink(), header(CodecId::S2, 2, None)).unwrap();
    assert!(matches!(writer.push(&[0; 5]), Err(FileError::BlockLength { expected: 6, found: 5 })));
}

#[test]
fn an_unfinished_file_leaves_nothing_and_a_finished_one_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tqk");
    let files = || fs::read_dir(folder.path()).unwrap().count();
    let header = header(CodecId::S2, 2, None);
    let mut writer = Writer::create(&path, header.clone()).unwrap();
    for index in 0..3 {
        writer.push(&block(&header, index)).unwrap();
    }
    assert_eq!(files(), 1, "the temporary file");
    drop(writer);
    assert_eq!(files(), 0);

    let mut writer = Writer::create(&path, header.clone()).unwrap();
    writer.push(&block(&header, 0)).unwrap();
    assert!(!path.exists(), "nothing before the commit");
    assert_eq!(writer.commit().unwrap(), 1);
    assert_eq!(files(), 1);
    let view = TqkView::open(&path).unwrap();
    assert_eq!(view.block(0).unwrap(), block(&header, 0));
    assert!(matches!(view.block(1), Err(FileError::OutOfBounds { index: 1, count: 1 })));
    assert!(matches!(view.chunk(1), Err(FileError::OutOfBounds { .. })));
    assert!(TqkView::open(Path::new("/no/such/file")).is_err());
}

#[test]
fn damage_is_found_on_the_first_touch_of_its_chunk_and_nowhere_else() {
    let mut bytes = file(&header(CodecId::S2, 2, None), 6);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let view = TqkView::new(bytes).unwrap();
    assert!(view.block(3).is_ok());
    assert!(matches!(view.block(5), Err(FileError::ChunkCrc(2))));
    assert!(matches!(view.block(4), Err(FileError::ChunkCrc(2))), "not remembered as whole");
    assert!(matches!(view.verify(), Err(FileError::ChunkCrc(2))));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        codec in prop::sample::select(CodecId::ALL),
        dim in prop::sample::select(&[32usize, 64, 96, 128][..]),
        blocks_per_chunk in 1u32..9,
        count in 0u64..40,
        seed: u64,
        mode in prop::sample::select(&ScaleMode::ALL[..]),
        mean in prop::option::of(-1e3f32..1e3),
    ) {
        let options = Options::DEFAULT.seed(seed).scale_mode(mode);
        let codec = AnyCodec::new(codec, dim, options);
        prop_assume!(codec.is_ok());
        let codec = codec.unwrap();
        let mean = mean.map(|m| vec![m; dim]);
        let header = Header { blocks_per_chunk, ..Header::new(&codec, mean) };
        let bytes = file(&header, count);
        let view = TqkView::new(bytes.as_slice()).unwrap();
        prop_assert_eq!(view.header(), &Header { count, ..header.clone() });
        let expected: Vec<u8> = (0..count).flat_map(|index| block(&header, index)).collect();
        prop_assert_eq!(read(&bytes).unwrap(), expected);
    }

    #[test]
    fn any_edit_of_a_whole_file_is_an_error(
        which in 0usize..3,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        junk in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let whole = &small_files()[which];
        let mut bytes = whole.clone();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        bytes.extend(junk);
        prop_assert_eq!(read(&bytes).is_ok(), &bytes == whole);
    }

    #[test]
    fn arbitrary_bytes_behind_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [&b"\x89TQK\r\n\x1a\n"[..], &[1, 0, 0, 0, 48, 0, 0, 0], &tail].concat();
        prop_assert!(read(&bytes).is_err());
    }
}
