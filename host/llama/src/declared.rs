//! The types that a cache may be declared as (`-ctk`, `-ctv`), and which codecs then hold it.
//!
//! A declared type is a promise about bytes and an exchange format. The store holds codes that take no more
//! bytes per vector than the type does. Bytes that the host reads or writes, such as those of a saved state,
//! are rows of the type.

#![allow(unsafe_code, reason = "the host converts rows of its own types")]

use crate::host::{self, Convert};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ffi::c_int;
use tqkv::CodecId;
use tqkv::unstable::slots::SlotStore;

/// Most rows that are converted at once when a range of bytes is read or written.
const TOGETHER: usize = 128;

/// The number of a type in every version of ggml, its name, and the codec of vectors declared so; none for the
/// codecs of the default policy.
///
/// A cache of f32 is not among them: the host attends to a copy of it.
pub const TYPES: [(c_int, &str, Option<CodecId>); 8] = [
    (1, "f16", None),
    (30, "bf16", None),
    (8, "q8_0", Some(CodecId::I8)),
    (7, "q5_1", Some(CodecId::S5)),
    (6, "q5_0", Some(CodecId::S5)),
    (3, "q4_1", Some(CodecId::T4)),
    (2, "q4_0", Some(CodecId::T4)),
    (20, "iq4_nl", Some(CodecId::T4)),
];

/// A type of the host that a cache may be declared as.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Codec of vectors that are declared so; none for the default policy's.
    pub codec: Option<CodecId>,
    /// Values per block of the type.
    pub block: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    form: DeclaredForm,
}

/// How rows are converted.
#[derive(Clone, Copy, Debug)]
enum DeclaredForm {
    /// Rows are bits of f16.
    Half,
    /// The host converts.
    Other(Convert),
}

impl Declared {
    /// The type with number `kind`; none if no cache is served that is declared so.
    pub fn of(kind: c_int) -> Option<Self> {
        let (_, name, codec) = *TYPES.iter().find(|(number, ..)| *number == kind)?;
        match name {
            "f16" => Some(Self { codec, block: 1, block_bytes: size_of::<f16>(), form: DeclaredForm::Half }),
            _ => {
                let of_host = host::host().ok()?.format(kind, name)?;
                let (block, block_bytes) = (of_host.block, of_host.block_bytes);
                Some(Self { codec, block, block_bytes, form: DeclaredForm::Other(of_host.convert) })
            }
        }
    }

    /// Bytes of `values` values; none if they are no whole number of blocks.
    pub fn bytes(&self, values: usize) -> Option<usize> {
        values.is_multiple_of(self.block).then(|| values / self.block * self.block_bytes)
    }

    /// Converts whole blocks to values. Slices of lengths that do not fit leave the values as they are.
    pub fn read(&self, bytes: &[u8], values: &mut [f16]) {
        if self.bytes(values.len()) != Some(bytes.len()) {
            return;
        }
        match self.form {
            DeclaredForm::Half => {
                let halves = bytes.as_chunks::<2>().0;
                values.iter_mut().zip(halves).for_each(|(x, half)| *x = f16::from_ne_bytes(*half));
            }
            DeclaredForm::Other(convert) => {
                let mut wide = vec![0.0; values.len()];
                // SAFETY: the bytes are exactly the blocks of `values.len()` values, as checked above.
                unsafe { convert.to_f32(bytes, &mut wide) };
                values.convert_from_f32_slice(&wide);
            }
        }
    }

    /// Converts values to whole blocks. Slices of lengths that do not fit leave the bytes as they are.
    pub fn write(&self, values: &[f16], bytes: &mut [u8]) {
        if self.bytes(values.len()) != Some(bytes.len()) {
            return;
        }
        match self.form {
            DeclaredForm::Half => {
                let halves = bytes.as_chunks_mut::<2>().0;
                halves.iter_mut().zip(values).for_each(|(half, x)| *half = x.to_ne_bytes());
            }
            DeclaredForm::Other(convert) => {
                let mut wide = vec![0.0; values.len()];
                values.convert_to_f32_slice(&mut wide);
                // SAFETY: as in `read`, in the other direction.
                unsafe { convert.from_f32(&wide, bytes) };
            }
        }
    }

    /// Reads bytes of a store from `offset` on, as they would lie in the declared tensor.
    pub fn read_bytes(&self, store: &SlotStore, offset: usize, out: &mut [u8]) {
        let Some(row_bytes) = self.bytes(store.width()) else { return };
        let mut done = 0;
        while done < out.len() {
            let (row, skip) = ((offset + done) / row_bytes, (offset + done) % row_bytes);
            let count = (skip + out.len() - done).div_ceil(row_bytes).min(TOGETHER);
            let bytes = self.rows(store, row, count);
            let now = (bytes.len() - skip).min(out.len() - done);
            out[done..done + now].copy_from_slice(&bytes[skip..skip + now]);
            done += now;
        }
    }

    /// Rows of a store as bytes of the type.
    fn rows(&self, store: &SlotStore, first: usize, count: usize) -> Vec<u8> {
        let mut values = vec![f16::ZERO; count * store.width()];
        store.read(first, &mut values);
        let mut bytes = vec![0; self.bytes(values.len()).unwrap_or(0)];
        self.write(&values, &mut bytes);
        bytes
    }

    /// Writes bytes to a store from `offset` on. A row that already reads back as these bytes stays as it is,
    /// exact or code. Rows of f16 that [`Declared::read_bytes`] gave become the same codes again in a stream
    /// that has no codes.
    pub fn write_bytes(&self, store: &mut SlotStore, offset: usize, bytes: &[u8]) {
        let Some(row_bytes) = self.bytes(store.width()) else { return };
        let (first, end) = (offset / row_bytes, (offset + bytes.len()).div_ceil(row_bytes).min(store.rows()));
        let mut values = vec![f16::ZERO; store.width()];
        for from in (first..end).step_by(TOGETHER) {
            let to = end.min(from + TOGETHER);
            let held = self.rows(store, from, to - from);
            let mut wanted = held.clone();
            let start = offset.saturating_sub(from * row_bytes);
            let skipped = (from * row_bytes).saturating_sub(offset);
            let now = bytes.get(skipped..).unwrap_or_default();
            wanted[start..].iter_mut().zip(now).for_each(|(to, byte)| *to = *byte);
            let rows = held.chunks_exact(row_bytes).zip(wanted.chunks_exact(row_bytes));
            for (row, (_, wanted)) in (from..to).zip(rows).filter(|(_, (held, wanted))| held != wanted) {
                self.read(wanted, &mut values);
                store.write(row, &values);
            }
        }
        store.cool_restored();
    }
}
