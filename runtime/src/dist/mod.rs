//! Communication of the user's own: process groups, messages, collectives.
//!
//! ```
//! use graphc_runtime::dist::{self, ReduceOp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sums = dist::spawn(3, |group| {
//!     let mut values = [group.rank() as f32, 1.0];
//!     group.all_reduce(&mut values[..], ReduceOp::Sum)?;
//!     Ok::<_, dist::DistError>(values)
//! })?;
//! assert_eq!(sums, [[3.0, 3.0]; 3]);
//! # Ok(())
//! # }
//! ```
//!
//! The ranks are processes that a launcher has started ([`init`]) or that know where to meet ([`init_at`]), or threads of
//! this process ([`spawn`]). This module knows no plan. Everything goes through the queues of [`graphc_comm::transport`], so
//! results are the same bits over memory and network.
//!
//! Every wait ends: with the peer's answer, with the job's failure, or after the group's timeout. A rank whose
//! communication fails ends the job on all ranks, with one account.
//!
//! Start reading with [`Group`], then `collectives` and `broadcast`, then `pairs`; `ends` and `header` say what a message
//! looks like.

mod api;
mod broadcast;
mod collectives;
mod element;
mod ends;
mod engine;
mod error;
mod group;
mod header;
mod lists;
mod pairs;
mod reduce;
mod work;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use graphc_comm::job::{Job, JobOptions};
use graphc_comm::transport::Patience;
use graphc_comm::transport::in_process::Hub;
use graphc_host::threads;

pub use element::{Bf16, ElementBuffer, F16, TensorElement};
pub(crate) use ends::{GroupLane, GroupMembers};
pub use error::DistError;
pub use group::Group;
pub use reduce::ReduceOp;
pub use work::{PendingWork, wait_all};

/// The time for which a communication waits for a peer before it fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Joins the ranks that the launcher's environment describes ([`JobOptions::from_environment`]); this process alone where
/// it was started alone.
///
/// # Errors
/// [`DistError::Job`] where the environment makes no sense or the ranks do not meet.
pub fn init() -> Result<Group, DistError> {
    Ok(match Job::from_environment()? {
        Some(job) => Group::on(&job, TIMEOUT),
        None => Group::of_threads(&new_hub(1), 0, 1),
    })
}

/// Joins the ranks that meet at `url`: `tcp://host:port`, where rank 0 listens, or `file:///path`, a file that all
/// processes of this user see. `GRAPHC_JOB_TOKEN` is the secret that ranks show each other; at a host that others reach it
/// must be set, and a file brings a secret of its own. Where the ranks are on several hosts `NODE_COUNT` says how many;
/// otherwise a file leads to the loopback alone. [`init_with`] takes all of this from the program.
///
/// # Errors
/// [`DistError::Job`] where the URL or the rank makes no sense, or the ranks do not meet.
pub fn init_at(url: &str, rank: u32, world_size: u32) -> Result<Group, DistError> {
    init_with(JobOptions::at_with_environment(url, rank, world_size)?)
}

/// Joins the ranks that options describe: where they meet, what secret they show, how long they wait.
///
/// # Errors
/// [`DistError::Job`] where the ranks do not meet.
pub(crate) fn init_with(options: JobOptions) -> Result<Group, DistError> {
    let job = Job::join(options)?;
    Ok(Group::on(&job, TIMEOUT))
}

fn new_hub(ranks: u32) -> Arc<Hub> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Spinning pays where every rank has a core; otherwise it keeps the peer from answering.
    let spin = Duration::from_micros(if ranks as usize <= cores { 3 } else { 1 });
    Hub::new_packed(Patience { timeout: TIMEOUT, spin })
}

/// Runs `work` on `ranks` threads of this process, joined by a group, and gives their results in the order of the ranks.
///
/// # Errors
/// [`DistError::Rank`] with the first rank that fails or panics, [`DistError::Thread`] where the system has no thread for
/// one. The communication of the others ends then.
pub fn spawn<T: Send, E: Display>(
    ranks: u32,
    work: impl Fn(Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, DistError> {
    let (hub, first) = (new_hub(ranks), Mutex::new(None));
    let results: Vec<Option<T>> = std::thread::scope(|scope| {
        let (hub, first, work) = (&hub, &first, &work);
        let one = |rank| {
            let rank = (rank, ranks);
            let run = move || on_rank(hub, rank, first, work);
            let started = std::thread::Builder::new().spawn_scoped(scope, run);
            started.map_err(|error| end_unstarted(hub, rank, first, error)).ok()
        };
        let threads: Vec<_> = (0..ranks).map(one).collect();
        threads.into_iter().map(|thread| thread?.join().ok().flatten()).collect()
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failed) => Err(failed),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// Runs `work` on the ranks that the launcher has started, of which this process is one, or on `ranks` threads where the
/// program was started alone. Gives the results of this process's ranks.
///
/// # Errors
/// As [`init`] and [`spawn`].
pub fn run<T: Send, E: Display>(
    ranks: u32,
    work: impl Fn(Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, DistError> {
    let Some(job) = Job::from_environment()? else { return spawn(ranks, work) };
    let group = Group::on(&job, TIMEOUT);
    match work(group.clone()) {
        Ok(value) => Ok(vec![value]),
        Err(error) => {
            let reason = error.to_string();
            group.fail(&reason);
            Err(DistError::Rank { rank: job.rank(), reason })
        }
    }
}

/// Runs one rank of [`spawn`].
fn on_rank<T, E: Display>(
    hub: &Arc<Hub>,
    (rank, ranks): (u32, u32),
    first: &Mutex<Option<DistError>>,
    work: impl Fn(Group) -> Result<T, E>,
) -> Option<T> {
    let group = Group::of_threads(hub, rank, ranks);
    // This handle outlives the work's: a rank that fails has ended the job before its group waits for anything.
    let result = catch_unwind(AssertUnwindSafe(|| work(group.clone())));
    let reason = match result {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("panicked: {}", threads::panic_text(panic.as_ref())),
    };
    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
    first.get_or_insert_with(|| DistError::Rank { rank, reason: reason.clone() });
    group.fail(reason);
    None
}

/// Ends the job of a rank that has no thread.
fn end_unstarted(
    hub: &Arc<Hub>,
    (rank, ranks): (u32, u32),
    first: &Mutex<Option<DistError>>,
    error: std::io::Error,
) {
    let error = DistError::from_thread_error(threads::explain_thread_error(error));
    let reason = error.to_string();
    first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    Group::of_threads(hub, rank, ranks).fail(reason);
}
