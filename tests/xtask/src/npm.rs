//! `cargo xtask npm`: the module of the package for JavaScript, next to its scripts in `host/npm`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// What the package calls besides the C interface: memory for arguments, what runs before the first call, and
/// a table into which it puts a function. The linker puts `__wasm_call_ctors` into each call unless it is
/// exported.
const EXPORTS: [&str; 5] =
    ["--export=malloc", "--export=free", "--export=__wasm_call_ctors", "--export-table", "--growable-table"];

pub(crate) fn run() -> ExitCode {
    match write() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("xtask npm: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the module and copies it to the package.
fn write() -> Result<String, String> {
    // Sessions of llama.cpp would need a compiler of C for this target.
    let package = ["--package", "tqkv-capi", "--no-default-features", "--crate-type", "cdylib", "--"];
    let link = EXPORTS.map(|export| format!("-Clink-arg={export}"));
    let arguments: Vec<&str> = package.into_iter().chain(link.iter().map(String::as_str)).collect();
    let module = crate::wasm::build(&arguments, "tqkv_capi.wasm")?;
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../host/npm/tqkv.wasm");
    let bytes = fs::copy(&module, &out).map_err(|error| format!("host/npm/tqkv.wasm: {error}"))?;
    Ok(format!("host/npm/tqkv.wasm: {:.1} MB", bytes as f64 / 1e6))
}
