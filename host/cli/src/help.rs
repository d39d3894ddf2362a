//! Layout of the help: options under headings. Negative numbers parse as values, so that each option can
//! refuse them with its own error.

use std::ffi::OsString;

use clap::{Arg, Command};

use crate::error::EXIT_CODES;
use crate::policy;

/// Headings in their order, with the ids of their options. All other options stand above them, under
/// "Options".
const HEADINGS: [(&str, &[&str]); 4] = [
    ("Model", &["model", "stream_weights", "weight_bits"]),
    ("Sampling", &["temperature", "sample_seed"]),
    ("Cache", &["kv", "cache_type_k", "cache_type_v", "device"]),
    ("Laboratory", &["seed", "scale_mode", "effort", "no_bos"]),
];

/// Commands without the heading "Laboratory", because encoding is their subject.
const PLAIN: [&str; 1] = ["encode"];

/// Lays out the command and its subcommands.
pub(crate) fn laid_out(command: Command) -> Command {
    // A command of commands alone is an error that lists them, not its help.
    let command = command.mut_subcommands(laid_out).arg_required_else_help(false);
    let is_plain = PLAIN.contains(&command.get_name());
    let place = |arg: &Arg| {
        let is_option = !is_plain && !arg.is_positional();
        let below = |(_, ids): &(&str, &[&str])| is_option && ids.contains(&arg.get_id().as_str());
        let named = |(heading, _): &(&str, &[&str])| arg.get_help_heading() == Some(heading);
        HEADINGS.iter().position(below).or_else(|| HEADINGS.iter().position(named))
    };
    // Headings appear in the order of the options, and options in the order of their structs.
    let mut args: Vec<Arg> = command.get_arguments().cloned().collect();
    args.sort_by_key(|arg| place(arg).map_or(0, |heading| heading + 1));
    let args = args.into_iter().map(|arg| {
        let negative = !arg.is_positional() && arg.get_action().takes_values();
        match place(&arg) {
            Some(heading) => arg.help_heading(HEADINGS[heading].0),
            None => arg,
        }
        .allow_negative_numbers(negative)
    });
    let mut args = args.collect::<Vec<_>>().into_iter();
    command.mut_args(|arg| args.next().unwrap_or(arg))
}

/// Adds the exit codes to the help of a program.
pub(crate) fn with_exit_codes(command: Command) -> Command {
    let codes: Vec<_> = EXIT_CODES.iter().map(|(code, meaning)| format!("{code}: {meaning}")).collect();
    let codes = format!("Exit codes:\n  {}", codes.join("\n  "));
    let help = command.get_after_help().map_or_else(|| codes.clone(), |own| format!("{own}\n\n{codes}"));
    command.after_help(help)
}

/// The words without `--help` after `help`, which asks for the same and which clap takes for a command.
pub(crate) fn without_help_of_help(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let mut command = command;
    for at in 1..words.len() {
        if words[at] == "help" {
            let mut i = 0;
            words.retain(|word| {
                i += 1;
                i <= at || !(word == "--help" || word == "-h")
            });
            break;
        }
        let Some(inner) = command.find_subcommand(&words[at]) else { break };
        command = inner;
    }
    words
}

/// The text of `help kv`, which is no command: the settings of all options `--kv`.
pub(crate) fn topic(words: &[OsString]) -> Option<String> {
    let [_, help, kv] = words else { return None };
    (help == "help" && kv == "kv").then(policy::help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tqkv;
    use crate::program::command_line;

    #[test]
    fn every_option_below_a_heading_exists() {
        let command = command_line::<Tqkv>();
        for id in HEADINGS.iter().flat_map(|(_, ids)| *ids) {
            let has = |command: &Command| command.get_arguments().any(|arg| arg.get_id() == id);
            assert!(command.get_subcommands().any(has), "{id}");
        }
        for name in PLAIN {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
        command.debug_assert();
    }
}
