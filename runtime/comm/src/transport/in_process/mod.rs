//! Ranks as threads of one process. An exchange shows the receiver the sender's memory; a channel is a ring of buffers
//! that are used again and again. Nothing is allocated in steady state.

mod mailbox;
mod ring;
mod wait;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::process::Bell;
use super::{ExchangeGroup, Patience, Receiver, Sender, Transport, TransportError};
use crate::end::JobEnd;
use mailbox::{Mail, MailGroup};
use ring::{Ring, RingReceiver, RingSender};
use wait::AnyChannel;

/// The state that all ranks of a process share.
#[derive(Debug)]
pub struct Hub {
    direct: bool,
    patience: Patience,
    over: AtomicBool,
    reason: OnceLock<JobEnd>,
    endpoints: Mutex<Endpoints>,
    /// The bell that every channel rings, for those who wait for several.
    bell: Bell,
}

/// Endpoints that one side has asked for, kept for the other.
#[derive(Debug, Default)]
struct Endpoints {
    groups: BTreeMap<(u32, Vec<u32>), Arc<Mail>>,
    rings: BTreeMap<(u32, u32, u32), Arc<Ring>>,
}

impl Hub {
    /// Makes a hub whose ranks read each other's memory in place.
    pub fn new(patience: Patience) -> Arc<Self> {
        Arc::new(Self::with_patience(patience, true))
    }

    /// Makes a hub whose ranks pack messages, as those of several processes must.
    pub fn new_packed(patience: Patience) -> Arc<Self> {
        Arc::new(Self::with_patience(patience, false))
    }

    fn with_patience(patience: Patience, direct: bool) -> Self {
        let endpoints = Mutex::new(Endpoints::default());
        let (over, reason, bell) = (AtomicBool::new(false), OnceLock::new(), Bell::default());
        Self { direct, patience, over, reason, endpoints, bell }
    }

    /// Makes the transport of one rank.
    pub fn new_transport(self: &Arc<Self>, rank: u32) -> Arc<dyn Transport> {
        Arc::new(InProcess { hub: Arc::clone(self), rank })
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Fails where a rank has waited too long for its peer.
    fn check_timeout(
        &self,
        (rank, peer): (u32, u32),
        what: impl Fn() -> String,
        waited: Duration,
    ) -> Result<(), TransportError> {
        if waited <= self.patience.timeout {
            return Ok(());
        }
        let seconds = waited.as_secs_f64();
        Err(TransportError::Timeout { rank, peer, what: what(), seconds })
    }

    fn open_ring(
        &self,
        tag: u32,
        from: u32,
        to: u32,
        slots: usize,
    ) -> Result<Arc<Ring>, TransportError> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Ring::new(slots));
        let ring = endpoints.rings.entry((tag, from, to)).or_insert_with(new);
        if ring.slots() == slots.max(1) {
            return Ok(Arc::clone(ring));
        }
        let what = format!("the slots of channel {tag}");
        Err(TransportError::Mismatch { rank: from, peer: to, what })
    }
}

/// One rank of a process.
#[derive(Debug)]
struct InProcess {
    hub: Arc<Hub>,
    rank: u32,
}

impl Transport for InProcess {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn is_direct(&self, _: &[u32]) -> bool {
        self.hub.direct
    }

    fn wait_until(
        &self,
        peer: u32,
        what: &str,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), TransportError> {
        let waiting = AnyChannel { hub: &self.hub, rank: self.rank, peer, what };
        self.hub.patience.wait_until(&waiting, &ready).map(drop)
    }

    fn wake_waiters(&self) {
        self.hub.bell.ring();
    }

    fn join_group(
        &self,
        tag: u32,
        ranks: &[u32],
    ) -> Result<Box<dyn ExchangeGroup>, TransportError> {
        let position = ranks.iter().position(|&rank| rank == self.rank);
        let mismatch = |what| TransportError::Mismatch {
            rank: self.rank,
            peer: ranks.first().copied().unwrap_or(self.rank),
            what,
        };
        let position = position.ok_or_else(|| mismatch(format!("who is of group {tag}")))?;
        let mut endpoints = self.hub.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Mail::new(ranks));
        let mail = endpoints.groups.entry((tag, ranks.to_vec())).or_insert_with(new);
        let group = MailGroup::join(Arc::clone(&self.hub), Arc::clone(mail), position, tag);
        let twice = || mismatch(format!("how often collective {tag} stands in the plan"));
        Ok(Box::new(group.ok_or_else(twice)?))
    }

    fn open_sender(
        &self,
        tag: u32,
        to: u32,
        slots: usize,
    ) -> Result<Box<dyn Sender>, TransportError> {
        let ring = self.hub.open_ring(tag, self.rank, to, slots)?;
        Ok(Box::new(RingSender::new(Arc::clone(&self.hub), ring, tag, (self.rank, to))))
    }

    fn open_receiver(
        &self,
        tag: u32,
        from: u32,
        slots: usize,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        let ring = self.hub.open_ring(tag, from, self.rank, slots)?;
        Ok(Box::new(RingReceiver::new(Arc::clone(&self.hub), ring, tag, (from, self.rank))))
    }

    fn end_job(&self, reason: JobEnd) {
        // The first reason stays; where one is there already the job is over anyway.
        let _ = self.hub.reason.set(reason);
        self.hub.over.store(true, Ordering::SeqCst);
    }

    fn end_reason(&self) -> Option<JobEnd> {
        self.hub.is_over().then(|| self.hub.reason.get().cloned()).flatten()
    }
}
