//! A job: several processes, one rank each, that run one plan or one program together.
//!
//! They meet at rank 0 ([`Job::join`]), whose coordinator then watches over them: a process that dies, falls silent or
//! fails ends the job on all of them, with one account of who, where, why, and what each was doing. Tensors do not go this
//! way but through [`crate::transport`]; what does are beats, small exchanges of bytes ([`Job::all_gather`]), and the end.
//!
//! Start reading with `options`, then `wire`, `coordinator` and `line`.

mod activity;
mod coordinator;
mod error;
pub(crate) mod handshake;
mod line;
#[cfg(feature = "mpi")]
mod mpi;
mod options;
mod wire;

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::RuntimeError;
use crate::transport::Transport;
use crate::transport::in_process::Patience;
use crate::transport::process::{Fabric, Outside, Parts, ProcessTransport};
use coordinator::Coordinator;
use wire::Message;

pub(crate) use activity::{Activity, enter, waiting};
pub use error::JobError;
pub(crate) use line::Line;
pub use options::{JobOptions, Links, Meeting};
pub(crate) use wire::Member;

/// How long to wait before the next try to reach rank 0.
const RETRY: Duration = Duration::from_millis(20);

/// This process's membership in its job. Dropping the last handle says goodbye to the others; where this is rank 0, it
/// waits until all have.
pub struct Job {
    options: JobOptions,
    line: Arc<Line>,
    fabric: Arc<Fabric>,
    gathers: AtomicU64,
    transports: AtomicU32,
    /// Rank 0's.
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
        let (options, coordinator) = assemble(options)?;
        let own = coordinator.as_ref().map(Coordinator::address);
        let stream = reach(&options, own)?;
        let address = stream.local_addr().map_err(system("find its own address"))?.ip();
        let tcp = || Outside::tcp(address).map_err(system("listen for its peers"));
        #[cfg(feature = "mpi")]
        let outside = if by_mpi { Outside::Mpi(mpi::world_of(&options)?) } else { tcp()? };
        #[cfg(not(feature = "mpi"))]
        let outside = tcp()?;
        let parts = Parts::new(outside, options.links);
        let line = Line::start(&stream, rank, options.heartbeat_timeout);
        let line = line.map_err(system("start a thread"))?;
        let result = meet(&options, parts, &line);
        let fabric = match result {
            Ok(fabric) => fabric,
            Err(error) => {
                line.close();
                return Err(error);
            }
        };
        #[cfg(feature = "mpi")]
        if done_with_mpi {
            mpi::end(rank)?;
        }
        let (gathers, transports) = (AtomicU64::new(0), AtomicU32::new(0));
        let coordinator = Mutex::new(coordinator);
        Ok(Arc::new(Self { options, line, fabric, gathers, transports, coordinator }))
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.options.rank
    }

    /// Number of processes.
    pub fn world_size(&self) -> u32 {
        self.options.world_size
    }

    /// This process's number on its host, as the launcher counts.
    pub fn local_rank(&self) -> u32 {
        self.options.local_rank
    }

    /// How many ranks, this one among them, are joined by this host's memory.
    pub fn neighbours(&self) -> usize {
        self.fabric.neighbours()
    }

    /// Number of hosts.
    pub fn nodes(&self) -> u32 {
        self.options.nodes
    }

    /// Brings `bytes` and gets those of all ranks, in their order. All ranks call it, the same number of times. For small
    /// data: it goes through rank 0.
    ///
    /// # Errors
    /// [`RuntimeError::Job`] where the job ends before all have come.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, RuntimeError> {
        if let Some(ended) = self.line.ended() {
            return Err(ended);
        }
        let number = self.gathers.fetch_add(1, Ordering::Relaxed);
        let key = format!("exchange {number}");
        let _waiting = waiting(|| format!("for all ranks in {key}"));
        self.line.say(&Message::Gather { key: key.clone() }, bytes);
        let gathered = self.line.gathered(&key);
        gathered.ok_or_else(|| self.line.ended().unwrap_or(RuntimeError::ShutDown))
    }

    /// Gives rank 0's bytes to all ranks; the others bring nothing.
    ///
    /// # Errors
    /// As [`Job::all_gather`].
    pub fn from_rank_0(&self, bytes: &[u8]) -> Result<Vec<u8>, RuntimeError> {
        let own: &[u8] = if self.rank() == 0 { bytes } else { &[] };
        Ok(self.all_gather(own)?.swap_remove(0))
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`Job::all_gather`].
    pub fn barrier(&self) -> Result<(), RuntimeError> {
        self.all_gather(&[]).map(|_| ())
    }

    /// Ends the job on all ranks because this one cannot go on.
    pub fn fail(&self, reason: impl std::fmt::Display) {
        self.line.fail(RuntimeError::Program { reason: reason.to_string() });
    }

    /// Why the job has ended, if it has: who, where, why, and what each rank was doing.
    pub fn ended(&self) -> Option<RuntimeError> {
        self.line.ended()
    }

    /// A transport with tags of its own; all ranks make theirs in the same order.
    pub(crate) fn transport(&self, timeout: Duration) -> Arc<dyn Transport> {
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
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Rank 0 begins to lead; the others learn where it is.
fn assemble(options: JobOptions) -> Result<(JobOptions, Option<Coordinator>), JobError> {
    #[cfg(feature = "mpi")]
    if options.meeting == Meeting::Mpi {
        return assemble_by_mpi(options);
    }
    let coordinator = if options.rank == 0 { Some(lead(&options)?) } else { None };
    Ok((options, coordinator))
}

#[cfg(feature = "mpi")]
fn assemble_by_mpi(mut options: JobOptions) -> Result<(JobOptions, Option<Coordinator>), JobError> {
    if options.rank > 0 {
        mpi::accept(&mut options)?;
        return Ok((options, None));
    }
    mpi::draw_token(&mut options)?;
    let leading = lead(&options);
    mpi::invite(&options, &leading)?;
    Ok((options, Some(leading?)))
}

/// Rank 0 listens where the others will look for it.
fn lead(options: &JobOptions) -> Result<Coordinator, JobError> {
    let (host, port) = match &options.meeting {
        Meeting::Tcp { host, port } => (host.as_str(), *port),
        // The others are told the port.
        _ => ("0.0.0.0", 0),
    };
    let address = format!("{host}:{port}");
    let fail =
        |error: io::Error| JobError::Listen { address: address.clone(), reason: error.to_string() };
    let bound = match TcpListener::bind((host, port)) {
        // The name may be that of a gateway, or not known here: then at all addresses.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(("0.0.0.0", port))
        }
        bound => bound,
    };
    let listener = bound.map_err(fail)?;
    if let Meeting::File(path) = &options.meeting {
        let port = listener.local_addr().map_err(fail)?.port();
        let write = write_address(path, port);
        write.map_err(|error| JobError::Listen {
            address: path.display().to_string(),
            reason: error.to_string(),
        })?;
    }
    Coordinator::start(listener, options).map_err(fail)
}

/// Writes where rank 0 listens, complete or not at all.
fn write_address(path: &Path, port: u16) -> io::Result<()> {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy();
    let text = format!("127.0.0.1:{port}\n{host}:{port}\n");
    crate::data::write_file(path, text.as_bytes()).map_err(io::Error::other)
}

/// Connects to rank 0, which may not be there yet.
fn reach(options: &JobOptions, own: Option<std::net::SocketAddr>) -> Result<TcpStream, JobError> {
    let begun = Instant::now();
    loop {
        let all = addresses(options, own);
        let address = match &all {
            Ok(all) => all.join(", "),
            Err(_) => options.meeting.to_string(),
        };
        let tried = all.and_then(|all| first(all.iter().map(|one| enter_at(one, options))));
        let error = match tried {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        // Who does not know the token will not learn it; a file may still be that of a job before.
        let refused = error.kind() == io::ErrorKind::PermissionDenied
            && matches!(options.meeting, Meeting::Tcp { .. });
        if refused || begun.elapsed() > options.join_timeout {
            let (rank, seconds) = (options.rank, begun.elapsed().as_secs_f64());
            let reason = error.to_string();
            return Err(JobError::Unreachable { rank, address, seconds, reason });
        }
        std::thread::sleep(RETRY);
    }
}

/// The first success, or the last failure.
fn first<T>(tries: impl Iterator<Item = io::Result<T>>) -> io::Result<T> {
    let mut last = io::Error::other("the name has no address");
    for result in tries {
        match result {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where rank 0 may be.
fn addresses(options: &JobOptions, own: Option<std::net::SocketAddr>) -> io::Result<Vec<String>> {
    if let Some(own) = own {
        return Ok(match own.ip().is_unspecified() {
            true => vec![format!("127.0.0.1:{}", own.port())],
            false => vec![own.to_string()],
        });
    }
    match &options.meeting {
        Meeting::Tcp { host, port } if host.contains(':') => Ok(vec![format!("[{host}]:{port}")]),
        Meeting::Tcp { host, port } => Ok(vec![format!("{host}:{port}")]),
        Meeting::File(path) => {
            let text = crate::data::read_file(path, 1 << 16)?;
            Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
        }
        #[cfg(feature = "mpi")]
        Meeting::Mpi => Err(io::Error::other("MPI has not said where rank 0 is")),
    }
}

fn enter_at(address: &str, options: &JobOptions) -> io::Result<TcpStream> {
    first(address.to_socket_addrs()?.map(|address| {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        handshake::connect(&mut stream, &options.token, options.rank)?;
        Ok(stream)
    }))
}

/// From the first word to the connections with all others.
fn meet(options: &JobOptions, mut parts: Parts, line: &Arc<Line>) -> Result<Arc<Fabric>, JobError> {
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
        segment: parts.segment(),
    };
    line.say(&Message::Join(member), &[]);
    let late = || match line.ended() {
        Some(ended) => JobError::Ended { report: ended.to_string() },
        None => JobError::Late { rank, seconds: options.join_timeout.as_secs_f64() },
    };
    // The coordinator gives up first, and knows who is missing.
    let timeout = options.join_timeout + Duration::from_secs(5);
    let roster = line.roster(timeout).ok_or_else(late)?;
    let shares = parts.map(rank, &roster);
    line.say(&Message::Ready { shares }, &[]);
    let shares = line.shares(timeout).ok_or_else(late)?;
    parts.join(rank, &options.token, roster, &shares, line).map_err(system)
}

/// What processes that can see each other's memory have in common: one kernel, one set of process numbers, one network.
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
