//! An attempt: what is to be started.

use std::ffi::OsString;
use std::time::Duration;

use super::output::Logs;
use super::world::World;

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
    pub grace: Duration,
    /// The number of times that it was started before.
    pub restart: u32,
}
