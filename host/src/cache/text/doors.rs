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
    /// The attention back end of vLLM, whose engine says what belongs to the model.
    Vllm,
}

impl Door {
    /// All of them, in the order of the column.
    pub const ALL: [Self; 4] = [Self::Slots, Self::Gpu, Self::TorchGpu, Self::Vllm];

    /// The name in the headings of docs/options.md, and in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Gpu => "GPU",
            Self::TorchGpu => "device",
            Self::Vllm => "vLLM",
        }
    }
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
pub(super) const ALL: [Support; 4] = [Support::Has; 4];
/// Options of a sequence in main memory alone.
pub(super) const SEQUENCE: [Support; 4] = [Support::Refuses; 4];
/// Options of caches in main memory.
pub(super) const MAIN: [Support; 4] = [Support::Has, Support::Refuses, Support::Refuses, Support::Refuses];
