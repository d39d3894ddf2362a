//! The kernels of eight query heads per warp against those of four.

use crate::{Batch, attend_by, text};
use tqkv_core::CodecId::{I8, S2, S3, S4};

#[test]
fn eight_heads_at_once_are_four_heads_to_the_bit() {
    let text = &text();
    let batch = Batch { num_kv_heads: 2, lengths: &[70, 0, 150] };
    let one = Batch { num_kv_heads: 1, lengths: &[129] };
    for (dim, codecs, group, batch) in [
        (64, (S4, S2), 8, &batch),
        (64, (I8, S3), 5, &one),
        (128, (S2, S4), 11, &one),
        (128, (S3, S4), 6, &batch),
        (128, (I8, I8), 8, &one),
    ] {
        let by = |heads| attend_by(text, dim, codecs, (("attend_tensor", heads), group), batch);
        let (four, eight) = (by(4), by(8));
        assert!(four.iter().any(|v| *v != 0.0));
        assert_eq!(eight, four, "{codecs:?}, dim {dim}, group {group}");
    }
}
