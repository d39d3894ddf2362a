//! The `tqkv` command: what it prints, writes, reads and refuses.

mod arrays;
mod cli;
mod documents;
mod figures;
mod files;
#[cfg(unix)]
mod kills;
mod model_commands;
mod needle;
mod plans;
mod session;
mod shell;
mod storage;
mod support;
mod tools;
mod usage;
