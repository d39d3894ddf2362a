//! Tests the GPU kernels without a GPU: their bodies run on an emulated warp, and results are compared with
//! the portable codec and with f64.
//!
//! By default each codec, pair of codecs and launch shape runs at one of the head dims. With
//! `TQKV_EXHAUSTIVE=1` each runs at all of them.

/// `of_each_codec!(encode)` makes one test of `fn encode(id: CodecId)` for each codec that has kernels, such
/// as `encode::S4`.
macro_rules! of_each_codec {
    ($check:ident) => {
        tqkv_gpu_kernels::codecs!([of_each_codec] [$check]);
    };
    ([$check:ident] $($id:ident $name:literal),*) => {
        #[allow(non_snake_case, reason = "codecs have these names")]
        mod $check {
            $(#[test]
            fn $id() {
                super::$check(tqkv_core::CodecId::$id);
            })*
        }
    };
}

mod attention;
mod codes;
mod exact;
mod plan;
mod qjl;
mod rows;
mod scene;
mod units;
mod warp;
