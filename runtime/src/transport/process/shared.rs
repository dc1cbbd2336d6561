//! Queues in shared memory. A queue lies in its sender's memory: two counters and a ring of messages, each a list of
//! pieces that lie in the sender's memory too. So a receiver reads arenas in place, and what lies elsewhere is copied
//! once, by the sender.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::foreign;
use super::outbox::{Outbox, PeerMemory};
use super::segment::Segment;
use super::wait::Waiter;
use crate::explore::point;
use crate::memory::Lent;
use crate::transport::{Body, HEAD, TransportError};

/// `Piece::space` of what lies in the outbox itself; arena `i` is `i + 1`.
const OUTBOX: u32 = 0;
/// Of what lies in the slot.
const INLINE: u32 = u16::MAX as u32;
/// Of what lies in the sender's own memory, at an address of that process.
const FOREIGN: u32 = INLINE - 1;

/// The counters of a queue, each on cache lines of its own.
#[repr(C, align(128))]
struct QueueHead {
    emptied: Counter,
    /// How many slots there are, and whether the receiver can read the sender's own memory.
    slots: Counter,
    foreign: AtomicU32,
}

#[repr(C, align(128))]
struct Counter(AtomicU64);

/// A message. All that a receiver reads of a short one is on these two cache lines, and its number is what the receiver
/// waits for: so that message costs the transfer of one line or two.
#[repr(C, align(128))]
struct Slot {
    /// How many messages there are with this one.
    number: AtomicU64,
    pieces: AtomicU32,
    /// Bytes of the head, which lies in `inline`.
    head: AtomicU16,
    /// The place of the piece, or with several of the list of them.
    space: AtomicU16,
    offset: AtomicU64,
    bytes: AtomicU64,
    inline: [AtomicU64; (HEAD + BODY) / 8],
}

const _: () = assert!(size_of::<Slot>() == 128, "a message is two cache lines");

/// The longest body that lies in the slot, after the place of the head.
const BODY: usize = 64;

const HEAD_AT: u64 = std::mem::offset_of!(Slot, inline) as u64;
const BODY_AT: u64 = HEAD_AT + HEAD as u64;

#[repr(C)]
struct Piece {
    space: AtomicU32,
    offset: AtomicU64,
    bytes: AtomicU64,
}

/// Space, offset and size of a piece.
type Place = (u32, u64, u64);

impl Slot {
    fn place(&self) -> Place {
        let space = self.space.load(Ordering::Relaxed);
        (space.into(), self.offset.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

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
    slot_at(0, slots)
}

/// Where slot `index` of the queue at `queue` lies.
fn slot_at(queue: u64, index: u64) -> u64 {
    queue + SLOTS_AT + index * size_of::<Slot>() as u64
}

fn queue_head(segment: &Segment, offset: u64) -> Option<&QueueHead> {
    // SAFETY: `QueueHead` is atomics alone.
    unsafe { segment.at(offset) }
}

fn slot(segment: &Segment, queue: u64, index: u64) -> Option<&Slot> {
    // SAFETY: `Slot` is atomics alone.
    unsafe { segment.at(slot_at(queue, index)) }
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
    /// How many messages the peer is known to have read: what it says is looked at when that matters.
    seen: Cell<u64>,
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
        head.emptied.0.store(0, Ordering::Relaxed);
        head.slots.0.store(slots, Ordering::Relaxed);
        head.foreign.store(0, Ordering::Relaxed);
        for index in 0..slots {
            let slot = slot(&outbox.segment, queue, index).ok_or_else(full)?;
            slot.number.store(0, Ordering::Relaxed);
        }
        if !outbox.publish(key, to, queue) {
            return Err(full());
        }
        let (outbox, peer) = (Arc::clone(outbox), Arc::clone(peer));
        let none = vec![(0, 0); slots as usize];
        let (copies, lists) = (none.clone(), none);
        let (filled, seen) = (0, Cell::new(0));
        Ok(Self { outbox, peer, waiter, to, tag, queue, slots, filled, seen, copies, lists })
    }

    fn head(&self) -> &QueueHead {
        queue_head(&self.outbox.segment, self.queue).expect("the queue was made there")
    }

    fn unread(&self) -> u64 {
        self.seen.set(self.head().emptied.0.load(Ordering::Acquire));
        self.filled.saturating_sub(self.seen.get())
    }

    /// Whether a message would be taken at once.
    pub(super) fn ready(&self) -> bool {
        self.filled - self.seen.get() < self.slots || self.unread() < self.slots
    }

    /// Whether the peer has read everything.
    pub(super) fn settled(&self) -> bool {
        self.seen.get() == self.filled || self.unread() == 0
    }

    /// Whether the peer can read this process's own memory.
    pub(super) fn lends(&self) -> bool {
        self.head().foreign.load(Ordering::Relaxed) != 0
    }

    fn room(&self) -> Result<Duration, TransportError> {
        let what = || format!("to read what was sent in {}", self.tag);
        self.waiter.until(self.to, what, || self.ready())
    }

    /// Waits until the peer has read everything.
    pub(super) fn settle(&self) -> Result<Duration, TransportError> {
        let what = || format!("to read in collective {}", self.tag);
        self.waiter.until(self.to, what, || self.settled())
    }

    /// Sends a message of one piece, which `fill` writes.
    pub(super) fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        let waited = self.room()?;
        let index = self.index();
        let copy = self.copied(index, bytes)?;
        fill(self.own(copy, bytes)?);
        self.push(index, 1, 0, (OUTBOX, copy, bytes));
        Ok(waited)
    }

    /// Sends a message of a head of at most [`HEAD`] bytes and a body. A body that is `lent` the peer reads in this process's
    /// own memory, where it can: it is to stay there until [`SharedSender::settle`].
    pub(super) fn send_headed(
        &mut self,
        head: &[u8],
        body: &[u8],
        lent: bool,
    ) -> Result<Duration, TransportError> {
        let waited = self.room()?;
        let index = self.index();
        let slot = slot_at(self.queue, index as u64);
        self.own(slot + HEAD_AT, HEAD)?[..head.len()].copy_from_slice(head);
        let bytes = body.len();
        let place = if bytes <= BODY {
            self.own(slot + BODY_AT, BODY)?[..bytes].copy_from_slice(body);
            (INLINE, 0, bytes)
        } else if lent && self.lends() {
            (FOREIGN, body.as_ptr() as u64, bytes)
        } else {
            let copy = self.copied(index, bytes)?;
            self.own(copy, bytes)?.copy_from_slice(body);
            (OUTBOX, copy, bytes)
        };
        self.push(index, 1, head.len(), place);
        Ok(waited)
    }

    /// The slot of the next message.
    fn index(&self) -> usize {
        (self.filled % self.slots) as usize
    }

    /// Own bytes of the outbox, to be written.
    #[expect(clippy::mut_from_ref, reason = "the bytes are no part of this structure")]
    fn own(&self, offset: u64, bytes: usize) -> Result<&mut [u8], TransportError> {
        // SAFETY: the slot and its block are this sender's, and the peer has emptied the slot.
        let own = unsafe { self.outbox.segment.write(offset, bytes as u64) };
        own.ok_or(TransportError::Memory { rank: self.waiter.rank })
    }

    /// Shows pieces. What lies in an arena is read there, until [`SharedSender::settle`]; the rest is copied.
    pub(super) fn show(&mut self, pieces: &[&[u8]]) -> Result<Duration, TransportError> {
        let waited = self.room()?;
        let index = self.index();
        let located: Vec<_> = pieces.iter().map(|piece| self.outbox.locate(piece)).collect();
        let copied = pieces.iter().zip(&located).filter(|(_, place)| place.is_none());
        let copied: usize = copied.map(|(piece, _)| piece.len()).sum();
        let mut at = self.copied(index, copied)?;
        let list = match pieces.len() {
            0 | 1 => 0,
            many => self.listed(index, many * size_of::<Piece>())?,
        };
        let full = TransportError::Memory { rank: self.waiter.rank };
        let mut first = (OUTBOX, 0, 0);
        for (i, (bytes, place)) in pieces.iter().zip(&located).enumerate() {
            let (space, offset) = match place {
                Some((arena, offset)) => (arena + 1, *offset),
                None => {
                    self.own(at, bytes.len())?.copy_from_slice(bytes);
                    at += bytes.len() as u64;
                    (OUTBOX, at - bytes.len() as u64)
                }
            };
            first = (space, offset, bytes.len());
            if list != 0 {
                let entry = piece(&self.outbox.segment, list, i).ok_or_else(|| full.clone())?;
                entry.set(space, offset, bytes.len());
                first = (OUTBOX, list, 0);
            }
        }
        self.push(index, pieces.len(), 0, first);
        Ok(waited)
    }

    /// Hands over the message in a slot: one piece at a place, or several listed there.
    fn push(
        &mut self,
        index: usize,
        pieces: usize,
        head: usize,
        (space, offset, bytes): (u32, u64, usize),
    ) {
        self.filled += 1;
        let slot = self.slot(index);
        slot.pieces.store(pieces as u32, Ordering::Relaxed);
        slot.head.store(head as u16, Ordering::Relaxed);
        slot.space.store(space as u16, Ordering::Relaxed);
        slot.offset.store(offset, Ordering::Relaxed);
        slot.bytes.store(bytes as u64, Ordering::Relaxed);
        point();
        slot.number.store(self.filled, Ordering::Release);
        self.peer.ring();
    }

    fn slot(&self, index: usize) -> &Slot {
        slot(&self.outbox.segment, self.queue, index as u64).expect("the queue was made there")
    }

    /// The slot's block for copies, of at least so many bytes.
    fn copied(&mut self, index: usize, bytes: usize) -> Result<u64, TransportError> {
        let full = TransportError::Memory { rank: self.waiter.rank };
        grown(&self.outbox, &mut self.copies[index], bytes).ok_or(full)
    }

    /// Its block for a list.
    fn listed(&mut self, index: usize, bytes: usize) -> Result<u64, TransportError> {
        let full = TransportError::Memory { rank: self.waiter.rank };
        grown(&self.outbox, &mut self.lists[index], bytes).ok_or(full)
    }
}

/// A block, replaced where it has less than so many bytes; `None` where the outbox is full.
fn grown(outbox: &Outbox, block: &mut (u64, u64), bytes: usize) -> Option<u64> {
    let (offset, size) = *block;
    let bytes = (bytes as u64).max(64);
    if size < bytes {
        if size > 0 {
            outbox.release(offset, size);
        }
        *block = (0, 0);
        *block = (outbox.allocate(bytes)?, bytes);
    }
    Some(block.0)
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

    /// The slot of the next message, once the peer has made the queue.
    fn slot(&self) -> Option<&Slot> {
        let queue = self.queue.or_else(|| self.peer.queue(self.key, self.waiter.rank))?;
        slot(&self.peer.segment, queue, self.emptied % self.slots)
    }

    /// Whether a message is there.
    pub(super) fn ready(&self) -> bool {
        let filled = |slot: &Slot| slot.number.load(Ordering::Acquire) == self.emptied + 1;
        self.slot().is_some_and(filled)
    }

    /// Waits for the next message, and notes where its pieces lie.
    fn next(&mut self, what: &'static str) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        let what = |tag: u32| move || format!("{what} {tag}");
        if self.queue.is_none() {
            waited = self.find(what(self.tag))?;
        }
        waited += self.waiter.until(self.from, what(self.tag), || self.ready())?;
        self.look()?;
        Ok(waited)
    }

    /// Lets `read` read the next message.
    pub(super) fn receive(
        &mut self,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let waited = self.next("to send in")?;
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

    /// Lets `read` read head and body of the next message.
    pub(super) fn receive_headed(
        &mut self,
        read: &mut dyn FnMut(&[u8], Body<'_>),
    ) -> Result<Duration, TransportError> {
        let waited = self.next("to send in")?;
        let slot = self.slot().ok_or_else(|| self.broken())?;
        let head = slot.head.load(Ordering::Relaxed) as usize;
        let place @ (space, offset, bytes) = slot.place();
        let head = self.inline(HEAD_AT, head.min(HEAD))?;
        if space == FOREIGN {
            let failed = Cell::new(None);
            let copy = |into: &mut [u8]| {
                let bytes = into.len().min(bytes as usize);
                let copied = foreign::read(self.peer.pid(), offset, &mut into[..bytes]);
                failed.set(failed.take().or(copied.err()));
            };
            read(head, Body::There(bytes as usize, &copy));
            if let Some(error) = failed.take() {
                return Err(self.waiter.lost(self.from, &error));
            }
        } else {
            read(head, Body::Here(self.bytes(place)?));
        }
        self.release();
        Ok(waited)
    }

    /// Notes where the pieces of the next message lie, and maps the arenas that they lie in.
    fn look(&mut self) -> Result<(), TransportError> {
        let slot = self.slot().ok_or_else(|| self.broken())?;
        let pieces = slot.pieces.load(Ordering::Relaxed) as usize;
        let first = slot.place();
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        match pieces {
            1 => places.push(first),
            _ => {
                for i in 0..pieces {
                    let entry = piece(&self.peer.segment, first.1, i);
                    places.push(entry.ok_or_else(|| self.broken())?.get());
                }
            }
        }
        for &(space, ..) in &places {
            let of_arena = !matches!(space, OUTBOX | INLINE | FOREIGN);
            if of_arena && !self.arenas.contains_key(&space) {
                let arena = self.peer.arena(space - 1).map_err(|_| self.broken())?;
                self.arenas.insert(space, arena);
            }
        }
        self.places = places;
        Ok(())
    }

    /// Bytes of the slot.
    fn inline(&self, at: u64, bytes: usize) -> Result<&[u8], TransportError> {
        let slot = slot_at(self.queue.unwrap_or_default(), self.emptied % self.slots);
        // SAFETY: the sender does not write them before `emptied` says that they are read.
        let bytes = unsafe { self.peer.segment.read(slot + at, bytes as u64) };
        bytes.ok_or_else(|| self.broken())
    }

    fn bytes(&self, (space, offset, bytes): Place) -> Result<&[u8], TransportError> {
        let segment = match space {
            INLINE => return self.inline(BODY_AT, (bytes as usize).min(BODY)),
            OUTBOX => Some(&self.peer.segment),
            _ => self.arenas.get(&space),
        };
        // SAFETY: as in `inline`.
        let bytes = segment.and_then(|segment| unsafe { segment.read(offset, bytes) });
        bytes.ok_or_else(|| self.broken())
    }

    fn broken(&self) -> TransportError {
        self.mismatch(format!("where the messages of {} lie", self.tag))
    }

    /// Waits for the next message, whose pieces are lent: they lie in the peer's arenas. What is returned is to be used
    /// before [`SharedReceiver::release`].
    pub(super) fn hold(&mut self) -> Result<(Duration, Vec<Lent<'static>>), TransportError> {
        let waited = self.next("to join collective")?;
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

    /// Waits until the peer has made the queue, and tells it what this end can do.
    fn find(&mut self, what: impl Fn() -> String) -> Result<Duration, TransportError> {
        let made = || self.peer.queue(self.key, self.waiter.rank);
        let waited = self.waiter.until(self.from, what, || made().is_some())?;
        self.queue = made();
        let queue = self.queue.unwrap_or_default();
        let head = queue_head(&self.peer.segment, queue).ok_or_else(|| self.broken())?;
        if head.slots.0.load(Ordering::Relaxed) != self.slots {
            return Err(self.mismatch(format!("the slots of channel {}", self.tag)));
        }
        head.foreign.store(u32::from(self.peer.is_readable()), Ordering::Relaxed);
        Ok(waited)
    }
}
