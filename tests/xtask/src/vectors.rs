//! `cargo xtask vectors`: writes the golden blocks and files.

use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare instead of writing; exit code 1 if the file differs
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors");
    let mut is_well = true;
    for (name, made) in
        [("blocks.txt", tqkv_tests::golden::blocks()), ("files.txt", tqkv_tests::files::files())]
    {
        let path = folder.join(name);
        let result = if args.check {
            match std::fs::read_to_string(&path) {
                Ok(golden) if golden == made => Ok("is up to date"),
                Ok(_) => Err("differs: bytes that are stored have changed".to_string()),
                Err(error) => Err(error.to_string()),
            }
        } else {
            std::fs::write(&path, made).map(|()| "is written").map_err(|error| error.to_string())
        };
        match result {
            Ok(message) => println!("{name} {message}"),
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                is_well = false;
            }
        }
    }
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
