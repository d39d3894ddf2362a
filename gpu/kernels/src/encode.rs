//! `encode_append`: encodes head vectors and scatters the codes to pages, one warp per vector. As f16 they are
//! only rotated.

use crate::args::EncodeAppend;
use crate::format::Format;
use crate::page;
use crate::threads::{Threads, divide, first, load_f32, load_half};
use crate::viterbi::workspace_bytes;
use crate::warp::{Lane, Warp};
use tqkv_core::unstable::machine::Lanes;
use tqkv_core::unstable::{StoredScale, rotation, scalar};
use tqkv_core::{Effort, ScaleMode};

/// Element type of input and output rows.
pub mod element {
    /// 32-bit floats.
    pub const F32: u32 = 0;
    /// Half precision.
    pub const F16: u32 = 1;
    /// bfloat16.
    pub const BF16: u32 = 2;

    /// Bytes per element.
    #[inline(always)]
    pub const fn bytes(kind: u32) -> u32 {
        if kind == F32 { 4 } else { 2 }
    }
}

/// The outcome of encoding a vector.
pub mod status {
    /// Encoded.
    pub const DONE: u32 = 0;
    /// The vector holds NaN or infinity; zeros were written.
    pub const NON_FINITE: u32 = 1;
    /// The scale does not fit f16; zeros were written.
    pub const OUT_OF_RANGE: u32 = 2;
    /// The place is beyond the pool; nothing was written.
    pub const NO_PLACE: u32 = 3;
}

/// Codes of the scale modes.
mod mode {
    use tqkv_core::ScaleMode;

    pub(super) const RAW: u32 = ScaleMode::Raw.code() as u32;
    pub(super) const PRESERVING: u32 = ScaleMode::Preserving.code() as u32;
    pub(super) const UNBIASED: u32 = ScaleMode::Unbiased.code() as u32;
}

/// The kernel's matches on mode and effort have a last arm that stands for one value.
const _: () = assert!(ScaleMode::ALL.len() == 4 && Effort::ALL.len() == 3, "a mode or effort without an arm");

/// The rows of a token, if tokens are `stride` elements apart.
#[inline(always)]
pub(crate) fn rows_of<T: Threads>(rows: T::Memory, token: u32, stride: u32, kind: u32) -> T::Memory {
    T::at(rows, u64::from(token) * u64::from(stride) * u64::from(element::bytes(kind)))
}

/// Loads row `row` of `32 * G` elements.
#[inline(always)]
pub(crate) fn load_row<T: Threads, const G: usize>(rows: T::Memory, row: u32, kind: u32) -> [Lane<T>; G] {
    let row = T::at(rows, u64::from(row) * u64::from(32 * G as u32 * element::bytes(kind)));
    let mut y = [Lane(T::splat(0.0)); G];
    for (g, v) in y.iter_mut().enumerate() {
        v.0 = load_element::<T>(row, kind, |size| T::map(T::lane(), |lane| (32 * g as u32 + lane) * size));
    }
    y
}

/// Loads the element of each thread. `at` gives their offsets for a size of elements.
#[inline(always)]
pub(crate) fn load_element<T: Threads>(
    row: T::Memory,
    kind: u32,
    at: impl Fn(u32) -> T::Of<u32>,
) -> T::Of<f32> {
    match kind {
        element::F32 => load_f32::<T>(row, at(4)),
        element::F16 => load_half::<T>(row, at(2)),
        _ => T::map(T::load_u16(row, at(2)), |bits| f32::from_bits(u32::from(bits) << 16)),
    }
}

/// y = H diag(signs) x. `signs` holds one word of sign bits per group.
#[inline(always)]
pub(crate) fn rotate<T: Threads, const G: usize>(signs: T::Memory, y: &mut [Lane<T>; G]) {
    for (g, v) in y.iter_mut().enumerate() {
        *v = v.flip(T::read(signs, 4 * g as u32));
    }
    rotation::sylvester(y, 32 * G);
}

/// 0 if every lane is finite, else NaN: 0 v is 0 for finite values and NaN for others.
#[inline(always)]
pub(crate) fn zero_if_finite<T: Threads, const G: usize>(y: &[Lane<T>; G]) -> f32 {
    let zero = Lane(T::splat(0.0));
    y.iter().fold(zero, |sum, &v| sum + zero * v).sum()
}

/// Writes a block of zeros, so that a slot never keeps the codes of a token that it held before.
#[inline(always)]
fn store_zero<T: Threads>(home: T::Memory, row: u32, row_bytes: u32, scale: Option<u32>) {
    let mut first = 0;
    while first < row_bytes {
        let at = T::map(T::lane(), |lane| first + 4 * lane);
        let active = T::map(at, |at| at < row_bytes);
        T::store::<1>(home, T::map(at, |at| row + at), T::splat([0]), active);
        first += 128;
    }
    if let Some(scale) = scale {
        T::store_u16(home, T::splat(scale), T::splat(0), self::first::<T>());
    }
}

/// Encodes vector `warp` of `tokens * num_kv_heads` and writes it to its slot. A vector that cannot be encoded
/// becomes zeros, and is reported.
#[inline(always)]
pub fn encode_append<T: Threads, F: Format<G>, const G: usize>(warp: u32, args: EncodeAppend<T::Memory>) {
    let EncodeAppend { token_stride, kind, tokens, num_kv_heads, signs, .. } = args;
    if warp >= tokens * num_kv_heads {
        return;
    }
    let (token, head) = divide(warp, num_kv_heads);
    let report = |value: u32| {
        let outcome = T::at(args.outcome, 4 * u64::from(warp));
        T::store::<1>(outcome, T::splat(0), T::splat([value]), first::<T>());
        if value != status::DONE {
            T::store::<1>(args.refused, T::splat(0), T::splat([1]), first::<T>());
        }
    };
    let (place, high) = (T::read(args.slots, 8 * token), T::read(args.slots, 8 * token + 4));
    let (page, slot) = (place / page::SLOTS, place % page::SLOTS);
    if high != 0 || page > args.last_page {
        report(if high >> 31 != 0 { status::DONE } else { status::NO_PLACE });
        return;
    }
    let dim = 32 * G as u32;
    let home = T::at(args.pool, page::head_offset(page, args.stride, head, dim, F::BITS));
    let row_bytes = page::row_bytes(dim, F::BITS);
    let row = slot * row_bytes;
    let scale_at = page::has_scales(F::BITS).then(|| page::scale_offset(dim, F::BITS, slot));
    let refuse = |value: u32| {
        store_zero::<T>(home, row, row_bytes, scale_at);
        report(value);
    };
    let mut y = load_row::<T, G>(rows_of::<T>(args.rows, token, token_stride, kind), head, kind);
    let norm_squared = scalar::norm_squared(Warp::<T>::new(), &y);
    if !norm_squared.is_finite() {
        refuse(if zero_if_finite(&y) == 0.0 { status::OUT_OF_RANGE } else { status::NON_FINITE });
        return;
    }
    rotate(signs, &mut y);
    // The last arm of each match stands for one value, so an unknown value must not exist.
    const { assert!(ScaleMode::ALL.len() == 4 && Effort::ALL.len() == 3, "a row for each") };
    let mode = match args.mode {
        mode::RAW => ScaleMode::Raw,
        mode::PRESERVING => ScaleMode::Preserving,
        mode::UNBIASED => ScaleMode::Unbiased,
        _ => ScaleMode::Mmse,
    };
    let effort = match args.effort {
        0 => Effort::Fast,
        1 => Effort::Default,
        _ => Effort::Best,
    };
    let workspace = T::at(args.workspace, u64::from(warp) * u64::from(workspace_bytes(dim)));
    let scale = match F::encode(norm_squared, mode, effort, &y, workspace, home, row) {
        StoredScale::OutOfRange => {
            refuse(status::OUT_OF_RANGE);
            return;
        }
        StoredScale::Scale(scale) => scale.to_bits(),
        StoredScale::Zero => 0,
    };
    if let Some(at) = scale_at {
        T::store_u16(home, T::splat(at), T::splat(scale), first::<T>());
    }
    report(status::DONE);
}
