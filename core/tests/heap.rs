//! The codec takes no memory from the heap.
// A binary of its own: the counter replaces the allocator of the whole program.
#![allow(missing_docs, reason = "a test crate")]

use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_tests::inputs::Gaussian;

#[test]
fn encode_decode_and_attention_allocate_nothing() {
    let x = Gaussian::new(1).vector(128);
    for &id in CodecId::ALL {
        let codec = AnyCodec::new(id, 128, Options::DEFAULT).unwrap();
        let (mut block, mut out, mut score) = (vec![0; codec.block_bytes()], vec![0.0; 128], [0.0]);
        let count = allocation_counter::measure(|| {
            codec.encode(&x, &mut block).unwrap();
            codec.decode(&block, &mut out).unwrap();
            codec.rotate_query(&x, &mut out);
            codec.scores(&out, &block, &mut score);
            codec.accumulate(&score, &block, &mut out);
            codec.unrotate(&mut out);
        });
        assert_eq!(count.count_total, 0, "{}", codec.id().name());
    }
    let control = allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 64])));
    assert!(control.count_total > 0, "the counter counts");
}
