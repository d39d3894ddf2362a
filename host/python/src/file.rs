//! `.tqk` files: encoded vectors on disk, in the format of the command `tqkv`.

use crate::arrays::{Narrow, Values, Vectors, leading, slice_mut, with_dtype, writing, zeros};
use crate::batch;
use crate::codec::Codec;
use crate::errors::{Failure, in_file, refused, refused_in};
use crate::pool;
use numpy::{PyArray1, PyArrayDyn};
use pyo3::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use tqkv::file::{AtomicFile, Bytes, FileError, Header, TqkView, Writer};

/// A mapped file.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct File {
    path: PathBuf,
    view: TqkView<Bytes>,
    codec: Codec,
}

#[pymethods]
impl File {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> Result<Self, Failure> {
        pool::start()?;
        let view = py.detach(|| TqkView::open(&path)).map_err(|error| in_file(&path, error))?;
        let codec = view.header().codec().map_err(|error| in_file(&path, error))?;
        Ok(Self { path, view, codec: Codec::of(codec)? })
    }

    /// The codec with the name, dim and seed of the file's blocks.
    #[getter]
    fn codec(&self) -> Result<Codec, Failure> {
        Codec::of(*self.codec.parts().1)
    }

    #[getter]
    fn mean<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<f32>>> {
        self.view.header().mean.as_ref().map(|mean| PyArray1::from_slice(py, mean))
    }

    fn __len__(&self) -> usize {
        // A mapped file is never longer than the address space.
        usize::try_from(self.view.header().count).unwrap_or(usize::MAX)
    }

    fn blocks<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
        self.check(start, stop)?;
        let bytes = self.view.block_bytes();
        let out = zeros(py, &[stop - start, bytes])?;
        let mut writing = writing(&out)?;
        let to = slice_mut(&mut writing)?;
        py.detach(|| {
            let copy = |blocks: &[u8], at: usize| {
                to[at * bytes..][..blocks.len()].copy_from_slice(blocks);
                Ok(())
            };
            self.runs(start..stop, copy)
        })?;
        drop(writing);
        Ok(out)
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
        dtype: &str,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        with_dtype!(dtype, read_as::<_>(self, py, start..stop))
    }

    fn verify(&self, py: Python<'_>) -> Result<(), Failure> {
        py.detach(|| self.view.verify()).map_err(|error| in_file(&self.path, error))
    }
}

impl File {
    fn check(&self, start: usize, stop: usize) -> Result<(), Failure> {
        let count = self.__len__();
        if start <= stop && stop <= count {
            return Ok(());
        }
        Err(refused(format!("{}: vectors {start} to {stop} of {count}", self.path.display())))
    }

    /// Passes the blocks of a range to `work`, one chunk at a time, with their index in the range.
    fn runs(
        &self,
        range: Range<usize>,
        mut work: impl FnMut(&[u8], usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (per, bytes) = (self.view.header().blocks_per_chunk as usize, self.view.block_bytes());
        let mut next = range.start;
        while next < range.end {
            let chunk = self.view.chunk((next / per) as u64).map_err(|error| in_file(&self.path, error))?;
            let from = next % per;
            let count = (range.end - next).min(chunk.len() / bytes - from);
            work(&chunk[from * bytes..(from + count) * bytes], next - range.start)?;
            next += count;
        }
        Ok(())
    }
}

fn read_as<'py, T: Narrow>(
    file: &File,
    py: Python<'py>,
    range: Range<usize>,
) -> Result<Bound<'py, PyAny>, Failure> {
    pool::start()?;
    file.check(range.start, range.end)?;
    let (dim, bytes) = (file.view.header().dim, file.view.block_bytes());
    let out = zeros::<T>(py, &[range.len(), dim])?;
    let mut writing = writing(&out)?;
    let to = slice_mut(&mut writing)?;
    let mean = file.view.header().mean.as_deref().unwrap_or_default();
    py.detach(|| {
        file.runs(range.clone(), |blocks, at| {
            let to = &mut to[at * dim..][..blocks.len() / bytes * dim];
            batch::decode(file.codec.parts(), blocks, mean, to).map_err(|failed| {
                let block = range.start + at + failed.index;
                refused_in(&format!("{}: block {block}", file.path.display()), failed.error)
            })
        })
    })?;
    drop(writing);
    Ok(out.into_any())
}

/// A file that is being written. It appears complete on commit, or not at all.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct FileWriter {
    path: PathBuf,
    codec: Codec,
    mean: Vec<f32>,
    writer: Mutex<Option<Writer<AtomicFile>>>,
}

#[pymethods]
impl FileWriter {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        codec: &Codec,
        mean: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self, Failure> {
        pool::start()?;
        let codec = *codec.parts().1;
        let mean = match mean {
            None => None,
            Some(mean) => {
                let mean = Vectors::new("mean", mean)?;
                let values = mean.values("mean")?;
                Some(values.wide(0, values.len(), &mut Vec::new()).to_vec())
            }
        };
        let header = Header::new(&codec, mean);
        let kept = header.mean.clone().unwrap_or_default();
        let writer = py.detach(|| Writer::create(&path, header)).map_err(|error| in_file(&path, error))?;
        Ok(Self { path, codec: Codec::of(codec)?, mean: kept, writer: Mutex::new(Some(writer)) })
    }

    fn write(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> Result<(), Failure> {
        pool::start()?;
        let x = Vectors::new("x", x)?;
        leading("x", x.shape(), self.codec.parts().1.dim())?;
        let values = x.values("x")?;
        py.detach(|| self.push(values))
    }

    fn commit(&self, py: Python<'_>) -> Result<u64, Failure> {
        py.detach(|| {
            let Some(writer) = self.lock()?.take() else { return Err(self.closed()) };
            writer.commit().map_err(|error| in_file(&self.path, error))
        })
    }

    fn discard(&self) -> Result<(), Failure> {
        drop(self.lock()?.take());
        Ok(())
    }
}

/// Vectors that are encoded before each write.
const BATCH: usize = 4096;

impl FileWriter {
    fn lock(&self) -> Result<MutexGuard<'_, Option<Writer<AtomicFile>>>, Failure> {
        self.writer.lock().map_err(|_| self.closed())
    }

    fn closed(&self) -> Failure {
        refused_in(&self.path.display().to_string(), "is not being written any more")
    }

    fn push(&self, values: Values<'_>) -> Result<(), Failure> {
        let (_, codec) = self.codec.parts();
        let (dim, bytes) = (codec.dim(), codec.block_bytes());
        let mut lock = self.lock()?;
        let Some(writer) = lock.as_mut() else { return Err(self.closed()) };
        let mut blocks = Vec::new();
        for first in (0..values.len() / dim).step_by(BATCH) {
            let some = BATCH.min(values.len() / dim - first);
            blocks.resize(some * bytes, 0);
            let part = values.part(first * dim, some * dim);
            batch::encode(self.codec.parts(), part, &self.mean, &mut blocks).map_err(|failed| {
                refused_in(&format!("vector {} of x", first + failed.index), failed.error)
            })?;
            let pushed = blocks.chunks_exact(bytes).try_for_each(|block| writer.push(block));
            pushed.map_err(|error: FileError| in_file(&self.path, error))?;
        }
        Ok(())
    }
}
