//! `cargo xtask page`: the shipped model over several caches as one HTML file that needs nothing else.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

const PROGRAM: &str = "tqkv-browser";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to write.
    #[arg(default_value = "target/tqkv.html")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let program =
        crate::wasm::build(&["--package", "tqkv-model", "--bin", PROGRAM], &format!("{PROGRAM}.wasm"));
    match program.and_then(|program| write(&program, &args.out)) {
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
