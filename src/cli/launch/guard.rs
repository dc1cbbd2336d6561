//! The guard: a process beside the ranks that kills their process groups where `launch` is killed and can do nothing
//! itself. It learns of that by the end of its standard input, which the system closes with `launch`. The kernel kills
//! the ranks themselves (see `process`); the guard reaches what they have started.

use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// The guard, as `launch` sees it.
pub struct Guard {
    process: Child,
}

impl Guard {
    /// Starts it, in a group of its own: what the terminal sends to `launch` does not reach it.
    pub fn start() -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let mut command = Command::new(program);
        command.arg("launch-guard").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: command.spawn().context("cannot start the guard of the ranks")? })
    }

    /// Watches a group.
    pub fn watch(&mut self, group: Pid) {
        self.tell('+', group);
    }

    /// Forgets a group that is gone: its number may become another's.
    pub fn forget(&mut self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&mut self, sign: char, group: Pid) {
        // A guard that somebody has killed guards no more; the ranks need not end for that.
        if let Some(pipe) = &mut self.process.stdin {
            let _ = writeln!(pipe, "{sign}{}", group.as_raw_nonzero());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.process.stdin = None;
        let _ = self.process.wait();
    }
}

/// What the guard does.
pub fn run() {
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
