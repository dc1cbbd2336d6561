//! Queues over a network: the messages of all queues go through one carrier, TCP or MPI.
//!
//! A frame is a head with a checksum, and bytes. A sender has as many messages under way as its queue has slots, and the
//! carrier takes in whatever comes. So no queue holds up another.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

#[cfg(feature = "mpi")]
use super::mpi::Mpi;
use super::tcp::Tcp;
use super::wait::{HasBell, Waiter, lost_error};
use crate::job::JobLine;
use crate::transport::{TransportError, describe_tag};

/// The first bytes of a frame.
const MAGIC: u32 = 0x6772_6631;
/// Bytes of a frame's head: magic, kind, key, sequence, length, pieces, checksum.
pub(super) const HEAD: usize = 40;

const DATA: u32 = 0;
/// The kind of a frame that says how many messages have been read.
const READ: u32 = 1;

/// A queue: (key, peer).
type Name = (u64, u32);

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

/// The inboxes of this process.
#[derive(Debug)]
pub(super) struct Inboxes {
    pub(super) rank: u32,
    pub(super) line: Arc<JobLine>,
    bell: Arc<dyn HasBell>,
    incoming: Mutex<BTreeMap<Name, Arc<QueueInbox>>>,
    /// Messages of own queues that their receivers have read.
    read: Mutex<BTreeMap<Name, Arc<AtomicU64>>>,
}

/// Messages that have come.
#[derive(Debug, Default)]
pub(super) struct QueueInbox {
    messages: Mutex<VecDeque<Received>>,
    /// The number of messages that have come so far.
    filled: AtomicU64,
    /// Buffers to be used again.
    free: Mutex<Vec<Vec<u8>>>,
    /// The tag of the receiver.
    tag: OnceLock<u32>,
}

/// A message: where in the bytes it begins, and where each of its pieces ends.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
    pub(super) ends: Vec<usize>,
}

pub(super) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Inboxes {
    pub(super) fn new(rank: u32, line: &Arc<JobLine>, bell: Arc<dyn HasBell>) -> Arc<Self> {
        let (line, incoming, read) = (Arc::clone(line), Mutex::default(), Mutex::default());
        Arc::new(Self { rank, line, bell, incoming, read })
    }

    /// Takes a message in.
    pub(super) fn deliver_message(
        &self,
        peer: u32,
        head: &FrameHead,
        message: Received,
    ) -> io::Result<()> {
        let inbox = self.inbox_of((head.key, peer));
        let mut messages = lock_mutex(&inbox.messages);
        if inbox.filled.load(Ordering::Relaxed) != head.sequence {
            return Err(io::Error::other("a message is missing"));
        }
        messages.push_back(message);
        inbox.filled.fetch_add(1, Ordering::Release);
        drop(messages);
        self.bell.bell().ring();
        Ok(())
    }

    /// Notes that the peer has read so many messages of a queue.
    pub(super) fn was_read(&self, peer: u32, head: &FrameHead) {
        // A sender that is gone needs to hear nothing.
        if let Some(read) = lock_mutex(&self.read).get(&(head.key, peer)) {
            read.fetch_max(head.sequence, Ordering::Release);
        }
        self.bell.bell().ring();
    }

    /// Takes a buffer for the next message of a queue.
    pub(super) fn take_buffer(&self, peer: u32, head: &FrameHead) -> Vec<u8> {
        lock_mutex(&self.inbox_of((head.key, peer)).free).pop().unwrap_or_default()
    }

    /// Describes the channel of a message, for an error.
    pub(super) fn describe_channel(&self, peer: u32, head: &FrameHead) -> String {
        match self.inbox_of((head.key, peer)).tag.get() {
            Some(&tag) => format!("in {}", describe_tag(tag)),
            None => format!("in a channel that is not open yet ({:x})", head.key),
        }
    }

    fn inbox_of(&self, name: Name) -> Arc<QueueInbox> {
        Arc::clone(lock_mutex(&self.incoming).entry(name).or_default())
    }

    fn read_count(&self, name: Name) -> Arc<AtomicU64> {
        Arc::clone(lock_mutex(&self.read).entry(name).or_default())
    }

    fn lost_error(&self, peer: u32, error: &io::Error) -> TransportError {
        lost_error(&self.line, (self.rank, peer), error)
    }
}

/// The head of a frame.
#[derive(Debug, PartialEq)]
pub(super) struct FrameHead {
    kind: u32,
    key: u64,
    /// Number of the message, or how many have been read.
    sequence: u64,
    /// Bytes that follow, the lengths of pieces among them.
    pub(super) length: u64,
    pub(super) pieces: u32,
}

impl FrameHead {
    /// Makes the head of a message of so many bytes, the lengths of its pieces among them.
    pub(super) fn of_message(key: u64, sequence: u64, length: u64, pieces: u32) -> Self {
        Self { kind: DATA, key, sequence, length, pieces }
    }

    pub(super) fn to_bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.pieces.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; HEAD]) -> io::Result<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if word(0) != MAGIC || word(36) != crc32fast::hash(&bytes[..36]) {
            return Err(io::Error::other("the head of a message is damaged"));
        }
        let (kind, key, sequence) = (word(4), long(8), long(16));
        Ok(Self { kind, key, sequence, length: long(24), pieces: word(32) })
    }

    /// Whether it says how many messages were read; otherwise a message follows.
    pub(super) fn is_read(&self) -> bool {
        self.kind == READ
    }
}

impl Received {
    /// Makes a message that begins at `start` of `bytes`.
    pub(super) fn new(bytes: Vec<u8>, start: usize) -> Self {
        Self { bytes, start, ends: Vec::new() }
    }

    /// Notes how long the next piece is. Where it ends.
    pub(super) fn note_length(&mut self, length: [u8; 8]) -> io::Result<()> {
        let next = usize::try_from(u64::from_le_bytes(length)).ok();
        let next = next.and_then(|length| length.checked_add(self.end()));
        self.ends.push(next.ok_or_else(|| io::Error::other("a piece beyond all measure"))?);
        Ok(())
    }

    /// Checks that the noted pieces are all that the head has announced, and returns where in the bytes they end.
    pub(super) fn check_length(&self, head: &FrameHead) -> io::Result<usize> {
        let length = (self.end() - self.start).checked_add(8 * head.pieces as usize);
        if length.map(|length| length as u64) != Some(head.length) {
            return Err(io::Error::other("the pieces of a message are not its length"));
        }
        Ok(self.end())
    }

    fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(self.start)
    }

    pub(super) fn pieces(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(self.start).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]).collect()
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
        let head =
            FrameHead { kind: READ, key, sequence: self.read, length: 0, pieces: 0 }.to_bytes();
        match self.network.send_frame(peer, &[&head], &self.waiter) {
            // A peer that has left in order needs to hear nothing.
            Err(_) if self.waiter.line.has_left(peer) => Ok(()),
            sent => sent,
        }
    }
}

impl Drop for QueueReceiver {
    fn drop(&mut self) {
        lock_mutex(&self.network.inboxes.incoming).remove(&self.name);
    }
}

impl Drop for QueueSender {
    fn drop(&mut self) {
        lock_mutex(&self.network.inboxes.read).remove(&self.name);
    }
}

/// Returns a frame with these pieces.
#[cfg(test)]
pub(super) fn frame(pieces: &[&[u8]]) -> Vec<u8> {
    let length = pieces.iter().map(|piece| piece.len() as u64 + 8).sum();
    let head = FrameHead::of_message(1, 0, length, pieces.len() as u32);
    let mut frame = head.to_bytes().to_vec();
    frame.extend(pieces.iter().flat_map(|piece| (piece.len() as u64).to_le_bytes()));
    frame.extend(pieces.concat());
    frame
}
