//! Queues over a network: the messages of all queues go through one carrier, TCP or MPI.
//!
//! A frame is a head with a checksum, and bytes. A sender has as many messages under way as its queue has slots, and the
//! carrier takes in whatever comes. So no queue holds up another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::frames::{FrameHead, Inboxes, Name, QueueInbox, lock_mutex};
#[cfg(feature = "mpi")]
use super::mpi::Mpi;
use super::tcp::Tcp;
use super::wait::Waiter;
use crate::transport::{TransportError, describe_tag};

/// The carrier that brings frames to the peers.
#[derive(Debug)]
pub(super) enum Carrier {
    Tcp(Arc<Tcp>),
    #[cfg(feature = "mpi")]
    Mpi(Arc<Mpi>),
}

/// A process's way to the others.
#[derive(Debug)]
pub(crate) struct ProcessNetwork {
    pub(super) inboxes: Arc<Inboxes>,
    pub(super) carrier: Carrier,
}

impl ProcessNetwork {
    /// Lets the peers go.
    pub(super) fn close(&self) {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.stop(),
            #[cfg(feature = "mpi")]
            Carrier::Mpi(mpi) => mpi.stop(),
        }
    }

    /// Makes sure that the peer can be reached.
    fn reach_peer(&self, peer: u32) -> Result<(), TransportError> {
        match &self.carrier {
            Carrier::Tcp(tcp) => {
                tcp.reach_peer(peer).map_err(|error| self.inboxes.lost_error(peer, &error))
            }
            #[cfg(feature = "mpi")]
            Carrier::Mpi(_) => Ok(()),
        }
    }

    /// Sends a frame of parts.
    fn send_frame(
        &self,
        peer: u32,
        parts: &[&[u8]],
        waiter: &Waiter,
    ) -> Result<(), TransportError> {
        let sent = match &self.carrier {
            Carrier::Tcp(tcp) => tcp.send_frame(peer, parts, waiter),
            #[cfg(feature = "mpi")]
            Carrier::Mpi(mpi) => mpi.send_frame(peer, parts),
        };
        sent.map_err(|error| self.inboxes.lost_error(peer, &error))
    }

    /// Takes in what has come, for whoever waits.
    fn take_arrivals(&self) {
        #[cfg(feature = "mpi")]
        if let Carrier::Mpi(mpi) = &self.carrier {
            mpi.take_arrivals();
        }
    }

    /// Takes a buffer back.
    fn recycle_buffer(&self, inbox: &QueueInbox, bytes: Vec<u8>) {
        match &self.carrier {
            Carrier::Tcp(_) => lock_mutex(&inbox.free).push(bytes),
            #[cfg(feature = "mpi")]
            Carrier::Mpi(mpi) => mpi.recycle_buffer(bytes),
        }
    }
}

/// The sending end of a queue.
pub(super) struct QueueSender {
    network: Arc<ProcessNetwork>,
    read: Arc<AtomicU64>,
    waiter: Waiter,
    name: Name,
    tag: u32,
    slots: u64,
    sent: u64,
    buffer: Vec<u8>,
}

impl QueueSender {
    pub(super) fn new(
        network: &Arc<ProcessNetwork>,
        waiter: Waiter,
        (key, to, tag): (u64, u32, u32),
        slots: u64,
    ) -> Result<Self, TransportError> {
        network.reach_peer(to)?;
        let (name, network) = ((key, to), Arc::clone(network));
        let read = network.inboxes.read_count(name);
        Ok(Self { network, read, waiter, name, tag, slots, sent: 0, buffer: Vec::new() })
    }

    /// Whether a message would be taken at once.
    pub(super) fn is_ready(&self) -> bool {
        let ready = || self.sent.saturating_sub(self.read.load(Ordering::Acquire)) < self.slots;
        ready() || {
            self.network.take_arrivals();
            ready()
        }
    }

    /// Sends a message of one piece, which `fill` writes.
    pub(super) fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(bytes, 0);
        fill(&mut buffer);
        let waited = self.show_pieces(&[&buffer]);
        self.buffer = buffer;
        waited
    }

    /// Sends a message of pieces.
    pub(super) fn show_pieces(&mut self, pieces: &[&[u8]]) -> Result<Duration, TransportError> {
        let what = || format!("to read what was sent in {}", describe_tag(self.tag));
        let waited = self.waiter.wait_until(self.name.1, what, || self.is_ready())?;
        let lengths: Vec<[u8; 8]> = pieces.iter().map(|p| (p.len() as u64).to_le_bytes()).collect();
        let length = pieces.iter().map(|piece| piece.len() as u64 + 8).sum();
        let (key, sequence, count) = (self.name.0, self.sent, pieces.len() as u32);
        let head = FrameHead::of_message(key, sequence, length, count).to_bytes();
        let parts = std::iter::once(&head[..]).chain(lengths.iter().map(|l| &l[..]));
        let parts: Vec<&[u8]> = parts.chain(pieces.iter().copied()).collect();
        self.network.send_frame(self.name.1, &parts, &self.waiter)?;
        self.sent += 1;
        Ok(waited)
    }
}

/// The receiving end of a queue.
pub(super) struct QueueReceiver {
    network: Arc<ProcessNetwork>,
    inbox: Arc<QueueInbox>,
    waiter: Waiter,
    name: Name,
    tag: u32,
    read: u64,
}

impl QueueReceiver {
    pub(super) fn new(
        network: &Arc<ProcessNetwork>,
        waiter: Waiter,
        (key, from, tag): (u64, u32, u32),
    ) -> Self {
        let (inbox, name) = (network.inboxes.inbox_of((key, from)), (key, from));
        inbox.tag.get_or_init(|| tag);
        Self { network: Arc::clone(network), inbox, waiter, name, tag, read: 0 }
    }

    /// Whether a message is there.
    pub(super) fn is_ready(&self) -> bool {
        let ready = || self.inbox.filled.load(Ordering::Acquire) > self.read;
        ready() || {
            self.network.take_arrivals();
            ready()
        }
    }

    /// Lets `read` read the next message.
    pub(super) fn receive(
        &mut self,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let what = || format!("to send in {}", describe_tag(self.tag));
        let waited = self.waiter.wait_until(self.name.1, what, || self.is_ready())?;
        let message = lock_mutex(&self.inbox.messages).pop_front().unwrap_or_default();
        read(&message.pieces());
        self.network.recycle_buffer(&self.inbox, message.bytes);
        self.read += 1;
        self.acknowledge()?;
        Ok(waited)
    }

    fn acknowledge(&self) -> Result<(), TransportError> {
        let (key, peer) = self.name;
        let head = FrameHead::of_read(key, self.read).to_bytes();
        match self.network.send_frame(peer, &[&head], &self.waiter) {
            // A peer that has left in order needs to hear nothing.
            Err(_) if self.waiter.line.has_left(peer) => Ok(()),
            sent => sent,
        }
    }
}

impl Drop for QueueReceiver {
    fn drop(&mut self) {
        self.network.inboxes.close_inbox(self.name);
    }
}

impl Drop for QueueSender {
    fn drop(&mut self) {
        self.network.inboxes.close_queue(self.name);
    }
}
