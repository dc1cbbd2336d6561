//! What joins the processes of a job: made in parts, while they meet.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use super::bell::Bell;
use super::outbox::{Outbox, PeerMemory};
use super::tcp::Tcp;
use super::wait::HasBell;
use crate::job::{Line, Links, Member};

/// How a peer is reached.
#[derive(Debug)]
pub(super) enum Link {
    Shared(Arc<PeerMemory>),
    Tcp,
}

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(super) rank: u32,
    pub(super) line: Arc<Line>,
    pub(super) bell: Arc<dyn HasBell>,
    pub(super) outbox: Option<Arc<Outbox>>,
    pub(super) tcp: Arc<Tcp>,
    /// Per rank, this one among them.
    pub(super) links: Vec<Link>,
    port: u16,
}

/// What a process has before it knows the others.
#[derive(Debug)]
pub(crate) struct Parts {
    outbox: Option<Arc<Outbox>>,
    listener: TcpListener,
    peers: Vec<Option<Arc<PeerMemory>>>,
}

impl Parts {
    /// Own shared memory, and a port at the address by which the others see this process.
    pub(crate) fn new(address: IpAddr, links: Links) -> io::Result<Self> {
        let outbox = match links {
            // Where the system gives no shared memory there is TCP.
            Links::Auto => Outbox::new().ok().map(Arc::new),
            Links::Tcp => None,
        };
        let listener = TcpListener::bind(SocketAddr::new(address, 0))?;
        Ok(Self { outbox, listener, peers: Vec::new() })
    }

    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// The file descriptor and size of the shared memory.
    pub(crate) fn segment(&self) -> Option<(i32, u64)> {
        let outbox = self.outbox.as_ref()?;
        Some((outbox.segment.descriptor(), outbox.segment.len() as u64))
    }

    /// Maps the memory of all members of this host. Whether it could.
    pub(crate) fn map(&mut self, rank: u32, roster: &[Member]) -> bool {
        let host = &roster[rank as usize].host;
        let open = |member: &Member| {
            let here = member.host == *host && self.outbox.is_some();
            let (descriptor, bytes) = member.segment.filter(|_| here)?;
            PeerMemory::open(member.pid, descriptor, bytes).ok().map(Arc::new)
        };
        self.peers = roster.iter().map(open).collect();
        let all = roster.iter().zip(&self.peers);
        self.outbox.is_some() && all.into_iter().all(|(m, p)| m.host != *host || p.is_some())
    }

    /// All connections; `shares` says who could map the memory of all of its host.
    pub(crate) fn join(
        self,
        rank: u32,
        token: &str,
        roster: Vec<Member>,
        shares: &[bool],
        line: &Arc<Line>,
    ) -> io::Result<Arc<Fabric>> {
        let Self { outbox, listener, peers } = self;
        let share = |rank: u32| shares.get(rank as usize).copied().unwrap_or(false);
        let link = |(member, memory): (&Member, Option<Arc<PeerMemory>>)| match memory {
            Some(memory) if share(rank) && share(member.rank) => Link::Shared(memory),
            _ => Link::Tcp,
        };
        let links = roster.iter().zip(peers).map(link).collect();
        let bell: Arc<dyn HasBell> = match &outbox {
            Some(outbox) => Arc::clone(outbox) as Arc<dyn HasBell>,
            None => Arc::new(Bell::default()),
        };
        let port = listener.local_addr()?.port();
        let tcp = Tcp::start(listener, rank, token, roster, line, Arc::clone(&bell))?;
        let line = Arc::clone(line);
        Ok(Arc::new(Fabric { rank, line, bell, outbox, tcp, links, port }))
    }
}

impl Fabric {
    /// How many ranks, this one among them, share this host's memory.
    pub(crate) fn neighbours(&self) -> usize {
        self.links.iter().filter(|link| matches!(link, Link::Shared(_))).count().max(1)
    }

    /// Lets the peers go.
    pub(crate) fn close(&self) {
        self.tcp.stop(self.port);
    }
}
