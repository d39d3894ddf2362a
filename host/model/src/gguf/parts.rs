//! The parts of a split model: their names, and whether they belong together.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::File;
use super::config::number;
use crate::checkpoint::TensorSource;
use crate::error::ModelError;

/// The paths of all parts of the model that a file belongs to.
pub(crate) fn names(path: &Path) -> Vec<PathBuf> {
    let split = || {
        let stem = path.file_stem()?.to_str()?;
        let (front, count) = stem.rsplit_once("-of-")?;
        let (name, number) = front.rsplit_once('-')?;
        let five = |text: &str| text.len() == 5 && text.bytes().all(|digit| digit.is_ascii_digit());
        let parts = count.parse::<usize>().ok().filter(|parts| five(count) && five(number) && *parts > 0)?;
        let part = |i: usize| path.with_file_name(format!("{name}-{i:05}-of-{count}.gguf"));
        Some((1..=parts).map(part).collect())
    };
    split().unwrap_or_else(|| vec![path.to_owned()])
}

/// Refuses files that are not the parts of one model in their order, and a tensor that stands twice.
pub(super) fn check(files: &[File<'_>], sources: &[&TensorSource]) -> Result<(), ModelError> {
    let mut seen = HashSet::new();
    for (i, (file, source)) in files.iter().zip(sources).enumerate() {
        check_numbers(file, source, i, files.len())?;
        if let Some(twice) = file.tensors.iter().find(|info| !seen.insert(info.name)) {
            return Err(source.bad(format!("its tensor {} stands twice in the model", twice.name)));
        }
    }
    Ok(())
}

/// Refuses a file that is not the `i`-th of `parts`, counted from 0.
pub(super) fn check_numbers(
    file: &File<'_>,
    source: &TensorSource,
    i: usize,
    parts: usize,
) -> Result<(), ModelError> {
    let all = number(file, "split.count")?.unwrap_or(1).max(1);
    if all != parts {
        let reason = format!("it is one of {all} parts; here are {parts}, found by their names");
        return Err(source.bad(reason));
    }
    match number(file, "split.no")? {
        Some(own) if own != i => {
            let reason = format!("its split.no is {own}: expected {i} in part {} of {parts}", i + 1);
            Err(source.bad(reason))
        }
        None if parts > 1 => Err(source.bad(format!("split.no is missing: expected {i} in it"))),
        _ => Ok(()),
    }
}
