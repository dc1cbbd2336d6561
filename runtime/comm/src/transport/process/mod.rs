//! Ranks as processes, joined by queues of messages.
//!
//! Two ranks of one host are joined by shared memory ([`shared`]). Others, and those that cannot map each other's memory,
//! are joined by a network: TCP ([`tcp`]), or MPI (`mpi`, behind the feature of that name). All give queues of messages,
//! and groups exchange through queues. A group whose ranks share memory reads arenas in place, as threads do
//! ([`super::in_process`]); the others pack messages.
//!
//! Each process has an `outbox`, shared memory without a name that its peers open through `/proc`. So nothing is left
//! behind, however a process ends. A queue lies in its sender's outbox. A collective on one host reads its peers' arenas
//! in place and costs two changes of cache lines. Waits spin, then yield, then sleep on a futex in the waiter's outbox.
//!
//! Read in this order: `wait` and `bell`, then `segment`, `outbox`, `arenas`, `foreign` and `shared`, then `queue` and its carriers
//! `tcp` and `mpi`.

mod arenas;
mod bell;
#[cfg(test)]
mod explored;
mod fabric;
mod foreign;
mod frames;
mod group;
#[cfg(feature = "mpi")]
mod mpi;
mod outbox;
mod queue;
mod segment;
mod shared;
mod slots;
mod tcp;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use super::{Body, ExchangeGroup, Patience, Receiver, Sender, Transport, TransportError};
use crate::control::Activity;
use crate::end::JobEnd;
use crate::memory::{HostArena, Offered};
use arenas::{allocate_in_outbox, offer_segment};
pub(crate) use bell::Bell;
use fabric::PeerLink;
use group::ProcessGroup;
use queue::{QueueReceiver, QueueSender};
use shared::{SharedQueueReceiver, SharedQueueSender};
use wait::Waiter;

pub(crate) use fabric::{Fabric, FabricParts, OutsideNetwork};
pub(super) use tcp::count_frames;

/// One process of a job. Each use of the job that has tags of its own (a session, a process group) has a number.
#[derive(Debug)]
pub(crate) struct ProcessTransport {
    fabric: Arc<Fabric>,
    number: u32,
    patience: Patience,
}

impl ProcessTransport {
    /// A transport of its own tags.
    pub(crate) fn new(fabric: &Arc<Fabric>, number: u32, patience: Patience) -> Self {
        Self { fabric: Arc::clone(fabric), number, patience }
    }

    fn new_waiter(&self) -> Waiter {
        let Fabric { rank, line, bell, .. } = &*self.fabric;
        let (line, bell) = (Arc::clone(line), Arc::clone(bell));
        Waiter { rank: *rank, line, bell, patience: self.patience }
    }

    fn find_link(&self, peer: u32) -> Result<&PeerLink, TransportError> {
        let (rank, what) = (self.fabric.rank, "how many ranks there are".to_owned());
        let link = self.fabric.links.get(peer as usize);
        link.ok_or(TransportError::Mismatch { rank, peer, what })
    }

    /// The name of a queue: groups and channels are told apart, and each use of the job from the others.
    fn queue_key(&self, tag: u32, of_group: bool) -> u64 {
        u64::from(self.number) << 33 | u64::from(of_group) << 32 | u64::from(tag)
    }

    fn open_send_end(
        &self,
        (tag, of_group): (u32, bool),
        to: u32,
        slots: usize,
    ) -> Result<SendEnd, TransportError> {
        let name = (self.queue_key(tag, of_group), to, tag);
        let slots = slots.max(1) as u64;
        Ok(match self.find_link(to)? {
            PeerLink::Shared(peer) => {
                let outbox = self.fabric.outbox.as_ref();
                let outbox = outbox.ok_or(TransportError::Memory { rank: self.fabric.rank })?;
                SendEnd::Shared(SharedQueueSender::new(
                    outbox,
                    peer,
                    self.new_waiter(),
                    name,
                    slots,
                )?)
            }
            PeerLink::Network => {
                let network = &self.fabric.network;
                SendEnd::Network(QueueSender::new(network, self.new_waiter(), name, slots)?)
            }
        })
    }

    fn open_receive_end(
        &self,
        (tag, of_group): (u32, bool),
        from: u32,
        slots: usize,
    ) -> Result<ReceiveEnd, TransportError> {
        let name = (self.queue_key(tag, of_group), from, tag);
        Ok(match self.find_link(from)? {
            PeerLink::Shared(peer) => {
                let slots = slots.max(1) as u64;
                ReceiveEnd::Shared(SharedQueueReceiver::new(peer, self.new_waiter(), name, slots))
            }
            PeerLink::Network => {
                let network = &self.fabric.network;
                ReceiveEnd::Network(QueueReceiver::new(network, self.new_waiter(), name))
            }
        })
    }
}

impl Transport for ProcessTransport {
    fn rank(&self) -> u32 {
        self.fabric.rank
    }

    fn is_direct(&self, ranks: &[u32]) -> bool {
        let shared =
            |&rank: &u32| matches!(self.fabric.links.get(rank as usize), Some(PeerLink::Shared(_)));
        ranks.iter().all(shared)
    }

    fn offer_memory(&self, bytes: u64) -> Result<Option<Offered>, TransportError> {
        let Some(outbox) = &self.fabric.outbox else { return Ok(None) };
        let full = || TransportError::Memory { rank: self.fabric.rank };
        offer_segment(bytes, outbox).map(Some).ok_or_else(full)
    }

    fn allocate_staging(&self, bytes: u64) -> Option<HostArena> {
        allocate_in_outbox(bytes, self.fabric.outbox.as_ref()?)
    }

    fn join_group(
        &self,
        tag: u32,
        ranks: &[u32],
    ) -> Result<Box<dyn ExchangeGroup>, TransportError> {
        let ends = |&rank: &u32| {
            if rank == self.fabric.rank {
                return Ok(None);
            }
            let name = (tag, true);
            Ok(Some((self.open_send_end(name, rank, 2)?, self.open_receive_end(name, rank, 2)?)))
        };
        let ends = ranks.iter().map(ends).collect::<Result<_, _>>()?;
        Ok(Box::new(ProcessGroup::new(ends)))
    }

    fn open_sender(
        &self,
        tag: u32,
        to: u32,
        slots: usize,
    ) -> Result<Box<dyn Sender>, TransportError> {
        Ok(Box::new(self.open_send_end((tag, false), to, slots)?))
    }

    fn open_receiver(
        &self,
        tag: u32,
        from: u32,
        slots: usize,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        Ok(Box::new(self.open_receive_end((tag, false), from, slots)?))
    }

    fn wait_until(
        &self,
        peer: u32,
        what: &str,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), TransportError> {
        self.new_waiter().wait_until(peer, || what.to_owned(), ready).map(|_| ())
    }

    fn wake_waiters(&self) {
        self.fabric.bell.bell().ring();
    }

    fn end_job(&self, reason: JobEnd) {
        self.fabric.line.fail(reason);
    }

    fn end_reason(&self) -> Option<JobEnd> {
        self.fabric.line.end_reason()
    }

    fn new_activity(&self, name: String, actions: Vec<String>) -> Option<Arc<Activity>> {
        Some(self.fabric.line.activities.add(name, actions))
    }
}

/// The sending end of a queue.
enum SendEnd {
    Shared(SharedQueueSender),
    Network(QueueSender),
}

impl SendEnd {
    fn show_pieces(&mut self, pieces: &[&[u8]]) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.show_pieces(pieces),
            Self::Network(end) => end.show_pieces(pieces),
        }
    }

    /// Waits until what was shown may be written again.
    fn settle_loans(&self) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.settle_loans(),
            Self::Network(_) => Ok(Duration::ZERO),
        }
    }

    fn send_headed(
        &mut self,
        head: &[u8],
        body: &[u8],
        lent: bool,
    ) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.send_headed(head, body, lent),
            Self::Network(end) if head.is_empty() => end.show_pieces(&[body]),
            Self::Network(end) => end.show_pieces(&[head, body]),
        }
    }
}

impl Sender for SendEnd {
    fn is_ready(&self) -> bool {
        match self {
            Self::Shared(end) => end.is_ready(),
            Self::Network(end) => end.is_ready(),
        }
    }

    fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.send(bytes, fill),
            Self::Network(end) => end.send(bytes, fill),
        }
    }

    fn send_headed(&mut self, head: &[u8], body: &[u8]) -> Result<Duration, TransportError> {
        SendEnd::send_headed(self, head, body, false)
    }

    fn lend(&mut self, head: &[u8], body: &[u8]) -> Result<Duration, TransportError> {
        SendEnd::send_headed(self, head, body, true)
    }

    fn settle_loans(&mut self) -> Result<Duration, TransportError> {
        SendEnd::settle_loans(self)
    }

    fn can_lend(&self) -> bool {
        match self {
            Self::Shared(end) => end.can_lend(),
            Self::Network(_) => false,
        }
    }

    fn withdraw_loans(&mut self) {
        if let Self::Shared(end) = self {
            end.withdraw_loans();
        }
    }

    fn is_settled(&self) -> bool {
        match self {
            Self::Shared(end) => end.is_settled(),
            Self::Network(_) => true,
        }
    }

    fn wait_for_slot(&mut self) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.wait_for_slot(),
            Self::Network(_) => Ok(Duration::ZERO),
        }
    }
}

/// The receiving end of a queue.
enum ReceiveEnd {
    Shared(SharedQueueReceiver),
    Network(QueueReceiver),
}

impl ReceiveEnd {
    fn receive_pieces(
        &mut self,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.receive(read),
            Self::Network(end) => end.receive(read),
        }
    }
}

impl Receiver for ReceiveEnd {
    fn is_ready(&self) -> bool {
        match self {
            Self::Shared(end) => end.is_ready(),
            Self::Network(end) => end.is_ready(),
        }
    }

    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> Result<Duration, TransportError> {
        self.receive_pieces(&mut |pieces| match pieces {
            [message] => read(message),
            pieces => read(&pieces.concat()),
        })
    }

    fn receive_headed(
        &mut self,
        _head: usize,
        read: &mut dyn FnMut(&[u8], Body<'_>),
    ) -> Result<Duration, TransportError> {
        match self {
            Self::Shared(end) => end.receive_headed(read),
            Self::Network(end) => end.receive(&mut |pieces| match pieces {
                [head, body] => read(head, Body::Here(body)),
                [body] => read(&[], Body::Here(body)),
                _ => read(&[], Body::Here(&[])),
            }),
        }
    }
}
