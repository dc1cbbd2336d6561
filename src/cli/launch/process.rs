//! The process of one rank, in a process group of its own.
//!
//! A group that has lost its leader but not its members keeps its number, so signals can go to it safely until it is
//! empty. Orphans become children of the launch (`PR_SET_CHILD_SUBREAPER`), which reaps them. Where the launch is killed
//! the kernel kills the leaders (`PR_SET_PDEATHSIG`), and the guard kills the groups.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use graphc_runtime::threads;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};

use super::accounts;
use super::attempt::Attempt;
use super::guard::Guard;
use super::output::RankOutput;
use super::world::Seat;

/// A rank's process with all that it has started.
pub(super) struct Process {
    /// Its rank.
    pub seat: Seat,
    /// Its process group, whose number is that of its first process.
    pub group: Pid,
    /// Its output, where that goes through this process.
    pub output: Option<RankOutput>,
    /// Whether the guard still watches its group.
    pub watched: bool,
    child: Child,
    exit: Option<ExitStatus>,
    gone: bool,
}

impl Process {
    /// Starts a rank, whose group the guard watches.
    pub(super) fn start(attempt: &Attempt<'_>, seat: Seat, guard: &Guard) -> Result<Self> {
        let Attempt { world, command, logs, restart, .. } = *attempt;
        let (program, arguments) = command.split_first().context("there is no command")?;
        let mut command = Command::new(program);
        command.args(arguments).envs(world.variables(seat, restart)).process_group(0);
        command.env_remove(accounts::VARIABLE);
        command.envs(attempt.accounts.iter().map(|path| (accounts::VARIABLE, path)));
        // Ranks are not in the terminal's foreground group: to read from it would stop them.
        command.stdin(Stdio::null());
        let sinks = logs.sinks(seat.rank, restart, world.seats.len())?;
        if sinks.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        die_with_parent(&mut command);
        guard.watch(&mut command)?;
        let failed = || format!("cannot start rank {}: `{}`", seat.rank, program.to_string_lossy());
        let child = command.spawn().map_err(threads::explain_thread_error).with_context(failed)?;
        let (group, output) = (Pid::from_child(&child), None);
        let mut started =
            Self { seat, group, output, watched: true, child, exit: None, gone: false };
        let output =
            sinks.map(|sinks| RankOutput::copy_from(&mut started.child, sinks)).transpose();
        match output.with_context(failed) {
            Ok(output) => Ok(Self { output, ..started }),
            Err(error) => {
                started.signal(Signal::KILL);
                Err(error)
            }
        }
    }

    /// The way in which its first process has ended, where it has.
    pub(super) fn poll_exit(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().ok().flatten();
        }
        self.exit
    }

    /// Whether nothing is left of its group. The group's number is not given to others while there is.
    pub(super) fn is_gone(&mut self) -> bool {
        if self.gone || self.poll_exit().is_none() {
            return self.gone;
        }
        // Orphans of the group are children of this process by now.
        while let Ok(Some(_)) = waitpgid(self.group, WaitOptions::NOHANG) {}
        self.gone = test_kill_process_group(self.group).is_err();
        self.gone
    }

    /// Sends a signal to the whole group.
    pub(super) fn signal(&mut self, signal: Signal) {
        if !self.is_gone() {
            // A group that has just gone needs no signal.
            let _ = kill_process_group(self.group, signal);
        }
    }
}

/// The way in which a process has ended, in words.
pub(super) fn describe_exit(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("exit status {}", status.code().unwrap_or_default());
    };
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

/// Makes orphans of ranks children of this process, which then sees them end. Elsewhere than on Linux they become
/// children of the system's first process, which does no harm but that they are looked for a little longer.
pub(super) fn adopt_orphans() -> Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot adopt the processes that ranks start")?;
    Ok(())
}

/// Asks the kernel to kill the process where this one dies. Elsewhere than on Linux that is left to the guard.
#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command) {
    use rustix::process::{getpid, getppid, set_parent_process_death_signal};

    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have died before that was asked.
        if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec only system calls are made; the closure touches neither the heap nor locks.
    unsafe { command.pre_exec(ask) };
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}
