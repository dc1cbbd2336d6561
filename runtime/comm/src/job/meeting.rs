//! The meeting of a job's processes: rank 0 listens, where the others need it and no further, and the others come.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::coordinator::Coordinator;
use super::rendezvous::{self, FileInvitation};
use super::{JobError, JobOptions, Meeting};
use crate::control::handshake;
use crate::standstill::WaitingTime;

/// The time before the next try to reach rank 0.
const RETRY: Duration = Duration::from_millis(20);
/// The time that one try may take.
const TRY: Duration = Duration::from_secs(5);

/// Checks that a job without a secret meets on one machine alone: otherwise whoever came first could be a rank.
pub(super) fn check_secret(options: &JobOptions) -> Result<(), JobError> {
    let Meeting::Tcp { host, port } = &options.meeting else { return Ok(()) };
    if options.world_size == 1 || !options.token.is_empty() || is_loopback(host) {
        return Ok(());
    }
    let reason = format!(
        "the ranks meet at {host}:{port}, where others on the network could come in: set GRAPHC_JOB_TOKEN to the same \
         secret on all ranks (or `JobOptions::token`)"
    );
    Err(JobError::Environment { reason })
}

fn is_loopback(host: &str) -> bool {
    let addresses = (host, 0).to_socket_addrs();
    addresses.is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}

/// Brings the ranks together: rank 0 begins to lead; the others learn where it is.
pub(super) fn assemble_job(
    mut options: JobOptions,
) -> Result<(JobOptions, Option<Coordinator>), JobError> {
    #[cfg(feature = "mpi")]
    if options.meeting == Meeting::Mpi {
        return assemble_by_mpi(options);
    }
    let coordinator = if options.rank == 0 { Some(start_leading(&mut options)?) } else { None };
    Ok((options, coordinator))
}

#[cfg(feature = "mpi")]
fn assemble_by_mpi(mut options: JobOptions) -> Result<(JobOptions, Option<Coordinator>), JobError> {
    use super::mpi;
    if options.rank > 0 {
        mpi::accept_invitation(&mut options)?;
        return Ok((options, None));
    }
    mpi::draw_token(&mut options)?;
    let leading = start_leading(&mut options);
    mpi::invite_ranks(&options, &leading)?;
    Ok((options, Some(leading?)))
}

/// Starts rank 0's service, where the others will look for it.
fn start_leading(options: &mut JobOptions) -> Result<Coordinator, JobError> {
    let (listener, address) = match &options.meeting {
        Meeting::Tcp { host, port } => (listen_at(host, *port), format!("{host}:{port}")),
        // The others are told the port.
        _ => {
            let address = own_address(options.nodes);
            (TcpListener::bind((address, 0)), address.to_string())
        }
    };
    let fail =
        |error: io::Error| JobError::Listen { address: address.clone(), reason: error.to_string() };
    let listener = listener.map_err(fail)?;
    if let Meeting::File(path) = &options.meeting {
        let at = listener.local_addr().map_err(fail)?;
        let written = FileInvitation::new(at).and_then(|invitation| {
            rendezvous::write_invitation(path, &invitation)?;
            Ok(invitation)
        });
        let fail = |error: io::Error| JobError::Listen {
            address: path.display().to_string(),
            reason: error.to_string(),
        };
        options.token += &written.map_err(fail)?.secret;
    }
    Coordinator::start(listener, options).map_err(fail)
}

/// Listens at an address that the user has named.
fn listen_at(host: &str, port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((host, port)) {
        // The name may be that of a gateway, or not known here: then at all addresses.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        bound => bound,
    }
}

/// Returns the address at which processes on so many hosts reach this one: the loopback where there is but this host, its
/// name where there are more, and all addresses only where the name leads nowhere.
fn own_address(nodes: u32) -> IpAddr {
    if nodes <= 1 {
        return Ipv4Addr::LOCALHOST.into();
    }
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    let mut addresses = (name, 0).to_socket_addrs().into_iter().flatten();
    let found = addresses.find(|address| !address.ip().is_loopback());
    found.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip())
}

/// Connects to rank 0, which may not be there yet. Where a file tells of it, the token is then what the file says.
pub(super) fn reach_leader(
    options: &mut JobOptions,
    own: Option<SocketAddr>,
) -> Result<TcpStream, JobError> {
    let mut time = WaitingTime::begin(options.join_timeout);
    loop {
        let all = leader_addresses(options, own);
        let address = match &all {
            Ok((all, _)) => all.join(", "),
            Err(_) => options.meeting.to_string(),
        };
        let tried = all.and_then(|(all, token)| {
            let stream = first_success(all.iter().map(|one| enter_at(one, &token, options.rank)))?;
            Ok((stream, token))
        });
        let error = match tried {
            Ok((stream, token)) => {
                options.token = token;
                return Ok(stream);
            }
            Err(error) => error,
        };
        // Who does not know the token will not learn it; a file may still be that of a job before.
        let refused = error.kind() == io::ErrorKind::PermissionDenied
            && matches!(options.meeting, Meeting::Tcp { .. });
        let waited = time.elapsed();
        if refused || waited > options.join_timeout {
            let (rank, seconds) = (options.rank, waited.as_secs_f64());
            let reason = error.to_string();
            return Err(JobError::Unreachable { rank, address, seconds, reason });
        }
        std::thread::sleep(RETRY);
    }
}

/// Returns the first success, or the last failure.
fn first_success<T>(tries: impl Iterator<Item = io::Result<T>>) -> io::Result<T> {
    let mut last = io::Error::other("the name has no address");
    for result in tries {
        match result {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the places where rank 0 may be, and the token that it wants to be shown.
fn leader_addresses(
    options: &JobOptions,
    own: Option<SocketAddr>,
) -> io::Result<(Vec<String>, String)> {
    let token = options.token.clone();
    if let Some(own) = own {
        let ip = match own.ip().is_unspecified() {
            // The others see this process as it comes: from an address that they can reach, where there is one.
            true => match own_address(options.nodes) {
                ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                ip => ip,
            },
            false => own.ip(),
        };
        return Ok((vec![SocketAddr::new(ip, own.port()).to_string()], token));
    }
    match &options.meeting {
        Meeting::Tcp { host, port } if host.contains(':') => {
            Ok((vec![format!("[{host}]:{port}")], token))
        }
        Meeting::Tcp { host, port } => Ok((vec![format!("{host}:{port}")], token)),
        Meeting::File(path) => {
            let FileInvitation { addresses, secret } = rendezvous::read_invitation(path)?;
            Ok((addresses, token + &secret))
        }
        #[cfg(feature = "mpi")]
        Meeting::Mpi => Err(io::Error::other("MPI has not said where rank 0 is")),
    }
}

fn enter_at(address: &str, token: &str, rank: u32) -> io::Result<TcpStream> {
    first_success(address.to_socket_addrs()?.map(|address| {
        let mut stream = TcpStream::connect_timeout(&address, TRY)?;
        handshake::request_entry(&mut stream, token, rank)?;
        Ok(stream)
    }))
}
