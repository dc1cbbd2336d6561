//! Reads the command line.

use anyhow::Result;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::Cli;
use crate::cli::output::print_message;
use crate::cli::run_file::merge_arguments;

/// Builds the command line's parser. A negative number behind an option is its value, and is refused with what the option takes.
pub(crate) fn build_command() -> Command {
    take_negative_numbers(Cli::command())
}

fn take_negative_numbers(command: Command) -> Command {
    let take = |arg: Arg| {
        let is_option = arg.get_long().is_some() && arg.get_action().takes_values();
        arg.allow_negative_numbers(is_option)
    };
    command.mut_args(take).mut_subcommands(take_negative_numbers)
}

/// Reads the arguments, with those of a run file.
///
/// # Errors
/// A [`clap::Error`] if the arguments do not fit or ask for help; another error if a run file is broken.
pub(crate) fn read_matches() -> Result<ArgMatches> {
    let arguments = merge_arguments(&build_command(), std::env::args_os().collect())?;
    let matches = build_command().try_get_matches_from(&arguments.all);
    if let (Err(error), Some(file)) = (&matches, &arguments.file) {
        let named = arguments.options_in(&error.to_string());
        if !named.is_empty() {
            let named = named.join(" and ");
            print_message("note", &format!("{named} is set in {}", file.display()));
        }
    }
    Ok(matches?)
}

/// Reads the arguments into the types of the commands.
///
/// # Errors
/// As [`read_matches`].
pub(crate) fn read_command_line() -> Result<Cli> {
    let cli = Cli::from_arg_matches(&read_matches()?);
    Ok(cli.map_err(|error| error.format(&mut build_command()))?)
}
