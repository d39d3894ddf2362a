//! One tensor of a `.safetensors` file.

use safetensors::tensor::Metadata;
use safetensors::{Dtype as StDtype, SafeTensors};

use super::ArrayError;
use super::layout::{ArrayLayout, Dtype, Float, Whole};

/// Types of vectors.
pub(super) const ACCEPTED: &str = "F64, F32, F16 or BF16";

/// Number of names in an error; the rest is only counted.
const LISTED: usize = 12;

/// Finds tensor `name` in the bytes of a safetensors file.
pub(super) fn layout(bytes: &[u8], name: &str) -> Result<ArrayLayout, ArrayError> {
    let (header, metadata) = metadata(bytes)?;
    let info = metadata.info(name).ok_or_else(|| no_tensor(name, &metadata))?;
    let dtype = match info.dtype {
        StDtype::F64 => Dtype::Float(Float::F64),
        StDtype::F32 => Dtype::Float(Float::F32),
        StDtype::F16 => Dtype::Float(Float::F16),
        StDtype::BF16 => Dtype::Float(Float::Bf16),
        StDtype::BOOL => Dtype::Whole(Whole::new("BOOL", 1, false)),
        StDtype::U8 => Dtype::Whole(Whole::new("U8", 1, false)),
        StDtype::I8 => Dtype::Whole(Whole::new("I8", 1, true)),
        StDtype::U16 => Dtype::Whole(Whole::new("U16", 2, false)),
        StDtype::I16 => Dtype::Whole(Whole::new("I16", 2, true)),
        StDtype::U32 => Dtype::Whole(Whole::new("U32", 4, false)),
        StDtype::I32 => Dtype::Whole(Whole::new("I32", 4, true)),
        StDtype::U64 => Dtype::Whole(Whole::new("U64", 8, false)),
        StDtype::I64 => Dtype::Whole(Whole::new("I64", 8, true)),
        ref other => return Err(ArrayError::Dtype { found: format!("{other:?}"), accepted: ACCEPTED }),
    };
    let (start, end) = info.data_offsets;
    Ok(ArrayLayout { dtype, shape: info.shape.clone(), offset: header + start, len: end - start })
}

/// The error for a file without a tensor name. It lists the names.
pub(super) fn name_needed(bytes: &[u8]) -> Result<ArrayError, ArrayError> {
    let (_, metadata) = metadata(bytes)?;
    Ok(no_tensor("", &metadata))
}

/// Length of the bytes before the elements, and the table of tensors. Both are checked against the bytes.
fn metadata(bytes: &[u8]) -> Result<(usize, Metadata), ArrayError> {
    let damaged = |e: safetensors::SafeTensorError| ArrayError::Safetensors(e.to_string());
    // `deserialize` checks that the elements fill the file exactly; `read_metadata` alone may not.
    SafeTensors::deserialize(bytes).map_err(damaged)?;
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    Ok((header + 8, metadata))
}

fn no_tensor(name: &str, metadata: &Metadata) -> ArrayError {
    let mut names: Vec<_> = metadata.tensors().into_keys().collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let mut available = names.join(", ");
    if more > 0 {
        available.push_str(&format!(" and {more} more"));
    }
    ArrayError::NoTensor { name: name.to_string(), available }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(shape: &[usize], dtype: StDtype, data: &[u8]) -> Vec<u8> {
        let view = safetensors::tensor::TensorView::new(dtype, shape.to_vec(), data).unwrap();
        safetensors::serialize([("k", view)], None).unwrap()
    }

    #[test]
    fn the_layout_points_at_the_elements() {
        let data: Vec<u8> = (0..32).collect();
        let bytes = file(&[2, 2, 4], StDtype::BF16, &data);
        let layout = layout(&bytes, "k").unwrap();
        assert_eq!(layout.dtype, Dtype::Float(Float::Bf16));
        assert_eq!(layout.shape, [2, 2, 4]);
        assert_eq!(bytes[layout.offset..][..layout.len], data);
    }

    #[test]
    fn unknown_names_and_types_say_what_is_accepted() {
        let bytes = file(&[1, 4], StDtype::F32, &[0; 16]);
        let error = layout(&bytes, "v").unwrap_err().to_string();
        assert!(error.contains("'v'") && error.contains("expected one of k"), "{error}");
        let bytes = file(&[1, 4], StDtype::F8_E4M3, &[0; 4]);
        let error = layout(&bytes, "k").unwrap_err().to_string();
        assert!(error.contains("F8_E4M3") && error.contains("BF16"), "{error}");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = file(&[1, 4], StDtype::F32, &[0; 16]);
        for len in 0..bytes.len() {
            assert!(layout(&bytes[..len], "k").is_err(), "{len} bytes");
        }
    }
}
