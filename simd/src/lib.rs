//! The tqkv codec and attention kernels on AVX2, AVX-VNNI, AVX-512, NEON and in WebAssembly.
//!
//! [`codec`] runs the float algorithms of `tqkv-core` on wider registers: same source, same bits, entered
//! once per batch of vectors. [`page`] holds the kernels that attend over a cache: int8 scores and sums over
//! pages of codes, several times faster than reading f16. [`products`] multiplies matrices of bytes, for the
//! basis of stored tokens. On a Cortex-M the crate is only the loops that `tqkv-core` calls there.
//!
//! [`Level`] is the instruction set: detected once, passed to every call. Nearly every `unsafe` block relies
//! on one contract: a token proves its instruction set. When not to use it: for single vectors and
//! microcontrollers use `tqkv-core`, for caches use `tqkv`.
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
