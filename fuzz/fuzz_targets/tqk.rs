//! Takes arbitrary bytes as a `.tqk` file, unchanged and with corrected checksums. Streaming and random
//! access never panic and agree on the contents. A file that is written again is the same file.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use tqkv::file::{Reader, TqkView, Writer};

fuzz_target!(|data: &[u8]| {
    check(data);
    check(&mended(data));
});

fn check(data: &[u8]) {
    let streamed = stream(data);
    let viewed = TqkView::new(data).ok().and_then(|view| {
        view.verify().ok()?;
        let blocks = view.header().count.min(1 << 16);
        (0..blocks).map(|i| view.block(i).ok().map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>()
    });
    if let (Some(streamed), Some(viewed)) = (&streamed, &viewed) {
        assert_eq!(*streamed, viewed.concat());
        let header = TqkView::new(data).expect("it was read before").header().clone();
        let mut writer = Writer::new(Cursor::new(Vec::new()), header).expect("a header that was read");
        viewed.iter().for_each(|block| writer.push(block).expect("a block that was read"));
        let (written, _) = writer.finish().expect("memory takes every byte");
        // Unused bytes are written as zeros.
        assert_eq!(stream(written.get_ref()).as_ref(), Some(streamed));
    }
    assert_eq!(streamed.is_some(), viewed.is_some(), "both readers accept a file or neither");
    if streamed.is_none() {
        seeds::refused("by both readers");
    }
}

/// The file with corrected CRCs of its header and its chunks, if its fields give their places.
fn mended(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let field = |bytes: &[u8], at: usize| {
        let field = bytes.get(at..at + 4).and_then(|field| field.first_chunk());
        field.map_or(0, |field| u32::from_le_bytes(*field) as usize)
    };
    let (header, block) = (field(data, 12), field(data, 20));
    let mut start = right(&mut bytes, 0, header.wrapping_sub(4));
    while let Some(at) = start {
        let blocks = field(&bytes, at + 8);
        start = right(&mut bytes, at, (at + 12).saturating_add(blocks.saturating_mul(block)));
    }
    bytes
}

/// Writes the CRC-32 of a range after it, if both are inside. Returns the end of the CRC.
fn right(bytes: &mut [u8], start: usize, end: usize) -> Option<usize> {
    let crc = crc32fast::hash(bytes.get(start..end)?).to_le_bytes();
    let behind = end.checked_add(4)?;
    bytes.get_mut(end..behind)?.copy_from_slice(&crc);
    Some(behind)
}

/// All blocks of the file, decoded on the way; `None` if it is refused.
fn stream(data: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(data).ok()?;
    let codec = reader.header().codec().ok()?;
    let (mut all, mut out) = (Vec::new(), vec![0.0; codec.dim()]);
    while let Some(chunk) = reader.next_chunk().ok()? {
        for block in chunk.chunks_exact(codec.block_bytes()) {
            let _ = codec.decode(block, &mut out);
        }
        all.extend_from_slice(chunk);
    }
    Some(all)
}
