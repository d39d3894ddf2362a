//! Arrays on disk for the tests.

#![allow(dead_code, reason = "not every test crate needs all of them")]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Coordinates per row.
pub(crate) const DIM: usize = 32;

/// A `.npy` file built by hand in numpy's format.
pub(crate) fn npy(path: &Path, descr: &str, shape: &str, elements: &[u8]) {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(elements);
    fs::write(path, bytes).unwrap();
}

/// Rows of numbers between -1 and 1, equal in every run.
pub(crate) fn values(rows: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as u16) / 32768.0 - 1.0
    };
    (0..rows * DIM).map(|_| next()).collect()
}

/// Numbers as little-endian bytes.
pub(crate) fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A folder with `in.npy` of 50 rows.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    npy(&folder.path().join("in.npy"), "<f4", &format!("(50, {DIM})"), &raw(&values(50)));
    folder
}

/// The names in a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// The elements of a `.npy` file that tqkv wrote.
pub(crate) fn elements(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[start..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
