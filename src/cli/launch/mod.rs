//! `graphc launch`: one process per rank, on this machine; all end where one fails.
//!
//! `world` says who is who, `graphc_runtime::job` reads it from Slurm and mpirun. `process` starts a rank in a process group of its
//! own and tells when the group is gone. `output` copies what ranks print, `accounts` makes one account of theirs,
//! `supervise` waits, ends and kills. `guard` is the process that kills what is left where this one is killed. Nothing
//! here speaks with other machines: ranks find each other by MASTER_ADDR and MASTER_PORT.
//!
//! The unsafe code of the command line is here, in `process` and `guard`: system calls between fork and exec.

mod accounts;
mod attempt;
mod guard;
mod output;
mod process;
mod supervise;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::error::ErrorKind;

use super::args::{LaunchArgs, command_line};
use accounts::Accounts;
use attempt::{Attempt, Grace};
use guard::Guard;
use output::Logs;
use supervise::{AttemptOutcome, receive_signals, wait_between_attempts};
use world::World;

pub(crate) use accounts::hand_over;
pub(super) use guard::run_guard as guard;

/// Runs the command: 0 where all processes ended with 0, 128 and the signal's number where this one was interrupted.
pub(super) fn run_launch(args: &LaunchArgs) -> Result<ExitCode> {
    if args.grace.is_some_and(|grace| !(0.0..=1e6).contains(&grace)) {
        fail_usage("--grace is a number of seconds from 0 to 1000000");
    }
    if let (None, true) = (&args.logdir, args.tee || args.redirect) {
        let option = if args.tee { "--tee" } else { "--redirect" };
        fail_usage(&format!(
            "{option} needs --logdir DIR: the folder that the logs of the ranks go to"
        ));
    }
    let world = World::from_args(args, &|name| std::env::var(name).ok())?;
    let logs = Logs::from_args(args);
    process::adopt_orphans()?;
    let signals = receive_signals()?;
    let mut guard = Guard::start()?;
    let mut accounts = Accounts::new();
    for restart in 0.. {
        let attempt = Attempt {
            world: &world,
            command: &args.command,
            logs: &logs,
            accounts: accounts.path(),
            grace: Grace::from_seconds(args.grace),
            restart,
        };
        let outcome = attempt.run(&signals, &mut guard)?;
        // What ranks say of peers that were told to end is no news.
        let is_told = matches!(outcome, AttemptOutcome::Interrupted { had_failed: false, .. });
        if let Some(account) = accounts.take_account().filter(|_| !is_told) {
            super::output::print_message("error", &account);
        }
        match outcome {
            AttemptOutcome::Done => break,
            AttemptOutcome::Interrupted { signal, .. } => return Ok(interrupted_exit(signal)),
            AttemptOutcome::Failed(failure) if restart < args.max_restarts => {
                let (next, most, pause) = (restart + 1, args.max_restarts, pause_before(restart));
                print_note(&format!(
                    "{failure}\nall processes are started again after {} s, restart {next} of {most}",
                    pause.as_secs()
                ));
                if let Some(signal) = wait_between_attempts(&signals, pause) {
                    return Ok(interrupted_exit(signal));
                }
            }
            AttemptOutcome::Failed(failure) => bail!("{failure}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the time to wait before processes are started again. Processes may fail at once, e.g. because another machine is not there yet,
/// and should not use up all restarts in a moment. It is a second, twice as long each time, a minute at most.
fn pause_before(restart: u32) -> Duration {
    Duration::from_secs(1 << restart.min(6)).min(Duration::from_secs(60))
}

fn interrupted_exit(signal: i32) -> ExitCode {
    ExitCode::from(128 + signal as u8)
}

/// Says something on standard error.
fn print_note(text: &str) {
    super::output::print_message("note", text);
}

/// Ends with exit status 2: the command line is wrong.
fn fail_usage(text: &str) -> ! {
    command_line::build_command().error(ErrorKind::ValueValidation, text).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute() {
        let pauses = [0, 1, 2, 5, 6, u32::MAX].map(|restart| pause_before(restart).as_secs());
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60]);
    }
}
