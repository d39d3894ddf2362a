//! Takes bytes as arrays that the command reads. Any bytes are a `.npy` file, and a tensor of a safetensors file. Other files have a correct or nearly correct header. A correct file is read
//! to the bit, and nothing else is accepted.
#![no_main]

mod seeds;

use half::{bf16, f16};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tqkv::file::Bytes;

#[path = "../../host/cli/src/array/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the command uses more of it")]
mod array;

/// The reader's check of names. No name is standard input here.
mod input {
    pub(crate) fn is_stdin(_: &std::path::Path) -> bool {
        false
    }
}

/// Where the writer of arrays writes. No target writes one.
mod target {
    pub(crate) use tqkv::file::AtomicFile as Target;
}

use array::{ArrayError, Vectors};

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Npy(&'a [u8]),
    Safetensors(&'a [u8]),
    Array(Array<'a>),
}

/// A file, field by field.
#[derive(Arbitrary, Debug)]
struct Array<'a> {
    in_safetensors: bool,
    version: u8,
    descr: u8,
    /// A multiple of ten means Fortran order, which is not the default.
    order: u8,
    spaces: u8,
    dims: u8,
    shape: [u16; 3],
    /// Missing bytes, or additional ones.
    off: i8,
    elements: &'a [u8],
}

/// The type's names in `.npy` and in safetensors files, and its bytes. 0 marks types that are not read.
const TYPES: [(&str, &str, usize); 8] = [
    ("<f4", "F32", 4),
    ("<f2", "F16", 2),
    ("<f8", "F64", 8),
    ("<V2", "BF16", 2),
    (">f4", "F8_E4M3", 1),
    ("<i8", "I64", 8),
    ("|b1", "BOOL", 1),
    ("", "U8", 1),
];

fuzz_target!(|input: Input<'_>| {
    match input {
        Input::Npy(bytes) => drop(open(bytes, None)),
        Input::Safetensors(bytes) => drop(open(bytes, Some("k"))),
        Input::Array(array) => array.check(),
    }
});

/// All values, row after row, with the shape of the rows. Rows with values that are not finite become zeros.
fn open(bytes: &[u8], tensor: Option<&str>) -> Option<(Vec<usize>, Vec<f32>)> {
    let vectors = match Vectors::from_bytes(Bytes::Owned(bytes.to_vec()), tensor) {
        Ok(vectors) => vectors,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            seeds::refused(error);
            return None;
        }
    };
    let mut values = vec![0.0; vectors.rows() * vectors.dim()];
    for (i, row) in values.chunks_exact_mut(vectors.dim()).enumerate() {
        if let Err(error) = vectors.read_row(i, row) {
            assert!(matches!(error, ArrayError::NonFinite { row } if row == i), "{error}");
            row.fill(0.0);
        }
    }
    assert_eq!(vectors.shape().iter().product::<usize>(), values.len());
    Some((vectors.shape().to_vec(), values))
}

impl Array<'_> {
    fn check(&self) {
        let (descr, dtype, size) = TYPES[usize::from(self.descr) % TYPES.len()];
        let shape: Vec<usize> =
            self.shape.iter().take(usize::from(self.dims) % 4).map(|n| usize::from(*n) % 40).collect();
        let right = shape.iter().product::<usize>() * size;
        let len = right.saturating_add_signed(self.off.into());
        let bytes: Vec<u8> = self.elements.iter().copied().chain(std::iter::repeat(0)).take(len).collect();
        let is_known = if self.in_safetensors {
            size > 1 && dtype != "I64"
        } else {
            ["<f4", "<f2", "<f8"].contains(&descr)
        };
        let fits = is_known && shape.len() > 1 && shape[shape.len() - 1] > 0 && len == right;
        let got = if self.in_safetensors {
            let info = format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[0,{len}]}}");
            let header = format!("{{\"k\":{info}{}}}", " ".repeat(usize::from(self.spaces)));
            open(&[&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat(), Some("k"))
        } else {
            open(&[self.npy(descr, &shape), bytes.clone()].concat(), None)
        };
        let order = self.in_safetensors || !self.is_fortran();
        let want = (fits && order).then(|| (shape.clone(), values(dtype, shape[shape.len() - 1], &bytes)));
        assert_eq!(got, want, "{descr} {dtype} {shape:?}");
    }

    fn is_fortran(&self) -> bool {
        self.order.is_multiple_of(10)
    }

    /// The head of a `.npy` file of version 1 to 3.
    fn npy(&self, descr: &str, shape: &[usize]) -> Vec<u8> {
        let order = if self.is_fortran() { "True" } else { "False" };
        let tuple: String = shape.iter().map(|n| format!("{n},")).collect();
        let spaces = " ".repeat(usize::from(self.spaces));
        let fields = [
            format!("'descr': '{descr}'"),
            format!("'fortran_order': {order}"),
            format!("'shape':{spaces}({tuple})"),
        ];
        // Keys may come in any order.
        let turned = [0, 1, 2].map(|i| fields[(i + usize::from(self.order)) % 3].clone()).join(",");
        let text = format!("{{{turned}}}{spaces}\n");
        let version = 1 + self.version % 3;
        let mut bytes = [b"\x93NUMPY", &[version, 0][..]].concat();
        if version == 1 {
            bytes.extend((text.len() as u16).to_le_bytes());
        } else {
            bytes.extend((text.len() as u32).to_le_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes
    }
}

/// Elements as f32. Rows with values that are not finite become zeros.
fn values(dtype: &str, dim: usize, bytes: &[u8]) -> Vec<f32> {
    let mut values: Vec<f32> = match dtype {
        "F64" => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        "F32" => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        "F16" => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
    };
    for row in values.chunks_mut(dim) {
        if !row.iter().all(|v| v.is_finite()) {
            row.fill(0.0);
        }
    }
    values
}
