//! What the Python package `tqkv` calls: NumPy arrays in, NumPy arrays out, the interpreter released meanwhile.
//!
//! Private to the package: its Python modules are what is documented, and take other arrays and tensors as well. Every
//! argument is checked here nevertheless, so that nothing that Python passes ends in more than an exception.

mod arrays;
mod batch;
mod cache;
mod codec;
#[cfg(feature = "cuda")]
mod dlpack;
mod errors;
mod file;
#[cfg(feature = "cuda")]
mod gpu;
mod pool;
mod spec;
mod storage;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::cache::Cache;
    #[pymodule_export]
    use super::codec::Codec;
    #[pymodule_export]
    use super::errors::TqkvError;
    #[pymodule_export]
    use super::file::{File, FileWriter};
    #[cfg(feature = "cuda")]
    #[pymodule_export]
    use super::gpu::GpuCache;
    #[pymodule_export]
    use super::storage::{Basis, Learner, Storage};
}
