//! The `tqkv` command: what it prints, writes, reads and refuses.

mod arrays;
mod cli;
mod files;
#[cfg(unix)]
mod kills;
mod model_commands;
mod needle;
mod shell;
mod storage;
mod support;
mod tools;
