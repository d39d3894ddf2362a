//! The figures of an image, and the budget that it must keep.

use super::machine::{Machine, Result, folder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Instruction counts, under the names of the images' log lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Instructions {
    pub(super) encode: u64,
    pub(super) encode_from_i8: u64,
    pub(super) decode: u64,
    pub(super) score: u64,
    pub(super) attend_64: u64,
    /// Trellis codes: encode and decode with 8 states, decode with 256.
    pub(super) t2s8_encode: u64,
    pub(super) t2s8_decode: u64,
    pub(super) t2_decode: u64,
    /// A ring over a trellis code: one token, and attention over 64 tokens.
    pub(super) t2s8_push: u64,
    pub(super) t2s8_attend_64: u64,
}

/// Instructions of a ring of 32 tokens, 4 + 8 of them exact, with usual inputs and with the worst that are
/// known. The fields have the names of the log lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Worst {
    pub(super) s4_tiered_push: u64,
    pub(super) s4_worst_push: u64,
    pub(super) s4_tiered_attend: u64,
    pub(super) s4_worst_attend: u64,
    pub(super) t2s8_tiered_push: u64,
    pub(super) t2s8_worst_push: u64,
    pub(super) t2s8_tiered_attend: u64,
    pub(super) t2s8_worst_attend: u64,
}

/// Instructions from a tick of a timer to its handler and to a task, next to a task that uses a ring. The
/// fields have the names of the log lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tasks {
    pub(super) handler: u64,
    pub(super) soonest: u64,
    pub(super) latest: u64,
}

/// Figures of one target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) target: String,
    pub(super) machine: String,
    pub(super) crc: String,
    pub(super) instructions: Instructions,
    /// The smallest core and one with DSP have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst: Option<Worst>,
    /// The core of the example of tasks has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tasks: Option<Tasks>,
    /// Peak of `encode`.
    pub(super) stack_bytes: u64,
    /// Encode, decode and score.
    pub(super) flash_bytes: u64,
    /// Static data of the codec.
    pub(super) ram_bytes: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Reports {
    pub(super) targets: Vec<Report>,
}

/// The budget: the figures that were last measured and accepted.
pub(super) fn budget() -> Result<Reports> {
    let path = budget_path();
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

pub(super) fn budget_path() -> PathBuf {
    folder().join("firmware/budget.json")
}

/// The numbers of a log under the names of `T`'s fields.
pub(super) fn of_log<T: DeserializeOwned>(log: &BTreeMap<String, String>, machine: &Machine) -> Result<T> {
    let numbers =
        log.iter().filter_map(|(key, value)| Some((key.clone(), value.parse::<u64>().ok()?.into())));
    let failed = |error| format!("{}: the log of the image: {error}", machine.target);
    serde_json::from_value(Value::Object(numbers.collect())).map_err(failed)
}

/// All numbers of a report, by the names of their fields.
pub(super) fn numbers(report: &Report) -> Result<BTreeMap<String, u64>> {
    let mut numbers = BTreeMap::new();
    let mut left = vec![(String::new(), serde_json::to_value(report).map_err(|error| error.to_string())?)];
    while let Some((name, value)) = left.pop() {
        match value {
            Value::Object(fields) => left.extend(fields),
            value => numbers.extend(value.as_u64().map(|number| (name, number))),
        }
    }
    Ok(numbers)
}
