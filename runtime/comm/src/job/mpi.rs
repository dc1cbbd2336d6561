//! Jobs that MPI has started (`mpirun`): rank and size are MPI's, and a broadcast brings rank 0's address to the others.

use std::env;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use graphc_ir::hex::encode_hex;
use serde::{Deserialize, Serialize};

use super::coordinator::Coordinator;
use super::{JobError, JobOptions, Meeting};
use crate::mpi::MpiWorld;
use crate::transport::TransportLinks;

/// The variables in which MPI's launchers give rank and size.
const NAMES: [[&str; 2]; 2] =
    [["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], ["PMI_RANK", "PMI_SIZE"]];
/// Bytes of the broadcast: a name of a host is at most 255.
const INVITATION: usize = 2048;

/// The address and token of rank 0 for those who join, or why there is none.
#[derive(Serialize, Deserialize)]
enum MpiInvitation {
    Come { host: String, port: u16, token: String },
    Fail(String),
}

/// Returns the number of processes that MPI has started, this one among them, where it is the one to join them.
pub(super) fn world_size(links: TransportLinks) -> Result<Option<String>, JobError> {
    let find = |[rank, size]: &[&str; 2]| Some((env::var(rank).ok()?, env::var(size).ok()?));
    let started = NAMES.iter().find_map(find);
    let (launched, size) = (env::var("RANK").ok(), env::var("WORLD_SIZE").ok());
    let same = |(r, s): &(String, String)| {
        size.is_none() || size.as_ref() == Some(s) && launched.as_ref() == Some(r)
    };
    match links {
        TransportLinks::Mpi if size.is_some() && !started.as_ref().is_some_and(same) => {
            let reason = "GRAPHC_TRANSPORT is `mpi`, but MPI has not started the ranks that RANK and \
                          WORLD_SIZE speak of: start them with mpirun, one rank per process";
            Err(JobError::Environment { reason: reason.to_owned() })
        }
        TransportLinks::Tcp if size.is_some() => Ok(None),
        _ => Ok(started.filter(same).map(|(_, size)| size)),
    }
}

/// Reads the options of this process, which MPI has started.
pub(super) fn read_options(links: TransportLinks) -> Result<JobOptions, JobError> {
    let world = open_world()?;
    let mut options = JobOptions::from_url("tcp://mpi:0", world.rank, world.size)?;
    options.meeting = Meeting::Mpi;
    options.links = links;
    options.local_rank = world.local_rank;
    options.nodes = world.nodes;
    Ok(options)
}

/// Starts MPI.
pub(super) fn open_world() -> Result<Arc<MpiWorld>, JobError> {
    MpiWorld::start_once().map_err(|reason| JobError::Mpi { reason })
}

/// Starts MPI, whose ranks must be those of the job.
pub(super) fn world_of(options: &JobOptions) -> Result<Arc<MpiWorld>, JobError> {
    let world = open_world()?;
    if (world.rank, world.size) != (options.rank, options.world_size) {
        let reason = format!(
            "it has started this process as rank {} of {}, and the job says {} of {}",
            world.rank, world.size, options.rank, options.world_size
        );
        return Err(JobError::Mpi { reason });
    }
    Ok(world)
}

/// Ends MPI, which has brought the processes together and carries nothing.
pub(super) fn end_mpi(rank: u32) -> Result<(), JobError> {
    let owner =
        open_world()?.serve(|| true).map_err(|error| JobError::Mpi { reason: error.to_string() });
    owner?.join().map_err(|_| JobError::Mpi { reason: format!("rank {rank} cannot end it") })
}

/// Draws a secret, where the user has given none.
pub(super) fn draw_token(options: &mut JobOptions) -> Result<(), JobError> {
    if options.token.is_empty() {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| JobError::Mpi { reason: error.to_string() })?;
        options.token = encode_hex(&bytes);
    }
    Ok(())
}

/// Tells the others where rank 0 listens, or that it does not.
pub(super) fn invite_ranks(
    options: &JobOptions,
    leading: &Result<Coordinator, JobError>,
) -> Result<(), JobError> {
    let invitation = match leading {
        Ok(coordinator) => MpiInvitation::Come {
            host: match coordinator.address().ip() {
                ip if ip.is_unspecified() || ip.is_loopback() => node_name(),
                ip => ip.to_string(),
            },
            port: coordinator.address().port(),
            token: options.token.clone(),
        },
        Err(error) => MpiInvitation::Fail(error.to_string()),
    };
    let mut bytes = serde_json::to_vec(&invitation).unwrap_or_default();
    if bytes.len() > INVITATION {
        let reason = "GRAPHC_JOB_TOKEN is too long".to_owned();
        return Err(JobError::Environment { reason });
    }
    bytes.resize(INVITATION, b' ');
    broadcast_bytes(options, bytes).map(|_| ())
}

/// Takes from rank 0 where it listens.
pub(super) fn accept_invitation(options: &mut JobOptions) -> Result<(), JobError> {
    let bytes = broadcast_bytes(options, vec![b' '; INVITATION])?;
    match serde_json::from_slice(&bytes) {
        Ok(MpiInvitation::Come { host, port, token }) => {
            // A host need not know itself by its name.
            let host = if host == node_name() { "127.0.0.1".to_owned() } else { host };
            (options.meeting, options.token) = (Meeting::Tcp { host, port }, token);
            Ok(())
        }
        Ok(MpiInvitation::Fail(report)) => Err(JobError::Ended { report }),
        Err(error) => Err(JobError::Mpi { reason: format!("rank 0 has said no address: {error}") }),
    }
}

fn broadcast_bytes(options: &JobOptions, bytes: Vec<u8>) -> Result<Vec<u8>, JobError> {
    let fail = |error: io::Error| JobError::Mpi { reason: error.to_string() };
    let begun = Instant::now();
    let mut flying = world_of(options)?.communicator.broadcast(bytes).map_err(fail)?;
    loop {
        if let Some(bytes) = flying.take_if_done().map_err(fail)? {
            return Ok(bytes);
        }
        if begun.elapsed() > options.join_timeout {
            let seconds = options.join_timeout.as_secs_f64();
            return Err(JobError::Late { rank: options.rank, seconds });
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
