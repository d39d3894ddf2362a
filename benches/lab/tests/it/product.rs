//! Runs commands of `tqkv` through its library in this process, because tests of this package cannot run that
//! program.

use serde_json::Value;
use tqkv_cli::Tqkv;
use tqkv_cli::output::Output;
use tqkv_cli::program::{self, Program as _};

/// Runs a command that must succeed; returns its JSON. Paths are absolute.
pub(crate) fn product(args: &[&str]) -> Value {
    let mut out = Output::keeping();
    let done = program::parse::<Tqkv>(args).and_then(|line| line.run(&mut out));
    done.unwrap_or_else(|error| panic!("{args:?}: {error}"));
    serde_json::from_str(&out.kept()).expect("one JSON object and nothing else")
}
