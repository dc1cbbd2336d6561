//! The command line. `graphc --help` lists its commands; each is a file or a folder of its name in `src/cli`.
//!
//! Exit status 0; 1 with a diagnostic on standard error; 2 for a wrong command line. Standard output is the result
//! alone; progress goes to standard error, as a bar to a terminal and else as a line now and then.

#![warn(unreachable_pub)]

use std::process::ExitCode;

mod cli;

/// Compiling allocates much that is small: the planner and the passes take 8 to 16 % less time with it than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let done =
        cli::args::command_line::read_command_line().and_then(|cli| cli::run_command(cli.command));
    done.unwrap_or_else(|error| report_failure(&error))
}

fn report_failure(error: &anyhow::Error) -> ExitCode {
    if let Some(error) = error.downcast_ref() {
        return cli::output::wrong_command_line(error);
    }
    // The launch prints one account of the job, not one of each rank.
    if !cli::hand_over(error) {
        cli::output::print_message("error", &format!("{error:#}"));
    }
    ExitCode::FAILURE
}
