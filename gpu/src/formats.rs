//! Attention compiled for the formats of one cache.
//!
//! The committed kernels read codes of any format, which an argument selects. In the text for the driver that
//! argument is a constant, so the driver drops the code for other formats. This saves a branch per page and
//! some registers, and leaves a tenth of the code.

use tqkv_core::CodecId;
use tqkv_gpu_kernels::args::Attend;
use tqkv_gpu_kernels::codecs::{CODECS, HEAD_DIMS};
use tqkv_gpu_kernels::page;

/// Names of the codecs that have kernels, for messages.
pub(crate) fn accepted_codecs() -> String {
    CODECS.map(CodecId::name).join(", ")
}

/// The head dims that have kernels, for messages.
pub(crate) fn accepted_head_dims() -> String {
    HEAD_DIMS.map(|dim| dim.to_string()).join(", ")
}

/// The number by which the attention kernel selects the row layout of a codec.
///
/// # Panics
/// The codec is not one of [`crate::CODECS`].
pub fn page_format(codec: CodecId) -> u32 {
    page::format(codec.layout())
}

/// Rewrites a PTX text so that its attention kernel `kernel` reads only these formats of keys and values. A
/// format is a result of [`tqkv_gpu_kernels::page::format`]. Returns `None` unless the kernel reads each
/// format argument exactly once.
pub fn with_formats(text: &str, kernel: &str, formats: [u32; 2]) -> Option<String> {
    let mut text = text.to_owned();
    for (name, format) in ["key_format", "value_format"].into_iter().zip(formats) {
        let parameter = Attend::<()>::PARAMETERS.iter().position(|(parameter, _)| *parameter == name)?;
        let source = format!(", [{kernel}_param_{parameter}];");
        let (before, after) = text.split_once(&source)?;
        // `ld.param.b32 %r1` becomes `mov.b32 %r1`.
        let start = before.rfind('\n')? + 1;
        let (load, register) = before[start..].rsplit_once(['\t', ' '])?;
        if !matches!(load.trim(), "ld.param.b32" | "ld.param.u32") || after.contains(&source) {
            return None;
        }
        text = format!("{}\tmov.b32 \t{register}, {format};{after}", &before[..start]);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CODECS, HEAD_DIMS};
    use tqkv_gpu_kernels::{attend, page};

    #[test]
    fn every_attention_kernel_reads_each_format_once() {
        let text = include_str!("../ptx/sm_80.ptx");
        let formats = CODECS.map(|id| page::format(id.layout())).into_iter().chain([page::HALF_BITS]);
        for (format, dim, group) in formats
            .flat_map(|format| HEAD_DIMS.map(|dim| (format, dim)))
            .flat_map(|(f, d)| [1, 2, 8].map(|g| (f, d, g)))
        {
            let (name, heads) = attend::kernel([format; 2], group, dim);
            let name = format!("{name}_d{dim}_r{heads}");
            let fixed = with_formats(text, &name, [format; 2]).expect(&name);
            assert_eq!(fixed.lines().count(), text.lines().count());
            let changed: Vec<_> = text.lines().zip(fixed.lines()).filter(|(old, new)| old != new).collect();
            assert_eq!(changed.len(), 2, "{name}");
            for (old, new) in changed {
                assert!(old.contains("ld.param") && old.contains(&name), "{old}");
                let register = old.split_whitespace().nth(1).unwrap();
                let words: Vec<_> = new.split_whitespace().collect();
                assert_eq!(words, ["mov.b32", register, &format!("{format};")], "{name}");
            }
            assert_eq!(with_formats(&fixed, &name, [format; 2]), None, "they are constants already");
        }
        assert_eq!(with_formats(text, "attend_merge_d64", [2, 2]), None);
    }
}
