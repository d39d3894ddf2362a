//! The GPU kernels without a GPU: their bodies on a warp of the CPU, and the committed PTX in an
//! interpreter, against the portable codec and against f64.

mod attention;
mod codes;
mod exact;
mod qjl;
mod scene;
mod warp;
