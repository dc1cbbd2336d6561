//! An attempt: what is to be started.

use std::ffi::OsString;
use std::time::Duration;

use super::output::Logs;
use super::world::World;

/// The time that processes have to end before they are killed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    /// After a peer has failed.
    pub failed: Duration,
    /// After this process was told to end: ranks may have a step to finish and a checkpoint to save.
    pub interrupted: Duration,
}

impl Grace {
    /// Returns the user's time, or else the usual one.
    pub(super) fn from_seconds(seconds: Option<f64>) -> Self {
        let or = |usual| seconds.map_or(Duration::from_secs(usual), Duration::from_secs_f64);
        Self { failed: or(3), interrupted: or(30) }
    }
}

/// One start of all processes.
pub(super) struct Attempt<'a> {
    /// The ranks and where they meet.
    pub world: &'a World,
    /// The command that is started.
    pub command: &'a [OsString],
    /// The places where output goes.
    pub logs: &'a Logs,
    /// The place where ranks put their accounts of the job's end; `None`: they print them.
    pub accounts: Option<String>,
    /// The time that a process has to end.
    pub grace: Grace,
    /// The number of times that it was started before.
    pub restart: u32,
}
