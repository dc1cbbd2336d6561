//! An attempt: what is to be started.

use std::ffi::OsString;
use std::time::Duration;

use super::output::Logs;
use super::world::World;

/// One start of all processes.
pub struct Attempt<'a> {
    /// Who is who.
    pub world: &'a World,
    /// What is started.
    pub command: &'a [OsString],
    /// Where output goes.
    pub logs: &'a Logs,
    /// Where ranks put their accounts of the job's end; `None`: they print them.
    pub accounts: Option<String>,
    /// How long a process has to end.
    pub grace: Duration,
    /// How often it was started before.
    pub restart: u32,
}
