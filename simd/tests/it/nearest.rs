//! The codes and levels that an instruction set finds for values on the boundaries and next to them.

use crate::common::of_each_level;
use tqkv_core::unstable::codebook::Codebook;
use tqkv_core::unstable::machine::Memory;
use tqkv_core::{CodecId, HEAD_DIMS, Portable};
use tqkv_simd::Level;

of_each_level!(ties_have_the_portable_codes);

/// The encoder assumes norms from the root of the smallest number to that of the largest.
const NORMS: [f32; 6] = [3.8e-23, 1e-15, 0.93, 1.0, 12.345, 1.8e19];

fn ties_have_the_portable_codes(level: Level) {
    let books = HEAD_DIMS.iter().flat_map(|&dim| CodecId::ALL.iter().map(move |id| (dim, id.codebook(dim))));
    for (dim, book) in books.filter_map(|(dim, book)| Some((dim, book?))) {
        for norm in NORMS {
            let values = values(book, norm);
            let what = format!("{} {dim} {} bits at norm {norm}", level.name().name(), book.bits());
            for values in values.as_chunks().0 {
                assert_eq!(
                    found(level, book, norm, values),
                    portable(book, norm, values),
                    "{what} {values:?}"
                );
            }
        }
    }
}

/// Every boundary and edge of a bin with the numbers next to it, zeros, and the smallest and largest numbers.
fn values(book: &Codebook, norm: f32) -> Vec<f32> {
    let half = 1 << (book.bits() - 1);
    let largest = book.boundaries().last().copied().unwrap_or(0.0) * norm;
    let edges = (0..=2 * half).map(|k| (k as f32 - half as f32 - 0.5) * largest / half as f32);
    let mut values: Vec<f32> = book.boundaries().iter().map(|b| b * norm).chain(edges).collect();
    values.extend([0.0, 1e-45, f32::MIN_POSITIVE, 1e-20 * norm, 5.0 * norm, 100.0 * norm]);
    values.extend(values.clone().into_iter().flat_map(|v| [v.next_up(), v.next_down()]));
    values.extend(values.clone().into_iter().map(|v| -v));
    values.resize(values.len().next_multiple_of(32), -0.0);
    values
}

/// Packed codes and the bits of levels.
type Found = (Vec<u8>, [u32; 32]);

fn found(level: Level, book: &Codebook, norm: f32, values: &[f32; 32]) -> Found {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(isa) => apart(isa, book, norm, values),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni(isa) => apart(isa, book, norm, values),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(isa) => apart(isa, book, norm, values),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(isa) => apart(isa, book, norm, values),
        #[cfg(target_arch = "aarch64")]
        Level::NeonDot(isa) => apart(isa, book, norm, values),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128(isa) => apart(isa, book, norm, values),
        _ => portable(book, norm, values),
    }
}

fn portable(book: &Codebook, norm: f32, values: &[f32; 32]) -> Found {
    apart(Portable, book, norm, values)
}

fn apart<I: Memory>(isa: I, book: &Codebook, norm: f32, values: &[f32; 32]) -> Found {
    isa.apart(
        #[inline(always)]
        |isa| match book.bits() {
            1 => nearest::<I, 1>(isa, book, norm, values),
            2 => nearest::<I, 2>(isa, book, norm, values),
            3 => nearest::<I, 3>(isa, book, norm, values),
            4 => nearest::<I, 4>(isa, book, norm, values),
            _ => nearest::<I, 5>(isa, book, norm, values),
        },
    )
}

#[inline(always)]
fn nearest<I: Memory, const BITS: usize>(isa: I, book: &Codebook, norm: f32, values: &[f32; 32]) -> Found {
    let (mut boundaries, mut table) = ([0.0; 32], [0.0; 32]);
    boundaries[..book.boundaries().len()].copy_from_slice(book.boundaries());
    for (level, &byte) in table.iter_mut().zip(book.bytes()) {
        *level = f32::from(byte);
    }
    let boundaries = isa.scaled::<BITS>(&boundaries, norm);
    let (codes, levels) = isa.nearest::<BITS>(isa.load(values), &boundaries, &table);
    let (mut bytes, mut stored) = (vec![0; 4 * BITS], [0.0; 32]);
    isa.write_codes::<BITS>(codes, &mut bytes);
    isa.store(levels, &mut stored);
    (bytes, stored.map(f32::to_bits))
}
