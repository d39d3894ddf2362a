//! Comparison of two `.tqk` files.

use std::path::Path;

use rayon::prelude::*;
use tqkv::Level;
use tqkv::file::{Bytes, Header, TqkView};
use tqkv_cli::error::CliError;
use tqkv_core::AnyCodec;

use super::{Alike, Figures};

/// Vectors per decoded batch.
const BATCH: u64 = 1024;

/// One of the two files.
struct File<'a> {
    path: &'a Path,
    view: TqkView<Bytes>,
    codec: AnyCodec,
}

impl<'a> File<'a> {
    fn open(path: &'a Path) -> Result<Self, CliError> {
        let view = TqkView::open(path).map_err(|e| CliError::file(path, &e))?;
        let codec = view.header().codec().map_err(|e| CliError::file(path, &e))?;
        Ok(Self { path, view, codec })
    }

    fn blocks(&self, from: u64, to: u64) -> Result<Vec<u8>, CliError> {
        let mut blocks = Vec::with_capacity((to - from) as usize * self.view.block_bytes());
        for index in from..to {
            blocks.extend(self.view.block(index).map_err(|e| CliError::file(self.path, &e))?);
        }
        Ok(blocks)
    }

    fn decode(&self, level: Level, blocks: &[u8]) -> Result<Vec<f32>, CliError> {
        let Header { dim, mean, .. } = self.view.header();
        let mut values = vec![0.0; blocks.len() / self.view.block_bytes() * dim];
        tqkv_simd::codec::decode(level, &self.codec, blocks, &mut values).map_err(|failed| {
            CliError::bad_input(format_args!("{}: {}", self.path.display(), failed.error))
        })?;
        if let Some(mean) = mean {
            for row in values.chunks_exact_mut(*dim) {
                row.iter_mut().zip(mean).for_each(|(x, m)| *x += m);
            }
        }
        Ok(values)
    }
}

/// Compares the files vector by vector. Any thread calls `progress` with the number of vectors done since its
/// last call.
///
/// # Errors
/// A file that cannot be read, or files that differ in the length or number of vectors or have none.
pub(crate) fn files(
    level: Level,
    [a, b]: [&Path; 2],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Figures, CliError> {
    let (a, b) = (File::open(a)?, File::open(b)?);
    let (left, right) = (a.view.header(), b.view.header());
    let unlike = |what: &str, left: u64, right: u64| {
        CliError::bad_input(format_args!(
            "{} has {left} {what}, {} has {right}: expected files of the same vectors",
            a.path.display(),
            b.path.display()
        ))
    };
    if left.dim != right.dim {
        return Err(unlike("coordinates per vector", left.dim as u64, right.dim as u64));
    }
    if left.count != right.count {
        return Err(unlike("vectors", left.count, right.count));
    }
    if left.count == 0 {
        return Err(CliError::bad_input(format_args!("{}: there are no vectors in it", a.path.display())));
    }
    let same_codes = left.codec == right.codec
        && left.mean == right.mean
        && (left.seed == right.seed || !left.codec.is_rotated());
    let batches = (0..left.count.div_ceil(BATCH)).into_par_iter();
    let parts: Vec<Result<Alike, CliError>> = batches
        .map(|batch| {
            let (from, to) = (batch * BATCH, ((batch + 1) * BATCH).min(left.count));
            let (x, y) = (a.blocks(from, to)?, b.blocks(from, to)?);
            let mut alike = Alike::default();
            if same_codes {
                alike.blocks(&a.codec, &x, &y);
            }
            alike.rows(left.dim, &a.decode(level, &x)?, &b.decode(level, &y)?);
            progress(to - from);
            Ok(alike)
        })
        .collect();
    // In order, so that the sums do not depend on the number of threads.
    let mut alike = Alike::default();
    for part in parts {
        alike.add(&part?);
    }
    Ok(alike.figures())
}
