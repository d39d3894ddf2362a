//! The `tqkv-lab` command: measurements, drawings and errors; and the documents on it and on `tqkv`.

#[path = "../../../../host/cli/tests/it/arrays.rs"]
mod arrays;
#[cfg(unix)]
#[path = "../../../../host/cli/tests/it/commands.rs"]
mod commands;
#[cfg(unix)]
#[path = "../../../../host/cli/tests/it/commands_inputs.rs"]
mod commands_inputs;
mod compare;
mod documents;
mod eval;
mod figures;
#[cfg(unix)]
#[path = "../../../../host/cli/tests/it/kill.rs"]
mod kill;
mod needle;
mod pictures;
mod plots;
#[path = "../../../../host/cli/tests/it/printed.rs"]
mod printed;
mod product;
mod shell;
mod stats;
#[path = "../../../../host/cli/tests/it/support.rs"]
mod support;
mod tools;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tqkv-lab");
