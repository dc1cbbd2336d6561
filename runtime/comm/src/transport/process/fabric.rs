//! The fabric that joins the processes of a job: it is made in parts, while they meet.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use super::bell::Bell;
use super::frames::Inboxes;
#[cfg(feature = "mpi")]
use super::mpi::Mpi;
use super::outbox::{Outbox, PeerMemory};
use super::queue::{Carrier, ProcessNetwork};
use super::tcp::Tcp;
use super::wait::HasBell;
use crate::control::{JobLine, Member};
#[cfg(feature = "mpi")]
use crate::mpi::MpiWorld;
use crate::transport::TransportLinks;

/// The way to a peer.
#[derive(Debug)]
pub(super) enum PeerLink {
    Shared(Arc<PeerMemory>),
    Network,
}

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(super) rank: u32,
    pub(super) line: Arc<JobLine>,
    pub(super) bell: Arc<dyn HasBell>,
    pub(super) outbox: Option<Arc<Outbox>>,
    pub(super) network: Arc<ProcessNetwork>,
    /// The links to the ranks, this one among them.
    pub(super) links: Vec<PeerLink>,
}

/// The parts of a fabric that a process has before it knows the others.
#[derive(Debug)]
pub(crate) struct FabricParts {
    outbox: Option<Arc<Outbox>>,
    outside: OutsideNetwork,
    peers: Vec<Option<Arc<PeerMemory>>>,
}

/// The way to peers whose memory is not shared.
#[derive(Debug)]
pub(crate) enum OutsideNetwork {
    /// Peers connect to this listener.
    Tcp(TcpListener),
    /// Peers are reached by MPI, which knows them.
    #[cfg(feature = "mpi")]
    Mpi(Arc<MpiWorld>),
}

impl OutsideNetwork {
    /// Listens at a port of the address by which the others see this process.
    pub(crate) fn listen_tcp(address: IpAddr) -> io::Result<Self> {
        TcpListener::bind(SocketAddr::new(address, 0)).map(Self::Tcp)
    }
}

impl FabricParts {
    /// Makes own shared memory, where `links` take it, and a way to the peers that do not share it.
    pub(crate) fn new(outside: OutsideNetwork, links: TransportLinks) -> Self {
        let outbox = match links {
            // Where the system gives no shared memory there is the network.
            TransportLinks::Auto => Outbox::new().ok().map(Arc::new),
            _ => None,
        };
        Self { outbox, outside, peers: Vec::new() }
    }

    /// Returns the port where TCP connections come in; 0 where none do.
    pub(crate) fn port(&self) -> io::Result<u16> {
        match &self.outside {
            OutsideNetwork::Tcp(listener) => Ok(listener.local_addr()?.port()),
            #[cfg(feature = "mpi")]
            OutsideNetwork::Mpi(_) => Ok(0),
        }
    }

    /// Returns the file descriptor and size of the shared memory.
    pub(crate) fn segment_descriptor(&self) -> Option<(i32, u64)> {
        let outbox = self.outbox.as_ref()?;
        Some((outbox.segment.descriptor(), outbox.segment.len() as u64))
    }

    /// Maps the memory of all members of this host. Whether it could.
    pub(crate) fn map_peers(&mut self, rank: u32, roster: &[Member]) -> bool {
        let host = &roster[rank as usize].host;
        let open = |member: &Member| {
            let here = member.host == *host && self.outbox.is_some();
            let (descriptor, bytes) = member.segment.filter(|_| here)?;
            PeerMemory::open(rank, member.pid, descriptor, bytes).ok().map(Arc::new)
        };
        self.peers = roster.iter().map(open).collect();
        let all = roster.iter().zip(&self.peers);
        self.outbox.is_some() && all.into_iter().all(|(m, p)| m.host != *host || p.is_some())
    }

    /// Connects to all peers; `shares` says who could map the memory of all of its host.
    pub(crate) fn join_peers(
        self,
        rank: u32,
        token: &str,
        roster: Vec<Member>,
        shares: &[bool],
        line: &Arc<JobLine>,
    ) -> io::Result<Arc<Fabric>> {
        let Self { outbox, outside, peers } = self;
        let share = |rank: u32| shares.get(rank as usize).copied().unwrap_or(false);
        let link = |(member, memory): (&Member, Option<Arc<PeerMemory>>)| match memory {
            Some(memory) if share(rank) && share(member.rank) => PeerLink::Shared(memory),
            _ => PeerLink::Network,
        };
        let links = roster.iter().zip(peers).map(link).collect();
        let bell: Arc<dyn HasBell> = match &outbox {
            Some(outbox) => Arc::clone(outbox) as Arc<dyn HasBell>,
            None => Arc::new(Bell::default()),
        };
        let inboxes = Inboxes::new(rank, line, Arc::clone(&bell));
        let carrier = match outside {
            OutsideNetwork::Tcp(door) => Carrier::Tcp(Tcp::start(door, token, roster, &inboxes)?),
            #[cfg(feature = "mpi")]
            OutsideNetwork::Mpi(world) => Carrier::Mpi(Mpi::start(world, &inboxes)?),
        };
        let (network, line) = (Arc::new(ProcessNetwork { inboxes, carrier }), Arc::clone(line));
        Ok(Arc::new(Fabric { rank, line, bell, outbox, network, links }))
    }
}

impl Fabric {
    /// Returns the number of ranks, this one among them, that share this host's memory.
    pub(crate) fn neighbours(&self) -> usize {
        self.links.iter().filter(|link| matches!(link, PeerLink::Shared(_))).count().max(1)
    }

    /// Lets the peers go.
    pub(crate) fn close(&self) {
        self.network.close();
    }
}
