//! Options of a process in its job: its rank, and where the job meets.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use graphc_ir::mesh::MOST_RANKS;

use super::{JobError, scheduler};
use crate::transport::TransportLinks;

/// The place where the processes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// A host and port at which rank 0 listens.
    Tcp {
        /// Host name or address of rank 0.
        host: String,
        /// Its port.
        port: u16,
    },
    /// Rank 0 writes its address and a secret into this file, which only this user can read. On several hosts that share
    /// it [`JobOptions::nodes`] says so; otherwise rank 0 listens at the loopback alone.
    File(PathBuf),
    /// MPI has started the processes, and brings rank 0's address to the others.
    #[cfg(feature = "mpi")]
    Mpi,
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::File(path) => write!(f, "{}", path.display()),
            #[cfg(feature = "mpi")]
            Self::Mpi => write!(f, "MPI"),
        }
    }
}

/// The identity of a process, and how it finds the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// This process's rank.
    pub rank: u32,
    /// Number of processes.
    pub world_size: u32,
    /// Its number among the processes of its host, as the launcher counts them.
    pub local_rank: u32,
    /// Number of hosts.
    pub nodes: u32,
    /// The place where they meet.
    pub meeting: Meeting,
    /// The secret that a process must know to be let in, the same on all ranks. Without one a job meets at an address of the
    /// loopback alone, or by a file, which brings a secret of its own.
    pub token: String,
    /// The time to wait for all processes at the start.
    pub join_timeout: Duration,
    /// The time without a sign of life after which a process counts as dead.
    pub heartbeat_timeout: Duration,
    /// The choice among shared memory, TCP and MPI for messages.
    pub links: TransportLinks,
}

impl JobOptions {
    /// Makes options for a rank of a job that meets at `url`: `tcp://host:port` or `file:///path`.
    ///
    /// # Errors
    /// [`JobError::Environment`] where the URL is neither, or the rank is beyond the world.
    pub fn from_url(url: &str, rank: u32, world_size: u32) -> Result<Self, JobError> {
        let wrong = |reason: String| JobError::Environment { reason };
        let meeting = if let Some(address) = url.strip_prefix("tcp://") {
            let parts = address.rsplit_once(':');
            let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let (host, port) =
                parts.ok_or_else(|| wrong(format!("`{url}` is not tcp://HOST:PORT")))?;
            Meeting::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port }
        } else if let Some(path) = url.strip_prefix("file://") {
            Meeting::File(PathBuf::from(path))
        } else {
            return Err(wrong(format!("`{url}` is neither tcp://HOST:PORT nor file:///PATH")));
        };
        check_world_size(world_size)?;
        if world_size == 0 || rank >= world_size {
            return Err(wrong(format!("there is no rank {rank} in a world of {world_size}")));
        }
        Ok(Self {
            rank,
            world_size,
            local_rank: 0,
            nodes: 1,
            meeting,
            token: String::new(),
            join_timeout: Duration::from_secs(300),
            heartbeat_timeout: Duration::from_secs(30),
            links: TransportLinks::Auto,
        })
    }

    /// Reads options as the launcher says: RANK, WORLD_SIZE, LOCAL_RANK, NODE_COUNT, MASTER_ADDR, MASTER_PORT, GRAPHC_JOB_TOKEN;
    /// and what the user may: GRAPHC_TRANSPORT (`auto`, `tcp` or `mpi`), GRAPHC_HEARTBEAT_TIMEOUT and GRAPHC_JOIN_TIMEOUT
    /// (seconds). Without WORLD_SIZE those that `srun` or `mpirun` of Open MPI or PMI has given; their ranks meet on the machine of
    /// rank 0 (MASTER_ADDR and MASTER_PORT say otherwise). `None` where nothing is said: the program was started alone. With the
    /// feature `mpi`, where `mpirun` has started the process, rank, size and the place to meet are MPI's.
    ///
    /// # Errors
    /// [`JobError::Environment`] where a variable is missing or makes no sense.
    pub fn from_environment() -> Result<Option<Self>, JobError> {
        let links = read_links()?;
        #[cfg(feature = "mpi")]
        if super::mpi::world_size(links)?.is_some() {
            return super::mpi::read_options(links)?.with_wishes().map(Some);
        }
        let Ok(world) = env::var("WORLD_SIZE") else { return Self::from_scheduler(links) };
        let world_size = parse_number("WORLD_SIZE", &world)?;
        let port: u16 = parse_number("MASTER_PORT", &read_required("MASTER_PORT")?)?;
        let meeting = (read_required("MASTER_ADDR")?, port);
        let (host, port) = scheduler::beside_torchrun(&of_process, meeting);
        let url = format!("tcp://{host}:{port}");
        let mut options =
            Self::from_url(&url, parse_number("RANK", &read_required("RANK")?)?, world_size)?;
        options.links = links;
        options.with_place()?.with_wishes().map(Some)
    }

    /// Makes options of a process that Slurm's `srun` or `mpirun` has started by itself.
    fn from_scheduler(links: TransportLinks) -> Result<Option<Self>, JobError> {
        let Some(task) = scheduler::find_started_task(&of_process)? else { return Ok(None) };
        let (host, port) = scheduler::meeting_address(&of_process, &task)?;
        let mut options = Self::from_url(
            &format!("tcp://{host}:{port}"),
            narrow_rank_count(task.rank)?,
            narrow_rank_count(task.size)?,
        )?;
        options.local_rank = narrow_rank_count(task.local_rank)?;
        options.nodes = narrow_rank_count(task.nodes)?;
        options.links = links;
        options.with_wishes().map(Some)
    }

    /// Returns the number of processes that the environment tells; `None` where the program was started alone.
    ///
    /// # Errors
    /// [`JobError::Environment`] where a variable makes no sense.
    pub fn world_size_from_environment() -> Result<Option<u32>, JobError> {
        #[cfg(feature = "mpi")]
        if let Some(size) = super::mpi::world_size(read_links()?)? {
            return parse_number("MPI's number of processes", &size).map(Some);
        }
        let Ok(text) = env::var("WORLD_SIZE") else {
            let task = scheduler::find_started_task(&of_process)?;
            return task.map(|task| narrow_rank_count(task.size)).transpose();
        };
        let size = parse_number("WORLD_SIZE", &text)?;
        check_world_size(size)?;
        Ok(Some(size))
    }

    /// Whether MPI carries what shared memory does not.
    #[cfg(feature = "mpi")]
    pub(super) fn by_mpi(&self) -> bool {
        self.links == TransportLinks::Mpi
            || self.links == TransportLinks::Auto && self.meeting == Meeting::Mpi
    }

    /// Whether MPI brings the processes together and carries nothing.
    #[cfg(feature = "mpi")]
    pub(super) fn only_meets_by_mpi(&self) -> bool {
        self.meeting == Meeting::Mpi && !self.by_mpi()
    }

    /// Makes options for a rank of a job that meets at `url`, as [`JobOptions::from_url`], and what the environment says
    /// besides: LOCAL_RANK, NODE_COUNT, and what the user may set, as [`JobOptions::from_environment`].
    ///
    /// # Errors
    /// [`JobError::Environment`] where URL, rank or a variable makes no sense.
    pub fn at_with_environment(url: &str, rank: u32, world_size: u32) -> Result<Self, JobError> {
        let mut options = Self::from_url(url, rank, world_size)?;
        options.links = read_links()?;
        options.with_place()?.with_wishes()
    }

    /// Adds the process's number on its host, and the number of hosts.
    fn with_place(mut self) -> Result<Self, JobError> {
        if let Ok(text) = env::var("LOCAL_RANK") {
            self.local_rank = parse_number("LOCAL_RANK", &text)?;
        }
        // torchrun says it by another name.
        for name in ["GROUP_WORLD_SIZE", "NODE_COUNT"] {
            if let Ok(text) = env::var(name) {
                self.nodes = parse_number(name, &text)?;
            }
        }
        Ok(self)
    }

    /// Adds the options that the user has set.
    fn with_wishes(mut self) -> Result<Self, JobError> {
        self.token = env::var("GRAPHC_JOB_TOKEN").unwrap_or_default();
        read_seconds("GRAPHC_HEARTBEAT_TIMEOUT", &mut self.heartbeat_timeout)?;
        read_seconds("GRAPHC_JOIN_TIMEOUT", &mut self.join_timeout)?;
        Ok(self)
    }
}

/// Returns a variable of this process's environment.
fn of_process(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Checks a number of ranks or machines: a job has not more of them than it may have ranks.
fn narrow_rank_count(number: usize) -> Result<u32, JobError> {
    let size = u32::try_from(number).unwrap_or(u32::MAX);
    check_world_size(size)?;
    Ok(size)
}

/// Checks a number of ranks before it is believed: a mesh of so many ranks is made.
fn check_world_size(size: u32) -> Result<(), JobError> {
    if size as usize <= MOST_RANKS {
        return Ok(());
    }
    let reason = format!("a world of {size} processes: a job has at most {MOST_RANKS}");
    Err(JobError::Environment { reason })
}

/// Reads the links that GRAPHC_TRANSPORT asks for.
fn read_links() -> Result<TransportLinks, JobError> {
    let reason = match env::var("GRAPHC_TRANSPORT").as_deref() {
        Err(_) | Ok("auto" | "") => return Ok(TransportLinks::Auto),
        Ok("tcp") => return Ok(TransportLinks::Tcp),
        #[cfg(feature = "mpi")]
        Ok("mpi") => return Ok(TransportLinks::Mpi),
        #[cfg(not(feature = "mpi"))]
        Ok("mpi") => {
            "GRAPHC_TRANSPORT is `mpi`, but this program was built without the feature `mpi`: \
                      build it with --features mpi"
                .to_owned()
        }
        Ok(other) => format!("GRAPHC_TRANSPORT is `auto`, `tcp` or `mpi`, not `{other}`"),
    };
    Err(JobError::Environment { reason })
}

fn read_required(name: &str) -> Result<String, JobError> {
    let missing = || JobError::Environment {
        reason: format!("WORLD_SIZE is set, but {name} is not: start with `graphc launch`"),
    };
    env::var(name).map_err(|_| missing())
}

fn parse_number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, JobError> {
    let wrong = || JobError::Environment { reason: format!("{name} is `{text}`, not a number") };
    text.trim().parse().map_err(|_| wrong())
}

fn read_seconds(name: &str, value: &mut Duration) -> Result<(), JobError> {
    if let Ok(text) = env::var(name) {
        let read: f64 = parse_number(name, &text)?;
        if !(read > 0.0 && read < 1e9) {
            let reason = format!("{name} is a number of seconds above 0, not {text}");
            return Err(JobError::Environment { reason });
        }
        *value = Duration::from_secs_f64(read);
    }
    Ok(())
}
