//! The tqkv codec and attention kernels on AVX2, AVX-VNNI, AVX-512, NEON and in WebAssembly.
//!
//! [`codec`] runs the float algorithms of `tqkv-core` on wider registers: same source, same bits, entered
//! once per batch of vectors. [`page`] holds the kernels that attend over a cache: int8 scores and sums over
//! pages of codes, several times faster than reading f16. [`products`] multiplies matrices of bytes, for the
//! basis of stored tokens. On a Cortex-M the crate is only the loops that `tqkv-core` calls there.
//!
//! [`Level`] is the instruction set: detected once, passed to every call.
//!
//! ```
//! use tqkv_core::{AnyCodec, CodecId, Options};
//! use tqkv_simd::{Level, codec};
//!
//! let level = Level::detect()?;
//! let s4 = AnyCodec::new(CodecId::S4, 128, Options::DEFAULT)?;
//! let keys: Vec<f32> = (0..1000 * 128).map(|i| (i as f32).sin()).collect();
//! let mut blocks = vec![0; 1000 * s4.block_bytes()];
//! codec::encode(level, &s4, &keys, &mut blocks)?; // one call for all vectors
//!
//! let (mut query, mut scores) = (vec![0.0; 128], vec![0.0; 1000]);
//! codec::rotate_queries(level, &s4, &keys[..128], &mut query);
//! codec::scores(level, &s4, &query, &blocks, &mut scores);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read on in [`codec`] for vectors, or in [`page`] for an engine with pages, which `examples/pages.rs`
//! shows. A reader of the source begins with `lines.rs`, which is what an algorithm asks of an instruction
//! set. Nearly every `unsafe` block relies on one contract: a token proves its instruction set. When not to
//! use it: for single vectors and microcontrollers use `tqkv-core`, for caches use `tqkv`.
#![no_std]

#[cfg(feature = "std")]
extern crate std;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(all(target_arch = "arm", target_os = "none", target_has_atomic = "ptr"))]
mod arm;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
pub mod codec;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
mod decode;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
mod level;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
mod lines;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod method;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
pub mod page;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
pub mod products;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
mod shorts;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        all(target_arch = "wasm32", target_feature = "simd128")
    )),
    expect(dead_code, unused_macros, unused_imports, reason = "other machines run the portable search")
)]
mod trellis;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use aarch64::neon::Neon;
#[cfg(all(target_arch = "arm", target_os = "none", target_has_atomic = "ptr"))]
pub use arm::Dsp;
#[cfg(all(target_arch = "arm", target_os = "none", target_has_atomic = "ptr", feature = "helium"))]
pub use arm::Helium;
#[cfg(not(all(target_arch = "arm", target_os = "none")))]
pub use level::{Level, LevelError, LevelName};
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub use wasm::simd128::Simd128;
#[cfg(target_arch = "x86_64")]
pub use x86::{avx2::Avx2, avx512::Avx512};
