//! How the command line is read.

use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::args::Cli;

/// What may be said. A negative number behind an option is its value, and is refused with what the option takes.
pub fn command() -> Command {
    take_negative_numbers(Cli::command())
}

fn take_negative_numbers(command: Command) -> Command {
    let take = |arg: Arg| {
        let is_option = arg.get_long().is_some() && arg.get_action().takes_values();
        arg.allow_negative_numbers(is_option)
    };
    command.mut_args(take).mut_subcommands(take_negative_numbers)
}

/// What is said.
///
/// # Errors
/// Where it is not what may be said, or asks for help.
pub fn matches() -> Result<ArgMatches, clap::Error> {
    command().try_get_matches()
}

/// What is said, as the commands take it.
///
/// # Errors
/// As [`matches`].
pub fn read() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&matches()?).map_err(|error| error.format(&mut command()))
}
