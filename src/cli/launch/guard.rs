//! The guard: a process beside the ranks that kills their process groups where `launch` is killed and can do nothing
//! itself. It learns of that by the end of its standard input, which the system closes with `launch`. The kernel kills
//! the ranks themselves (see `process`); the guard reaches what they have started.

use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use graphc_runtime::threads;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, getpid, kill_process_group};

/// The guard, as `launch` sees it.
pub(super) struct Guard {
    process: Child,
}

impl Guard {
    /// Starts it, in a group of its own: what the terminal sends to `launch` does not reach it.
    pub(super) fn start() -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let mut command = Command::new(program);
        command.arg("launch-guard").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn().map_err(threads::explain_thread_error);
        Ok(Self { process: started.context("cannot start the guard of the ranks")? })
    }

    /// Watches the group of what a command starts, from before it begins: the process says its number itself. If `launch` said it
    /// afterwards, a process that `launch` has just started when it is killed could leave others behind.
    ///
    /// # Errors
    /// Returns an error if the system has no file descriptor left.
    pub(super) fn watch(&self, command: &mut Command) -> Result<()> {
        let Some(pipe) = &self.process.stdin else { return Ok(()) };
        let pipe = pipe.as_fd().try_clone_to_owned().context("cannot share the guard's pipe")?;
        let tell = move || {
            // A guard that somebody has killed guards no more; the ranks need not end for that.
            let mut ready = [PollFd::new(&pipe, PollFlags::OUT)];
            rustix::event::poll(&mut ready, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))?;
            if ready[0].revents() == PollFlags::OUT {
                let mut line = [0; LINE];
                let begin = write_line(getpid().as_raw_nonzero().get(), &mut line);
                rustix::io::write(&pipe, &line[begin..])?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made; the closure touches neither the heap nor locks.
        unsafe { command.pre_exec(tell) };
        Ok(())
    }

    /// Forgets a group that is gone: its number may become another's.
    pub(super) fn forget(&mut self, group: Pid) {
        if let Some(pipe) = &mut self.process.stdin {
            let _ = writeln!(pipe, "-{}", group.as_raw_nonzero());
        }
    }
}

/// Bytes of a line with the longest number.
const LINE: usize = 12;

/// Writes `+NUMBER` to the end of `line`, without the heap, and gives the place where it begins.
fn write_line(number: i32, line: &mut [u8; LINE]) -> usize {
    let (mut rest, mut place) = (number.unsigned_abs(), LINE - 1);
    line[place] = b'\n';
    loop {
        place -= 1;
        line[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    line[place - 1] = b'+';
    place - 1
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.process.stdin = None;
        let _ = self.process.wait();
    }
}

/// Runs the guard: it reads the numbers of process groups that begin and end, and at the end of its input kills those that are left.
pub(crate) fn run_guard() {
    let mut groups = HashSet::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let group = |text: &str| text.parse().ok().and_then(Pid::from_raw);
        if let Some(group) = line.strip_prefix('+').and_then(group) {
            groups.insert(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(group) {
            groups.remove(&group);
        }
    }
    for group in groups {
        // A group that is gone already is what is wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_without_the_heap() {
        for (number, expected) in [(1, "+1\n"), (409, "+409\n"), (i32::MAX, "+2147483647\n")] {
            let mut line = [0; LINE];
            let begin = write_line(number, &mut line);
            assert_eq!(std::str::from_utf8(&line[begin..]), Ok(expected));
        }
    }
}
