//! A job: several processes, one rank each, that run one plan or one program together.
//!
//! This is the control plane. The processes meet at rank 0 ([`Job::join`]), whose coordinator then watches over them. It
//! hears their beats, and ends the job when one fails, dies (its connection closes without a goodbye) or is silent for
//! too long. Then it asks each process what its workers were doing, and sends all of them one account of who, where and
//! why. So every wait of the runtime ends: with the answer, with the job, with the peer's leave, or with the session's
//! timeout.
//!
//! Tensors do not go this way but through [`crate::transport`]. What does are beats, small exchanges of bytes
//! ([`Job::all_gather`]), and the end.
//!
//! Rank 0 alone plans; the others get the plan through the job. Ranks of different versions of graphc cannot join. What
//! else must be alike on all ranks is compared before the first step ([`Agreement`]).
//!
//! Start reading with `options` and `meeting`, then [`crate::control`] and `coordinator`.

mod agreement;
mod coordinator;
mod error;
mod meeting;
#[cfg(feature = "mpi")]
mod mpi;
mod options;
mod port;
mod rendezvous;
mod scheduler;

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use graphc_ir::enter_span;

use crate::control::{ControlMessage, JobLine, Member, read_message};
use crate::end::JobEnd;
use crate::transport::process::{Fabric, FabricParts, OutsideNetwork, ProcessTransport};
use crate::transport::{Patience, Transport};
use coordinator::Coordinator;

pub use crate::transport::TransportLinks;
pub use agreement::Agreement;
pub use agreement::list_differences;
pub use error::JobError;
pub use options::{JobOptions, Meeting};
pub use port::free_port;
pub use scheduler::{Environment, SchedulerTask, find_task};

/// Reads the bytes of the control plane and returns how many messages they are, for those who try what a process does
/// with nonsense.
///
/// # Errors
/// Where they are none.
#[doc(hidden)]
pub fn count_messages(mut bytes: &[u8]) -> io::Result<usize> {
    let mut messages = 0;
    while !bytes.is_empty() {
        read_message(&mut bytes)?;
        messages += 1;
    }
    Ok(messages)
}

/// This process's membership in its job. Dropping the last handle says goodbye to the others; where this is rank 0, it
/// waits until all have.
pub struct Job {
    options: JobOptions,
    line: Arc<JobLine>,
    fabric: Arc<Fabric>,
    gathers: AtomicU64,
    transports: AtomicU32,
    sessions: AtomicU64,
    /// The coordinator, on rank 0 alone.
    coordinator: Mutex<Option<Coordinator>>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job(rank {} of {})", self.options.rank, self.options.world_size)
    }
}

impl Job {
    /// Joins the job that the launcher's environment describes ([`JobOptions::from_environment`]); `None` where the
    /// program was started alone.
    ///
    /// # Errors
    /// Where the environment makes no sense, or as [`Job::join`].
    pub fn from_environment() -> Result<Option<Arc<Self>>, JobError> {
        JobOptions::from_environment()?.map(Self::join).transpose()
    }

    /// Meets the other processes. Returns when all are there.
    ///
    /// # Errors
    /// Where rank 0 cannot listen or be reached, a rank is missing after the join timeout, or two processes claim one
    /// rank.
    pub fn join(options: JobOptions) -> Result<Arc<Self>, JobError> {
        let _span = enter_span!("join_job");
        let rank = options.rank;
        let system = |what: &'static str| {
            move |error: io::Error| JobError::System {
                rank,
                what: what.to_owned(),
                reason: error.to_string(),
            }
        };
        #[cfg(feature = "mpi")]
        let (by_mpi, done_with_mpi) = (options.by_mpi(), options.only_meets_by_mpi());
        meeting::check_secret(&options)?;
        let (mut options, coordinator) = meeting::assemble_job(options)?;
        let own = coordinator.as_ref().map(Coordinator::address);
        let stream = meeting::reach_leader(&mut options, own)?;
        let address = stream.local_addr().map_err(system("find its own address"))?.ip();
        let tcp = || OutsideNetwork::listen_tcp(address).map_err(system("listen for its peers"));
        #[cfg(feature = "mpi")]
        let outside = if by_mpi { OutsideNetwork::Mpi(mpi::world_of(&options)?) } else { tcp()? };
        #[cfg(not(feature = "mpi"))]
        let outside = tcp()?;
        let parts = FabricParts::new(outside, options.links);
        let line = JobLine::start(&stream, rank, options.heartbeat_timeout);
        let line = line.map_err(system("start a thread"))?;
        let result = meet_peers(&options, parts, &line);
        let fabric = match result {
            Ok(fabric) => fabric,
            Err(error) => {
                line.close();
                return Err(error);
            }
        };
        #[cfg(feature = "mpi")]
        if done_with_mpi {
            mpi::end_mpi(rank)?;
        }
        let (gathers, transports) = (AtomicU64::new(0), AtomicU32::new(0));
        let (sessions, coordinator) = (AtomicU64::new(0), Mutex::new(coordinator));
        Ok(Arc::new(Self { options, line, fabric, gathers, transports, sessions, coordinator }))
    }

    /// Returns this process's rank.
    pub fn rank(&self) -> u32 {
        self.options.rank
    }

    /// Returns the number of processes.
    pub fn world_size(&self) -> u32 {
        self.options.world_size
    }

    /// Returns this process's number on its host, as the launcher counts.
    pub fn local_rank(&self) -> u32 {
        self.options.local_rank
    }

    /// Returns the number of ranks, this one among them, that are joined by this host's memory.
    pub fn neighbours(&self) -> usize {
        self.fabric.neighbours()
    }

    /// Returns the number of hosts.
    pub fn nodes(&self) -> u32 {
        self.options.nodes
    }

    /// Brings `bytes` and gets those of all ranks, in their order. All ranks call it, the same number of times. For small
    /// data: it goes through rank 0.
    ///
    /// # Errors
    /// [`JobEnd::Job`] where the job ends before all have come.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, JobEnd> {
        let number = self.gathers.fetch_add(1, Ordering::Relaxed);
        self.gather_bytes(format!("exchange {number}"), bytes)
    }

    /// Gives rank 0's bytes to all ranks; the others bring nothing.
    ///
    /// # Errors
    /// As [`Job::all_gather`].
    pub fn from_rank_0(&self, bytes: &[u8]) -> Result<Vec<u8>, JobEnd> {
        let own: &[u8] = if self.rank() == 0 { bytes } else { &[] };
        Ok(self.all_gather(own)?.swap_remove(0))
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`Job::all_gather`].
    pub fn barrier(&self) -> Result<(), JobEnd> {
        self.all_gather(&[]).map(|_| ())
    }

    /// Ends the job on all ranks because this one cannot go on.
    pub fn fail(&self, reason: impl std::fmt::Display) {
        self.line.fail(JobEnd::Program { reason: reason.to_string() });
    }

    /// Returns the activities of this process's workers, and for whom they wait: a line each.
    pub fn activity_lines(&self) -> Vec<String> {
        self.line.activities.status_lines()
    }

    /// Returns the reason why the job has ended, if it has: who, where, why, and what each rank was doing.
    pub fn end_reason(&self) -> Option<JobEnd> {
        self.line.end_reason()
    }

    /// Returns the number of the session that begins; all ranks make theirs in the same order.
    pub fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a transport with tags of its own; all ranks make theirs in the same order.
    pub fn new_transport(&self, timeout: Duration) -> Arc<dyn Transport> {
        let number = self.transports.fetch_add(1, Ordering::Relaxed);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Spinning pays where every rank has a core; otherwise it keeps the peer from answering.
        let spin = if self.fabric.neighbours() <= cores { 3 } else { 1 };
        let patience = Patience { timeout, spin: Duration::from_micros(spin) };
        Arc::new(ProcessTransport::new(&self.fabric, number, patience))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.line.close();
        // Rank 0 waits here until all have left.
        drop(self.coordinator.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.fabric.close();
        if let Meeting::File(path) = &self.options.meeting
            && self.options.rank == 0
        {
            rendezvous::remove_invitation(path, &self.options.token);
        }
    }
}

/// Meets all others, from the first word to the connections with them.
fn meet_peers(
    options: &JobOptions,
    mut parts: FabricParts,
    line: &Arc<JobLine>,
) -> Result<Arc<Fabric>, JobError> {
    let rank = options.rank;
    let system = |error: io::Error| JobError::System {
        rank,
        what: "join its peers".to_owned(),
        reason: error.to_string(),
    };
    let member = Member {
        rank,
        world_size: options.world_size,
        address: String::new(),
        port: parts.port().map_err(system)?,
        host: host_name(),
        pid: std::process::id(),
        segment: parts.segment_descriptor(),
        version: protocol_version(),
    };
    line.send_message(&ControlMessage::Join(member), &[]);
    let late = || match line.end_reason() {
        Some(ended) => JobError::Ended { report: ended.to_string() },
        None => JobError::Late { rank, seconds: options.join_timeout.as_secs_f64() },
    };
    // The coordinator gives up first, and knows who is missing.
    let timeout = options.join_timeout + Duration::from_secs(5);
    let roster = line.wait_for_roster(timeout).ok_or_else(late)?;
    let shares = parts.map_peers(rank, &roster);
    line.send_message(&ControlMessage::Ready { shares }, &[]);
    let shares = line.wait_for_shares(timeout).ok_or_else(late)?;
    parts.join_peers(rank, &options.token, roster, &shares, line).map_err(system)
}

/// Returns the version that must be the same build: other versions may take the same plan for something else.
fn protocol_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Returns the name of the host, for processes that can see each other's memory: one kernel, one set of process numbers, one
/// network.
fn host_name() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |name: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}"));
        link.map(|path| path.display().to_string()).unwrap_or_default()
    };
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy();
    format!("{host} {} {} {}", boot.trim(), space("pid"), space("net"))
}
