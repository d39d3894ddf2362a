//! `tqkv man`: the help texts as a manual page.

use clap_mangen::Man;
use serde::Serialize;

use crate::error::CliError;
use crate::output::Output;

/// Print the manual page, or that of one command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv man | man -l -
  tqkv man encode > tqkv-encode.1")]
pub(crate) struct Args {
    /// A command [default: all of tqkv].
    #[arg(value_name = "COMMAND")]
    about: Option<String>,
}

#[derive(Serialize)]
struct Page {
    name: String,
    /// In the macros of man.
    page: String,
}

pub(crate) fn run(args: &Args, line: clap::Command, out: &mut Output) -> Result<(), CliError> {
    let mut command = line;
    // Gives the commands their full names and the options that all share.
    command.build();
    let (name, command) = match &args.about {
        None => ("tqkv".to_owned(), command),
        Some(about) => {
            let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
            let found = command.find_subcommand(about).cloned().ok_or_else(|| {
                CliError::bad_input(format_args!("no command '{about}', accepted are {}", names.join(", ")))
            })?;
            (format!("tqkv-{about}"), found.display_name(format!("tqkv-{about}")))
        }
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    let page = String::from_utf8_lossy(&page).trim_end().to_owned();
    out.print(&Page { name, page }, |made| made.page.clone())
}
