//! The GPU kernels without a GPU: their bodies on a warp of the CPU, against the portable codec and against
//! f64.
//!
//! By default each codec, pair of codecs and shape of a launch runs at one of the head dims; with
//! `TQKV_EXHAUSTIVE=1` at all.

/// `of_each_codec!(encode)` makes tests of `fn encode(id: CodecId)`, such as `encode::S4`: one of each codec
/// that has kernels.
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
mod qjl;
mod scene;
mod warp;
