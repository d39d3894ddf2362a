//! The command `man`: the help texts as a manual page.

use clap_mangen::Man;
use serde::Serialize;

use crate::error::{CliError, EXIT_CODES};
use crate::output::Output;
use crate::program::{Program, command_line};

/// Print the manual page of the program or of one command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv man | man -l -
  tqkv man eval > tqkv-eval.1")]
pub struct Args {
    /// Command of the page [default: a page of all commands].
    #[arg(value_name = "COMMAND")]
    about: Option<String>,
}

#[derive(Serialize)]
struct Page {
    name: String,
    /// The page in the macros of man.
    page: String,
}

pub fn run<P: Program>(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let mut command = command_line::<P>();
    // Sets the full names of the commands and the common options.
    command.build();
    let (name, command) = match &args.about {
        None => (P::NAME.to_owned(), command),
        Some(about) => {
            let names: Vec<_> = command
                .get_subcommands()
                .filter(|c| !c.is_hide_set())
                .map(|c| c.get_name().to_owned())
                .collect();
            let found = command.find_subcommand(about).cloned().ok_or_else(|| {
                CliError::bad_input(format_args!("no command '{about}': expected {}", names.join(", ")))
            })?;
            {
                let name = format!("{}-{about}", P::NAME);
                (name.clone(), found.display_name(name))
            }
        }
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    let page = format!("{}\n{}", String::from_utf8_lossy(&page).trim_end(), exit_status());
    out.print(&Page { name, page }, |made| made.page.clone())
}

/// The section on exit codes.
fn exit_status() -> String {
    let codes = EXIT_CODES.iter().map(|(code, meaning)| format!(".TP\n\\fB{code}\\fR\n{meaning}"));
    [".SH \"EXIT STATUS\"".to_owned()].into_iter().chain(codes).collect::<Vec<_>>().join("\n")
}
