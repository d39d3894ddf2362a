//! `cargo xtask vectors`: writes the golden blocks.

use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare instead of writing; exit code 1 if the file differs
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/blocks.txt");
    let made = tqkv_tests::golden::blocks();
    let result = if args.check {
        match std::fs::read_to_string(&path) {
            Ok(golden) if golden == made => Ok("golden blocks are up to date"),
            Ok(_) => Err("golden blocks differ: bytes that are stored have changed".to_string()),
            Err(error) => Err(error.to_string()),
        }
    } else {
        std::fs::write(&path, made).map(|()| "golden blocks written").map_err(|error| error.to_string())
    };
    match result {
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
