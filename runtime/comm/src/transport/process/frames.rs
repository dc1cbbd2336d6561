//! Frames, in which messages travel over a network, and the inboxes that they come to.
//!
//! A frame is a head with a checksum, and bytes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::wait::{HasBell, lost_error};
use crate::control::JobLine;
use crate::transport::{TransportError, describe_tag};

/// The first bytes of a frame.
const MAGIC: u32 = 0x6772_6631;
/// Bytes of a frame's head: magic, kind, key, sequence, length, pieces, checksum.
pub(super) const HEAD: usize = 40;

const DATA: u32 = 0;
/// The kind of a frame that says how many messages have been read.
const READ: u32 = 1;

/// A queue: (key, peer).
pub(super) type Name = (u64, u32);

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
    pub(super) messages: Mutex<VecDeque<Received>>,
    /// The number of messages that have come so far.
    pub(super) filled: AtomicU64,
    /// Buffers to be used again.
    pub(super) free: Mutex<Vec<Vec<u8>>>,
    /// The tag of the receiver.
    pub(super) tag: OnceLock<u32>,
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
        let due = inbox.filled.load(Ordering::Relaxed);
        if due != head.sequence {
            let (came, channel) = (head.sequence, self.describe_channel(peer, head));
            let missing = format!("message {came} came {channel} where {due} was due");
            return Err(io::Error::other(missing));
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

    pub(super) fn inbox_of(&self, name: Name) -> Arc<QueueInbox> {
        Arc::clone(lock_mutex(&self.incoming).entry(name).or_default())
    }

    pub(super) fn read_count(&self, name: Name) -> Arc<AtomicU64> {
        Arc::clone(lock_mutex(&self.read).entry(name).or_default())
    }

    /// Forgets the inbox of a queue whose receiver is gone.
    pub(super) fn close_inbox(&self, name: Name) {
        lock_mutex(&self.incoming).remove(&name);
    }

    /// Forgets how many messages of a queue were read, as its sender is gone.
    pub(super) fn close_queue(&self, name: Name) {
        lock_mutex(&self.read).remove(&name);
    }

    pub(super) fn lost_error(&self, peer: u32, error: &io::Error) -> TransportError {
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

    /// Makes the head that says how many messages of a queue were read.
    pub(super) fn of_read(key: u64, sequence: u64) -> Self {
        Self { kind: READ, key, sequence, length: 0, pieces: 0 }
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
        if ![DATA, READ].contains(&kind) {
            return Err(io::Error::other(format!("a message of the kind {kind}, which none has")));
        }
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
