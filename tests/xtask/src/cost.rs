//! The costs of kernels, from the report of the assembler.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Path of the committed kernels.
pub(crate) const FILE: &str = "gpu/ptx/sm_80.ptx";

/// The folder of the assembler's files.
const FOLDER: &str = "target/ptx-assembled";

/// The text before a kernel's name.
pub(crate) const ENTRY: &str = ".visible .entry ";

/// The report of `ptxas` about a kernel.
#[derive(Default)]
pub(crate) struct Cost {
    pub(crate) registers: u32,
    pub(crate) stack: u32,
    pub(crate) spills: u32,
}

impl Cost {
    /// Takes the larger of each.
    pub(crate) fn raise(&mut self, other: &Self) {
        self.registers = self.registers.max(other.registers);
        self.stack = self.stack.max(other.stack);
        self.spills = self.spills.max(other.spills);
    }
}

/// The text with only one kernel.
pub(crate) fn only(text: &str, name: &str) -> String {
    let is_kept = |(i, kernel): &(usize, &str)| *i == 0 || kernel.starts_with(&format!("{name}("));
    text.split(ENTRY).enumerate().filter(is_kept).map(|(_, kernel)| kernel).collect::<Vec<_>>().join(ENTRY)
}

/// Path of the machine code that [`assemble`] writes for an architecture.
pub(crate) fn object(root: &Path, architecture: &str) -> PathBuf {
    root.join(FOLDER).join(architecture).join("kernels.cubin")
}

/// Assembles a text and returns the costs of its kernels.
pub(crate) fn assemble(
    root: &Path,
    ptxas: &Path,
    architecture: &str,
    text: &str,
) -> Result<BTreeMap<String, Cost>, String> {
    let output = object(root, architecture);
    let (folder, input) = (output.parent().unwrap_or(root), output.with_extension("ptx"));
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    fs::write(&input, text).map_err(|error| format!("{}: {error}", input.display()))?;
    let result = Command::new(ptxas)
        .args(["-v", &format!("-arch={architecture}"), "-o"])
        .args([&output, &input])
        .output()
        .map_err(|error| format!("{}: {error}", ptxas.display()))?;
    let report =
        String::from_utf8_lossy(&result.stderr).into_owned() + &String::from_utf8_lossy(&result.stdout);
    if !result.status.success() {
        return Err(format!("ptxas refuses the file for {architecture}:\n{report}"));
    }
    Ok(read_report(&report))
}

/// Reads "Compiling entry function 'x'", "n bytes stack frame, n bytes spill .." and "Used n registers".
pub(crate) fn read_report(report: &str) -> BTreeMap<String, Cost> {
    let (mut costs, mut name) = (BTreeMap::<String, Cost>::new(), String::new());
    for line in report.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().unwrap_or_default().to_owned();
            costs.insert(name.clone(), Cost::default());
        }
        let Some(cost) = costs.get_mut(&name) else { continue };
        let before = |unit: &str| -> u32 {
            let words = line.split(unit).next().unwrap_or_default();
            words.rsplit([' ', ',']).find_map(|word| word.parse().ok()).unwrap_or_default()
        };
        if line.contains("bytes stack frame") {
            cost.stack += before(" bytes stack frame");
            cost.spills += before(" bytes spill stores") + before(" bytes spill loads");
        }
        if line.contains("Used ") {
            cost.registers = before(" registers");
        }
    }
    costs
}
