//! `cargo xtask page`: the shipped model over several caches as one HTML file that needs nothing else.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

pub(crate) const TARGET: &str = "wasm32-wasip1";
const PROGRAM: &str = "tqkv-browser";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to write.
    #[arg(default_value = "target/tqkv.html")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match program().and_then(|program| write(&program, &args.out)) {
        Ok(bytes) => {
            println!("{}: {:.1} MB", args.out.display(), bytes as f64 / 1e6);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("xtask page: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the program; returns the path of its module.
fn program() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--locked", "--package", "tqkv-model", "--bin", PROGRAM]);
    cargo.args(["--target", TARGET]);
    // Vectors of 128 bits are in every browser since 2021.
    cargo.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", "-C target-feature=+simd128");
    let status = cargo.current_dir(&root).status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo cannot build {PROGRAM}"));
    }
    Ok(target.join(TARGET).join("release").join(format!("{PROGRAM}.wasm")))
}

/// Writes the page with the module at `program` inside; returns its bytes.
fn write(program: &Path, out: &Path) -> Result<usize, String> {
    let module = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    let packed = packed(&module).map_err(|error| format!("{}: {error}", program.display()))?;
    let mut page = include_str!("../../../host/model/browser/page/index.html").to_owned();
    for (place, part) in [
        ("/*style.css*/", include_str!("../../../host/model/browser/page/style.css")),
        ("/*worker.js*/", include_str!("../../../host/model/browser/page/worker.js")),
        ("/*page.js*/", include_str!("../../../host/model/browser/page/page.js")),
        ("/*module*/", &STANDARD.encode(packed)),
    ] {
        if page.matches(place).count() != 1 {
            return Err(format!("index.html is not valid: expected one {place}"));
        }
        page = page.replace(place, part);
    }
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::write(out, &page).map_err(|error| format!("{}: {error}", out.display()))?;
    Ok(page.len())
}

/// The bytes as gzip, which browsers unpack.
fn packed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}
