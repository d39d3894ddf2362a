//! The only list of codecs, and the only list of head dims, that have kernels.
//!
//! Entry points, tests, launches and the audit of the PTX are made from these lists. To give a codec kernels,
//! implement [`Blocks`](crate::format::Blocks) and [`Format`](crate::format::Format) for its type and add it
//! here.

use tqkv_core::CodecId;

/// Passes the codecs with kernels to a macro: `codecs!([my_macro] [arguments])` becomes
/// `my_macro! { [arguments] rows }`. A row is the codec's type in the core, and its name.
#[doc(hidden)]
#[macro_export]
macro_rules! codecs {
    ([$($then:tt)*] $arguments:tt) => {
        $($then)*! { $arguments S2 "s2", S3 "s3", S4 "s4", I8 "i8", T2 "t2", T3 "t3", T4 "t4" }
    };
}

/// Passes the head dims with kernels to a macro, like [`codecs!`].
#[doc(hidden)]
#[macro_export]
macro_rules! head_dims {
    ([$($then:tt)*] $arguments:tt) => {
        $($then)*! { $arguments 64, 128, 256 }
    };
}

macro_rules! codec_constants {
    ([] $($id:ident $name:literal),*) => {
        /// Codecs that have kernels.
        pub const CODECS: [CodecId; [$($name),*].len()] = [$(CodecId::$id),*];
    };
}

macro_rules! head_dim_constants {
    ([] $($dim:literal),*) => {
        /// Head dims that have kernels.
        pub const HEAD_DIMS: [usize; [$($dim),*].len()] = [$($dim),*];
    };
}

codecs!([codec_constants] []);
head_dims!([head_dim_constants] []);

/// `with_codec!(id, dim, C, G => body)` runs the body with a codec's type as `C` and a head dim's number of
/// groups as `G`. Panics if there are no kernels. Every combination is compiled, so it is only for tests.
#[macro_export]
macro_rules! with_codec {
    ($id:expr, $dim:expr, $codec:ident, $groups:ident => $body:expr) => {
        $crate::codecs!([$crate::with_codec_arms] [$id, $dim, $codec, $groups => $body])
    };
}

/// The arms of [`with_codec!`].
#[doc(hidden)]
#[macro_export]
macro_rules! with_codec_arms {
    ([$id:expr, $dim:expr, $codec:ident, $groups:ident => $body:expr] $($of:ident $name:literal),*) => {
        match $id {
            $(tqkv_core::CodecId::$of => {
                type $codec = tqkv_core::code::$of;
                $crate::with_groups!($dim, $groups => $body)
            })*
            other => panic!("{} has no kernels", other.name()),
        }
    };
}

/// `with_groups!(dim, G => body)` runs the body with the number of groups of a head dim as `G`. Panics if
/// there are no kernels.
#[macro_export]
macro_rules! with_groups {
    ($dim:expr, $groups:ident => $body:expr) => {
        $crate::head_dims!([$crate::with_groups_arms] [$dim, $groups => $body])
    };
}

/// The arms of [`with_groups!`].
#[doc(hidden)]
#[macro_export]
macro_rules! with_groups_arms {
    ([$dim:expr, $groups:ident => $body:expr] $($of:literal),*) => {
        match $dim {
            $($of => {
                const $groups: usize = $of / 32;
                $body
            })*
            other => panic!("head dim {other} has no kernels"),
        }
    };
}
