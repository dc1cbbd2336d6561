//! Queues in shared memory. A queue lies in its sender's memory: two counters and a ring of messages, each a list of
//! pieces that lie in the sender's memory too. So a receiver reads arenas in place, and what lies elsewhere is copied
//! once, by the sender.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::outbox::{Outbox, PeerMemory};
use super::segment::Segment;
use super::wait::Waiter;
use crate::explore::point;
use crate::memory::Lent;
use crate::transport::TransportError;

/// `Piece::space` of what lies in the outbox itself; arena `i` is `i + 1`.
const OUTBOX: u32 = 0;

/// The counters of a queue, each on cache lines of its own.
#[repr(C, align(128))]
struct QueueHead {
    filled: Counter,
    emptied: Counter,
    slots: Counter,
}

#[repr(C, align(128))]
struct Counter(AtomicU64);

/// A message: its piece, or where the list of its pieces lies.
#[repr(C, align(64))]
struct Slot {
    pieces: AtomicU32,
    piece: Piece,
    list: AtomicU64,
}

#[repr(C)]
struct Piece {
    space: AtomicU32,
    offset: AtomicU64,
    bytes: AtomicU64,
}

/// Space, offset and size of a piece.
type Place = (u32, u64, u64);

impl Piece {
    fn get(&self) -> Place {
        let space = self.space.load(Ordering::Relaxed);
        (space, self.offset.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    fn set(&self, space: u32, offset: u64, bytes: usize) {
        self.space.store(space, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

const SLOTS_AT: u64 = size_of::<QueueHead>() as u64;

fn queue_bytes(slots: u64) -> u64 {
    SLOTS_AT + slots * size_of::<Slot>() as u64
}

fn queue_head(segment: &Segment, offset: u64) -> Option<&QueueHead> {
    // SAFETY: `QueueHead` is atomics alone.
    unsafe { segment.at(offset) }
}

fn slot(segment: &Segment, queue: u64, index: u64) -> Option<&Slot> {
    // SAFETY: `Slot` is atomics alone.
    unsafe { segment.at(queue + SLOTS_AT + index * size_of::<Slot>() as u64) }
}

fn piece(segment: &Segment, list: u64, index: usize) -> Option<&Piece> {
    // SAFETY: `Piece` is atomics alone.
    unsafe { segment.at(list + (index * size_of::<Piece>()) as u64) }
}

/// The sending end of a queue.
pub(super) struct SharedSender {
    outbox: Arc<Outbox>,
    peer: Arc<PeerMemory>,
    waiter: Waiter,
    to: u32,
    tag: u32,
    queue: u64,
    slots: u64,
    filled: u64,
    /// Of each slot: a block for copies and one for lists, with their sizes.
    copies: Vec<(u64, u64)>,
    lists: Vec<(u64, u64)>,
}

impl SharedSender {
    /// Makes the queue `(key, to)`.
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        peer: &Arc<PeerMemory>,
        waiter: Waiter,
        (key, to, tag): (u64, u32, u32),
        slots: u64,
    ) -> Result<Self, TransportError> {
        let rank = waiter.rank;
        let full = || TransportError::Memory { rank };
        let queue = outbox.allocate(queue_bytes(slots)).ok_or_else(full)?;
        let head = queue_head(&outbox.segment, queue).ok_or_else(full)?;
        // A block may have been used before.
        head.filled.0.store(0, Ordering::Relaxed);
        head.emptied.0.store(0, Ordering::Relaxed);
        head.slots.0.store(slots, Ordering::Relaxed);
        if !outbox.publish(key, to, queue) {
            return Err(full());
        }
        let (outbox, peer) = (Arc::clone(outbox), Arc::clone(peer));
        let none = vec![(0, 0); slots as usize];
        let (copies, lists) = (none.clone(), none);
        Ok(Self { outbox, peer, waiter, to, tag, queue, slots, filled: 0, copies, lists })
    }

    fn head(&self) -> &QueueHead {
        queue_head(&self.outbox.segment, self.queue).expect("the queue was made there")
    }

    fn unread(&self) -> u64 {
        self.filled.saturating_sub(self.head().emptied.0.load(Ordering::Acquire))
    }

    /// Whether a message would be taken at once.
    pub(super) fn ready(&self) -> bool {
        self.unread() < self.slots
    }

    fn room(&self) -> Result<Duration, TransportError> {
        let what = || format!("to read what was sent in {}", self.tag);
        self.waiter.until(self.to, what, || self.ready())
    }

    /// Waits until the peer has read everything.
    pub(super) fn settle(&self) -> Result<Duration, TransportError> {
        let what = || format!("to read in collective {}", self.tag);
        self.waiter.until(self.to, what, || self.unread() == 0)
    }

    /// Sends a message of one piece, which `fill` writes.
    pub(super) fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        let waited = self.room()?;
        let index = (self.filled % self.slots) as usize;
        let copy = self.block(index, bytes, Self::copies)?;
        // SAFETY: the block is this sender's, and the peer has emptied the slot that pointed to it.
        let target = unsafe { self.outbox.segment.write(copy, bytes as u64) };
        fill(target.ok_or(TransportError::Memory { rank: self.waiter.rank })?);
        let slot = self.slot(index);
        slot.pieces.store(1, Ordering::Relaxed);
        slot.piece.set(OUTBOX, copy, bytes);
        self.push();
        Ok(waited)
    }

    /// Shows pieces. What lies in an arena is read there, until [`SharedSender::settle`]; the rest is copied.
    pub(super) fn show(&mut self, pieces: &[&[u8]]) -> Result<Duration, TransportError> {
        let waited = self.room()?;
        let index = (self.filled % self.slots) as usize;
        let located: Vec<_> = pieces.iter().map(|piece| self.outbox.locate(piece)).collect();
        let copied = pieces.iter().zip(&located).filter(|(_, place)| place.is_none());
        let copied: usize = copied.map(|(piece, _)| piece.len()).sum();
        let mut at = self.block(index, copied, Self::copies)?;
        let list = match pieces.len() {
            0 | 1 => 0,
            many => self.block(index, many * size_of::<Piece>(), Self::lists)?,
        };
        let full = TransportError::Memory { rank: self.waiter.rank };
        for (i, (bytes, place)) in pieces.iter().zip(&located).enumerate() {
            let (space, offset) = match place {
                Some((arena, offset)) => (arena + 1, *offset),
                None => {
                    // SAFETY: as in `send`.
                    let target = unsafe { self.outbox.segment.write(at, bytes.len() as u64) };
                    target.ok_or_else(|| full.clone())?.copy_from_slice(bytes);
                    at += bytes.len() as u64;
                    (OUTBOX, at - bytes.len() as u64)
                }
            };
            let one = &self.slot(index).piece;
            let place = match list {
                0 => one,
                list => piece(&self.outbox.segment, list, i).ok_or_else(|| full.clone())?,
            };
            place.set(space, offset, bytes.len());
        }
        let slot = self.slot(index);
        slot.pieces.store(pieces.len() as u32, Ordering::Relaxed);
        slot.list.store(list, Ordering::Relaxed);
        self.push();
        Ok(waited)
    }

    fn push(&mut self) {
        self.filled += 1;
        point();
        self.head().filled.0.store(self.filled, Ordering::Release);
        self.peer.ring();
    }

    fn slot(&self, index: usize) -> &Slot {
        slot(&self.outbox.segment, self.queue, index as u64).expect("the queue was made there")
    }

    fn copies(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.copies
    }

    fn lists(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.lists
    }

    /// The slot's block, of at least so many bytes.
    fn block(
        &mut self,
        index: usize,
        bytes: usize,
        of: fn(&mut Self) -> &mut Vec<(u64, u64)>,
    ) -> Result<u64, TransportError> {
        let bytes = bytes as u64;
        let (offset, size) = of(self)[index];
        if size >= bytes && size > 0 {
            return Ok(offset);
        }
        if size > 0 {
            self.outbox.release(offset, size);
        }
        let new = self.outbox.allocate(bytes.max(64));
        let new = new.ok_or(TransportError::Memory { rank: self.waiter.rank })?;
        of(self)[index] = (new, bytes.max(64));
        Ok(new)
    }
}

impl Drop for SharedSender {
    fn drop(&mut self) {
        // What the peer may still read is not used again.
        if self.unread() == 0 {
            let blocks = self.copies.iter().chain(&self.lists).filter(|(_, size)| *size > 0);
            blocks.for_each(|&(offset, size)| self.outbox.release(offset, size));
        }
    }
}

/// The receiving end of a queue, which the peer makes when it comes to it.
pub(super) struct SharedReceiver {
    peer: Arc<PeerMemory>,
    waiter: Waiter,
    from: u32,
    tag: u32,
    key: u64,
    slots: u64,
    queue: Option<u64>,
    emptied: u64,
    /// The peer's arenas that were met, mapped.
    arenas: BTreeMap<u32, Segment>,
    /// Where the pieces of the message at hand lie.
    places: Vec<Place>,
}

impl SharedReceiver {
    pub(super) fn new(
        peer: &Arc<PeerMemory>,
        waiter: Waiter,
        (key, from, tag): (u64, u32, u32),
        slots: u64,
    ) -> Self {
        let (peer, arenas, places) = (Arc::clone(peer), BTreeMap::new(), Vec::new());
        Self { peer, waiter, from, tag, key, slots, queue: None, emptied: 0, arenas, places }
    }

    fn mismatch(&self, what: String) -> TransportError {
        TransportError::Mismatch { rank: self.waiter.rank, peer: self.from, what }
    }

    /// The queue, once the peer has made it.
    fn head(&self) -> Option<&QueueHead> {
        let queue = self.queue.or_else(|| self.peer.queue(self.key, self.waiter.rank))?;
        queue_head(&self.peer.segment, queue)
    }

    /// Whether a message is there.
    pub(super) fn ready(&self) -> bool {
        let filled = |head: &QueueHead| head.filled.0.load(Ordering::Acquire) > self.emptied;
        self.head().is_some_and(filled)
    }

    /// Lets `read` read the next message.
    pub(super) fn receive(
        &mut self,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let what = || format!("to send in {}", self.tag);
        let waited = self.waiter.until(self.from, what, || self.ready())?;
        if self.queue.is_none() {
            self.find()?;
        }
        self.look()?;
        match self.places.as_slice() {
            [one] => read(&[self.bytes(*one)?]),
            many => {
                let pieces = many.iter().map(|&place| self.bytes(place));
                read(&pieces.collect::<Result<Vec<_>, _>>()?);
            }
        }
        self.release();
        Ok(waited)
    }

    /// Notes where the pieces of the next message lie, and maps the arenas that they lie in.
    fn look(&mut self) -> Result<(), TransportError> {
        let queue = self.queue.unwrap_or_default();
        let slot = slot(&self.peer.segment, queue, self.emptied % self.slots);
        let slot = slot.ok_or_else(|| self.broken())?;
        let pieces = slot.pieces.load(Ordering::Relaxed) as usize;
        let list = slot.list.load(Ordering::Relaxed);
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        for i in 0..pieces {
            let found = match pieces {
                1 => Some(&slot.piece),
                _ => piece(&self.peer.segment, list, i),
            };
            places.push(found.ok_or_else(|| self.broken())?.get());
        }
        for &(space, ..) in &places {
            if space != OUTBOX && !self.arenas.contains_key(&space) {
                let arena = self.peer.arena(space - 1).map_err(|_| self.broken())?;
                self.arenas.insert(space, arena);
            }
        }
        self.places = places;
        Ok(())
    }

    fn bytes(&self, (space, offset, bytes): Place) -> Result<&[u8], TransportError> {
        let segment = match space {
            OUTBOX => Some(&self.peer.segment),
            _ => self.arenas.get(&space),
        };
        // SAFETY: the sender does not write them before `emptied` says that they are read.
        let bytes = segment.and_then(|segment| unsafe { segment.read(offset, bytes) });
        bytes.ok_or_else(|| self.broken())
    }

    fn broken(&self) -> TransportError {
        self.mismatch(format!("where the messages of {} lie", self.tag))
    }

    /// Waits for the next message, whose pieces are lent: they lie in the peer's arenas. What is returned is to be used
    /// before [`SharedReceiver::release`].
    pub(super) fn hold(&mut self) -> Result<(Duration, Vec<Lent<'static>>), TransportError> {
        let what = || format!("to join collective {}", self.tag);
        let waited = self.waiter.until(self.from, what, || self.ready())?;
        if self.queue.is_none() {
            self.find()?;
        }
        self.look()?;
        let lent = |&place: &Place| {
            let bytes = self.bytes(place)?;
            let start = NonNull::from(bytes).cast();
            // SAFETY: mapped writable as long as this end lives, which the caller's group owns; the peer has lent it until
            // `emptied` counts this message.
            Ok(unsafe { Lent::mapped(start, bytes.len()) })
        };
        let lent = self.places.iter().map(lent).collect::<Result<_, TransportError>>()?;
        Ok((waited, lent))
    }

    /// Gives back what was lent.
    pub(super) fn release(&mut self) {
        self.emptied += 1;
        point();
        let queue = self.queue.unwrap_or_default();
        if let Some(head) = queue_head(&self.peer.segment, queue) {
            head.emptied.0.store(self.emptied, Ordering::Release);
        }
        self.peer.ring();
    }

    fn find(&mut self) -> Result<(), TransportError> {
        self.queue = self.peer.queue(self.key, self.waiter.rank);
        let slots = self.head().map(|head| head.slots.0.load(Ordering::Relaxed));
        if slots == Some(self.slots) {
            return Ok(());
        }
        Err(self.mismatch(format!("the slots of channel {}", self.tag)))
    }
}
