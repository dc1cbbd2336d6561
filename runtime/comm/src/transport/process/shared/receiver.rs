//! The receiving end of a queue.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::explore::point;
use crate::memory::Lent;
use crate::transport::process::foreign;
use crate::transport::process::outbox::PeerMemory;
use crate::transport::process::segment::SharedSegment;
use crate::transport::process::slots::{
    BODY, BODY_AT, FOREIGN, HEAD_AT, INLINE, OUTBOX, Place, QueueSlot, find_piece, find_slot,
    queue_head, slot_at,
};
use crate::transport::process::wait::Waiter;
use crate::transport::{Body, HEAD, TransportError, describe_tag};

/// The receiving end of a queue, which the peer makes when it comes to it.
pub(in crate::transport::process) struct SharedQueueReceiver {
    peer: Arc<PeerMemory>,
    waiter: Waiter,
    from: u32,
    tag: u32,
    key: u64,
    slots: u64,
    queue: Option<u64>,
    emptied: u64,
    /// The peer's arenas that were met, mapped.
    arenas: BTreeMap<u32, SharedSegment>,
    /// The places of the pieces of the current message.
    places: Vec<Place>,
}

impl SharedQueueReceiver {
    pub(in crate::transport::process) fn new(
        peer: &Arc<PeerMemory>,
        waiter: Waiter,
        (key, from, tag): (u64, u32, u32),
        slots: u64,
    ) -> Self {
        let (peer, arenas, places) = (Arc::clone(peer), BTreeMap::new(), Vec::new());
        Self { peer, waiter, from, tag, key, slots, queue: None, emptied: 0, arenas, places }
    }

    fn mismatch_error(&self, what: String) -> TransportError {
        TransportError::Mismatch { rank: self.waiter.rank, peer: self.from, what }
    }

    /// Returns the slot of the next message, once the peer has made the queue.
    fn next_slot(&self) -> Option<&QueueSlot> {
        let queue = self.queue.or_else(|| self.peer.find_queue(self.key))?;
        find_slot(&self.peer.segment, queue, self.emptied % self.slots)
    }

    /// Whether a message is there.
    pub(in crate::transport::process) fn is_ready(&self) -> bool {
        let filled = |slot: &QueueSlot| slot.number.load(Ordering::Acquire) == self.emptied + 1;
        self.next_slot().is_some_and(filled)
    }

    /// Waits for the next message, and notes where its pieces lie.
    fn wait_next(&mut self, what: &'static str) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        let what = |tag: u32| move || format!("{what} {}", describe_tag(tag));
        if self.queue.is_none() {
            waited = self.find_queue(what(self.tag))?;
        }
        waited += self.waiter.wait_until(self.from, what(self.tag), || self.is_ready())?;
        self.note_pieces()?;
        Ok(waited)
    }

    /// Lets `read` read the next message.
    pub(in crate::transport::process) fn receive(
        &mut self,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let waited = self.wait_next("to send in")?;
        match self.places.as_slice() {
            [one] => read(&[self.piece_bytes(*one)?]),
            many => {
                let pieces = many.iter().map(|&place| self.piece_bytes(place));
                read(&pieces.collect::<Result<Vec<_>, _>>()?);
            }
        }
        self.release_lent();
        Ok(waited)
    }

    /// Lets `read` read head and body of the next message.
    pub(in crate::transport::process) fn receive_headed(
        &mut self,
        read: &mut dyn FnMut(&[u8], Body<'_>),
    ) -> Result<Duration, TransportError> {
        let waited = self.wait_next("to send in")?;
        let slot = self.next_slot().ok_or_else(|| self.place_error())?;
        let head = slot.head.load(Ordering::Relaxed) as usize;
        let place @ (space, offset, bytes) = slot.place();
        let head = self.inline_bytes(HEAD_AT, head.min(HEAD))?;
        if space == FOREIGN {
            let failed = Cell::new(None);
            let copy = |into: &mut [u8]| {
                let bytes = into.len().min(bytes as usize);
                let copied =
                    foreign::read_process_memory(self.peer.pid(), offset, &mut into[..bytes]);
                failed.set(failed.take().or(copied.err()));
            };
            read(head, Body::There(bytes as usize, &copy));
            // What changed while it was copied changed after this was set.
            fence(Ordering::Acquire);
            let queue = queue_head(&self.peer.segment, self.queue.unwrap_or_default());
            if queue.is_none_or(|head| head.withdrawn.load(Ordering::SeqCst) != 0) {
                failed.set(Some(io::Error::other("it has given up sending")));
            }
            if let Some(error) = failed.take() {
                return Err(self.waiter.lost_error(self.from, &error));
            }
        } else {
            read(head, Body::Here(self.piece_bytes(place)?));
        }
        self.release_lent();
        Ok(waited)
    }

    /// Notes where the pieces of the next message lie, and maps the arenas that they lie in.
    fn note_pieces(&mut self) -> Result<(), TransportError> {
        let slot = self.next_slot().ok_or_else(|| self.place_error())?;
        let pieces = slot.pieces.load(Ordering::Relaxed) as usize;
        let first = slot.place();
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        match pieces {
            1 => places.push(first),
            _ => {
                for i in 0..pieces {
                    let entry = find_piece(&self.peer.segment, first.1, i);
                    places.push(entry.ok_or_else(|| self.place_error())?.load_place());
                }
            }
        }
        for &(space, ..) in &places {
            let of_arena = !matches!(space, OUTBOX | INLINE | FOREIGN);
            if of_arena && !self.arenas.contains_key(&space) {
                let arena = self.peer.map_arena(space - 1).map_err(|_| self.place_error())?;
                self.arenas.insert(space, arena);
            }
        }
        self.places = places;
        Ok(())
    }

    /// Returns the bytes of the slot.
    fn inline_bytes(&self, at: u64, bytes: usize) -> Result<&[u8], TransportError> {
        let slot = slot_at(self.queue.unwrap_or_default(), self.emptied % self.slots);
        // SAFETY: the sender does not write them before `emptied` says that they are read.
        let bytes = unsafe { self.peer.segment.read(slot + at, bytes as u64) };
        bytes.ok_or_else(|| self.place_error())
    }

    fn piece_bytes(&self, (space, offset, bytes): Place) -> Result<&[u8], TransportError> {
        let segment = match space {
            INLINE => return self.inline_bytes(BODY_AT, (bytes as usize).min(BODY)),
            OUTBOX => Some(&self.peer.segment),
            _ => self.arenas.get(&space),
        };
        // SAFETY: as in `inline_bytes`.
        let bytes = segment.and_then(|segment| unsafe { segment.read(offset, bytes) });
        bytes.ok_or_else(|| self.place_error())
    }

    fn place_error(&self) -> TransportError {
        self.mismatch_error(format!("where the messages of {} lie", self.tag))
    }

    /// Waits for the next message, whose pieces are lent: they lie in the peer's arenas. What is returned is to be used
    /// before [`SharedQueueReceiver::release_lent`].
    pub(in crate::transport::process) fn hold_lent(
        &mut self,
    ) -> Result<(Duration, Vec<Lent<'static>>), TransportError> {
        let waited = self.wait_next("to join collective")?;
        let lent = |&place: &Place| {
            let bytes = self.piece_bytes(place)?;
            let start = NonNull::from(bytes).cast();
            // SAFETY: mapped writable as long as this end lives, which the caller's group owns; the peer has lent it until
            // `emptied` counts this message.
            Ok(unsafe { Lent::from_mapped(start, bytes.len()) })
        };
        let lent = self.places.iter().map(lent).collect::<Result<_, TransportError>>()?;
        Ok((waited, lent))
    }

    /// Gives back what was lent.
    pub(in crate::transport::process) fn release_lent(&mut self) {
        self.emptied += 1;
        point();
        let queue = self.queue.unwrap_or_default();
        if let Some(head) = queue_head(&self.peer.segment, queue) {
            head.emptied.0.store(self.emptied, Ordering::Release);
        }
        self.peer.ring_bell();
    }

    /// Waits until the peer has made the queue, and tells it what this end can do.
    fn find_queue(&mut self, what: impl Fn() -> String) -> Result<Duration, TransportError> {
        let made = || self.peer.find_queue(self.key);
        let waited = self.waiter.wait_until(self.from, what, || made().is_some())?;
        self.queue = made();
        let queue = self.queue.unwrap_or_default();
        let head = queue_head(&self.peer.segment, queue).ok_or_else(|| self.place_error())?;
        if head.slots.0.load(Ordering::Relaxed) != self.slots {
            return Err(self.mismatch_error(format!("the slots of channel {}", self.tag)));
        }
        head.foreign.store(u32::from(self.peer.is_readable()), Ordering::Relaxed);
        Ok(waited)
    }
}

impl Drop for SharedQueueReceiver {
    fn drop(&mut self) {
        self.peer.leave_queue(self.key);
    }
}
