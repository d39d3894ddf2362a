//! Arbitrary bytes as a `.tqk` file: streaming and random access never panic and agree on what the file holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tqkv::file::{Reader, TqkView};

fuzz_target!(|data: &[u8]| {
    let streamed = stream(data);
    let viewed = TqkView::new(data).ok().and_then(|view| {
        view.verify().ok()?;
        let blocks = view.header().count.min(1 << 16);
        (0..blocks).map(|i| view.block(i).ok().map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>()
    });
    if let (Some(streamed), Some(viewed)) = (&streamed, &viewed) {
        assert_eq!(*streamed, viewed.concat());
    }
    assert_eq!(streamed.is_some(), viewed.is_some(), "both readers accept a file or neither");
});

/// All blocks of the file, decoded on the way; `None` where it is refused.
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
