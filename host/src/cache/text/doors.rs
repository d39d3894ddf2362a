//! Which caches have which option: a column of [`super::OPTIONS`].

/// A cache that has some of the options. A sequence in main memory has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Slots in main memory ([`crate::slots::SlotCache`]).
    Slots,
    /// A cache on a GPU (`tqkv_gpu::GpuCache`).
    Gpu,
    /// A layer of Transformers on the model's GPU.
    TorchGpu,
}

impl Door {
    /// All of them, in the order of the column.
    pub const ALL: [Self; 3] = [Self::Slots, Self::Gpu, Self::TorchGpu];
}

/// What a cache makes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    /// It does what the option says.
    Has,
    /// It refuses all but the default.
    Refuses,
    /// Nothing changes there but the error of codes or the time, so any value is taken.
    Ignores,
}

/// Options of every cache.
pub(super) const ALL: [Support; 3] = [Support::Has; 3];
/// Options of a sequence in main memory alone.
pub(super) const SEQUENCE: [Support; 3] = [Support::Refuses; 3];
/// Options of caches in main memory.
pub(super) const MAIN: [Support; 3] = [Support::Has, Support::Refuses, Support::Refuses];
