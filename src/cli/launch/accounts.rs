//! Accounts of the end of a job: each rank of `graphc train` and `run` hands its own over instead of printing it, and the
//! launch prints one.
//!
//! The accounts of all ranks are the same if the job's coordinator could give them one. If rank 0 is gone, each rank knows its own part.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

use graphc_runtime::job::JobError;
use graphc_runtime::{JobEnd, RuntimeError};

/// The variable that says where accounts go.
pub(super) const VARIABLE: &str = "GRAPHC_ACCOUNTS";

/// The memory in which the ranks of this launch put their accounts. It has no name and ranks open it through `/proc`, so nothing is left
/// behind. It is `None` where the system has no such memory: then ranks print.
pub(super) struct Accounts(Option<File>);

impl Accounts {
    /// Makes the memory, without accounts yet.
    pub(super) fn new() -> Self {
        Self(create_memory_file())
    }

    /// The path that ranks are told.
    pub(super) fn path(&self) -> Option<String> {
        let file = self.0.as_ref()?;
        Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    }

    /// The one account of what was handed over since the last time.
    pub(super) fn take_account(&mut self) -> Option<String> {
        let file = self.0.as_mut()?;
        let mut text = String::new();
        // What cannot be read is not told.
        file.rewind().ok()?;
        file.read_to_string(&mut text).ok()?;
        file.set_len(0).ok()?;
        let accounts: Vec<&str> = text.split('\0').filter(|account| !account.is_empty()).collect();
        (!accounts.is_empty()).then(|| merge_accounts(&accounts))
    }
}

#[cfg(target_os = "linux")]
fn create_memory_file() -> Option<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    memfd_create("graphc accounts", MemfdFlags::CLOEXEC).ok().map(File::from)
}

#[cfg(not(target_os = "linux"))]
fn create_memory_file() -> Option<File> {
    None
}

/// Hands an error over that speaks of the whole job; whether that was done, so that it need not be printed here.
pub(crate) fn hand_over(error: &anyhow::Error) -> bool {
    let of_all = |end: &JobEnd| matches!(end, JobEnd::Job { .. } | JobEnd::Differ { .. });
    let of_session =
        |error: &RuntimeError| matches!(error, RuntimeError::Ended(end) if of_all(end));
    // The job ended while this rank was joining it.
    let before_it_began = |error: &JobError| matches!(error, JobError::Ended { .. });
    let Ok(path) = std::env::var(VARIABLE) else { return false };
    let told = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().is_some_and(of_all)
            || cause.downcast_ref().is_some_and(of_session)
            || cause.downcast_ref().is_some_and(before_it_began)
    };
    if !error.chain().any(told) {
        return false;
    }
    let file = OpenOptions::new().append(true).open(path);
    // In one write: other ranks may write as well.
    file.and_then(|mut file| file.write_all(format!("{error:#}\0").as_bytes())).is_ok()
}

/// The first account, and what others know besides, in the order of ranks.
fn merge_accounts(accounts: &[&str]) -> String {
    let first = accounts[0].lines().next().unwrap_or_default();
    let mut lines: Vec<&str> = Vec::new();
    for line in accounts.iter().flat_map(|account| account.lines().skip(1)) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.sort_by_key(|line| rank_of(line));
    lines.insert(0, first);
    lines.join("\n")
}

/// The rank that a line of an account tells of.
fn rank_of(line: &str) -> Option<usize> {
    line.strip_prefix("  rank ")?.split(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_that_are_the_same_are_one() {
        let account = "rank 1 has died\n  rank 0: stream 0: step 3\n  rank 2: stream 0: step 4";
        assert_eq!(merge_accounts(&[account, account]), account);
    }

    #[test]
    fn what_each_knows_is_put_together() {
        let accounts =
            ["rank 0 has died\n  rank 10: at rest", "rank 0 has died\n  rank 9: at rest"];
        assert_eq!(
            merge_accounts(&accounts),
            "rank 0 has died\n  rank 9: at rest\n  rank 10: at rest"
        );
    }

    #[test]
    fn they_are_taken_once() {
        let mut accounts = Accounts::new();
        assert_eq!(accounts.take_account(), None);
        let Some(path) = accounts.path() else { return };
        for rank in [2, 1] {
            let mut file = OpenOptions::new().append(true).open(&path).expect("our own");
            write!(file, "rank 0 has died\n  rank {rank}: at rest\0").expect("memory");
        }
        let told = accounts.take_account().expect("two were handed over");
        assert_eq!(told, "rank 0 has died\n  rank 1: at rest\n  rank 2: at rest");
        assert_eq!(accounts.take_account(), None);
    }
}
