//! `cargo xtask codebooks`: writes the file of solved codebooks.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use tqkv_core::unstable::codebook::Codebook;
use tqkv_core::{CodecId, HEAD_DIMS};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare instead of writing; exit code 1 if the file differs
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/src/code/codebook/solved.rs");
    match write(&path, args.check) {
        Ok(message) => {
            println!("{message}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn write(path: &Path, check: bool) -> Result<&'static str, String> {
    let old = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let (head, _) = old.split_once("= &[").ok_or("no table in this file")?;
    let made = formatted(&format!("{head}= &[\n{}];\n", rows()))?;
    if old == made {
        return Ok("codebooks are up to date");
    }
    if check {
        return Err("codebooks differ: write them with `cargo xtask codebooks`".into());
    }
    std::fs::write(path, made).map_err(|error| error.to_string())?;
    Ok("codebooks written")
}

fn rows() -> String {
    let mut text = String::new();
    for dim in HEAD_DIMS {
        writeln!(text, "Solved {{ dim: {dim},").expect("a string takes it");
        for (family, is_nested) in [("scalar", false), ("nested", true)] {
            writeln!(text, "{family}: [").expect("a string takes it");
            let ids = CodecId::ALL.iter().filter(|id| id.is_nested() == is_nested);
            for book in ids.filter_map(|&id| Codebook::solve(id, dim)) {
                let bytes = &book.bytes()[1 << (book.bits() - 1)..];
                let (unit, mse) = (book.unit(), book.relative_mse());
                writeln!(text, "Solution {{ bytes: &{bytes:?}, unit: {unit:?}, relative_mse: {mse:?} }},")
                    .expect("a string takes it");
            }
            writeln!(text, "],").expect("a string takes it");
        }
        writeln!(text, "}},").expect("a string takes it");
    }
    text
}

/// Formats the text with rustfmt.
fn formatted(text: &str) -> Result<String, String> {
    let file = tempfile::Builder::new().suffix(".rs").tempfile().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), text).map_err(|error| error.to_string())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = Command::new("rustfmt")
        .current_dir(root)
        .args(["--edition", "2024", "--config-path", "."])
        .arg(file.path())
        .status()
        .map_err(|error| format!("rustfmt: {error}"))?;
    if !done.success() {
        return Err(format!("rustfmt: {done}"));
    }
    std::fs::read_to_string(file.path()).map_err(|error| error.to_string())
}
