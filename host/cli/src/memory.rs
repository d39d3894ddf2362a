//! Memory use of the command.

use serde::Serialize;
use tqkv_model::Model;

use crate::output::{bytes, grouped};

/// Peak resident bytes; `None` on systems other than Linux.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Memory of a run. What weights and caches leave of the peak are activations and the program.
#[derive(Serialize)]
pub(crate) struct Memory {
    /// Bytes of weights in memory, those of streamed layers for two of them. Weights that stay in their file are a part
    /// of the peak where they were read.
    weight_bytes: u64,
    /// Bytes of the embedding, the output head and other weights outside the layers.
    embedding_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_resident_bytes: Option<u64>,
}

impl Memory {
    pub(crate) fn of(model: &Model) -> Self {
        let weights = model.weight_bytes();
        Self {
            weight_bytes: if model.is_streamed() { weights.streamed() } else { weights.all },
            embedding_bytes: weights.beside,
            peak_resident_bytes: peak_resident_bytes(),
        }
    }

    /// The memory as a line of text.
    pub(crate) fn line(&self) -> String {
        let weights = format!(
            "{} of weights, {} of them outside the layers",
            bytes(self.weight_bytes),
            grouped(self.embedding_bytes)
        );
        match self.peak_resident_bytes {
            Some(peak) => format!("\npeak memory {}, with {weights}", bytes(peak)),
            None => format!("\n{weights}"),
        }
    }
}
