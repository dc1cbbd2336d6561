//! The sending end of a queue.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::explore::point;
use crate::transport::process::outbox::{Abandoned, Outbox, PeerMemory};
use crate::transport::process::slots::{
    BODY, BODY_AT, FOREIGN, HEAD_AT, INLINE, ListedPiece, OUTBOX, QueueHead, QueueSlot, find_piece,
    find_slot, queue_bytes, queue_head, slot_at,
};
use crate::transport::process::wait::Waiter;
use crate::transport::{HEAD, TransportError, describe_tag};

/// The sending end of a queue.
pub(in crate::transport::process) struct SharedQueueSender {
    outbox: Arc<Outbox>,
    peer: Arc<PeerMemory>,
    waiter: Waiter,
    to: u32,
    tag: u32,
    queue: u64,
    /// The index in the directory of the outbox.
    entry: usize,
    slots: u64,
    filled: u64,
    /// The number of messages that the peer is known to have read: its own count is looked at when that matters.
    seen: Cell<u64>,
    /// The blocks of each slot: one for copies and one for lists, with their sizes.
    copies: Vec<(u64, u64)>,
    lists: Vec<(u64, u64)>,
}

impl SharedQueueSender {
    /// Makes the queue `(key, to)`.
    pub(in crate::transport::process) fn new(
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
        head.withdrawn.store(0, Ordering::Relaxed);
        head.left.store(0, Ordering::Relaxed);
        for index in 0..slots {
            let slot = find_slot(&outbox.segment, queue, index).ok_or_else(full)?;
            slot.number.store(0, Ordering::Relaxed);
        }
        let Some(entry) = outbox.publish_queue(key, to, queue) else {
            outbox.release_block(queue, queue_bytes(slots));
            return Err(full());
        };
        let (outbox, peer) = (Arc::clone(outbox), Arc::clone(peer));
        let none = vec![(0, 0); slots as usize];
        let (copies, lists) = (none.clone(), none);
        let (filled, seen) = (0, Cell::new(0));
        Ok(Self { outbox, peer, waiter, to, tag, queue, entry, slots, filled, seen, copies, lists })
    }

    fn head(&self) -> &QueueHead {
        queue_head(&self.outbox.segment, self.queue).expect("the queue was made there")
    }

    fn count_unread(&self) -> u64 {
        self.seen.set(self.head().emptied.0.load(Ordering::Acquire));
        self.filled.saturating_sub(self.seen.get())
    }

    /// Whether a message would be taken at once.
    pub(in crate::transport::process) fn is_ready(&self) -> bool {
        self.filled - self.seen.get() < self.slots || self.count_unread() < self.slots
    }

    /// Whether the peer has read everything.
    pub(in crate::transport::process) fn is_settled(&self) -> bool {
        self.seen.get() == self.filled || self.count_unread() == 0
    }

    /// Withdraws loans that were not read: their memory may change from now on, and whoever reads it gets an error.
    pub(in crate::transport::process) fn withdraw_loans(&self) {
        if !self.is_settled() {
            self.head().withdrawn.store(1, Ordering::SeqCst);
        }
    }

    /// Whether the peer can read this process's own memory.
    pub(in crate::transport::process) fn can_lend(&self) -> bool {
        self.head().foreign.load(Ordering::Relaxed) != 0
    }

    /// Waits until a message would be taken at once.
    pub(in crate::transport::process) fn wait_for_slot(&self) -> Result<Duration, TransportError> {
        let what = || format!("to read what was sent in {}", describe_tag(self.tag));
        self.waiter.wait_until(self.to, what, || self.is_ready())
    }

    /// Waits until the peer has read everything.
    pub(in crate::transport::process) fn settle_loans(&self) -> Result<Duration, TransportError> {
        let what = || format!("to read in collective {}", describe_tag(self.tag));
        self.waiter.wait_until(self.to, what, || self.is_settled())
    }

    /// Sends a message of one piece, which `fill` writes.
    pub(in crate::transport::process) fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        let waited = self.wait_for_slot()?;
        let index = self.next_index();
        let copy = self.block_for_copies(index, bytes)?;
        fill(self.own_bytes(copy, bytes)?);
        self.push_message(index, 1, 0, (OUTBOX, copy, bytes));
        Ok(waited)
    }

    /// Sends a message of a head of at most [`HEAD`] bytes and a body. A body that is `lent` the peer reads in this process's
    /// own memory, where it can: it is to stay there until [`SharedQueueSender::settle_loans`].
    pub(in crate::transport::process) fn send_headed(
        &mut self,
        head: &[u8],
        body: &[u8],
        lent: bool,
    ) -> Result<Duration, TransportError> {
        let waited = self.wait_for_slot()?;
        let index = self.next_index();
        let slot = slot_at(self.queue, index as u64);
        self.own_bytes(slot + HEAD_AT, HEAD)?[..head.len()].copy_from_slice(head);
        let bytes = body.len();
        let place = if bytes <= BODY {
            self.own_bytes(slot + BODY_AT, BODY)?[..bytes].copy_from_slice(body);
            (INLINE, 0, bytes)
        } else if let Some((space, offset)) = lent.then(|| self.outbox.locate_bytes(body)).flatten()
        {
            (space, offset, bytes)
        } else if lent && self.can_lend() {
            (FOREIGN, body.as_ptr() as u64, bytes)
        } else {
            let copy = self.block_for_copies(index, bytes)?;
            self.own_bytes(copy, bytes)?.copy_from_slice(body);
            (OUTBOX, copy, bytes)
        };
        self.push_message(index, 1, head.len(), place);
        Ok(waited)
    }

    /// Returns the index of the next message's slot.
    fn next_index(&self) -> usize {
        (self.filled % self.slots) as usize
    }

    /// Returns bytes of the own outbox, to be written.
    #[expect(clippy::mut_from_ref, reason = "the bytes are no part of this structure")]
    fn own_bytes(&self, offset: u64, bytes: usize) -> Result<&mut [u8], TransportError> {
        // SAFETY: the slot and its block are this sender's, and the peer has emptied the slot.
        let own = unsafe { self.outbox.segment.write(offset, bytes as u64) };
        own.ok_or(TransportError::Memory { rank: self.waiter.rank })
    }

    /// Shows pieces. What lies in an arena is read there, until [`SharedQueueSender::settle_loans`]; the rest is copied.
    pub(in crate::transport::process) fn show_pieces(
        &mut self,
        pieces: &[&[u8]],
    ) -> Result<Duration, TransportError> {
        let waited = self.wait_for_slot()?;
        let index = self.next_index();
        let located: Vec<_> = pieces.iter().map(|piece| self.outbox.locate_bytes(piece)).collect();
        let copied = pieces.iter().zip(&located).filter(|(_, place)| place.is_none());
        let copied: usize = copied.map(|(piece, _)| piece.len()).sum();
        let mut at = self.block_for_copies(index, copied)?;
        let list = match pieces.len() {
            0 | 1 => 0,
            many => self.block_for_list(index, many * size_of::<ListedPiece>())?,
        };
        let full = TransportError::Memory { rank: self.waiter.rank };
        let mut first = (OUTBOX, 0, 0);
        for (i, (bytes, place)) in pieces.iter().zip(&located).enumerate() {
            let (space, offset) = match place {
                Some((space, offset)) => (*space, *offset),
                None => {
                    self.own_bytes(at, bytes.len())?.copy_from_slice(bytes);
                    at += bytes.len() as u64;
                    (OUTBOX, at - bytes.len() as u64)
                }
            };
            first = (space, offset, bytes.len());
            if list != 0 {
                let entry =
                    find_piece(&self.outbox.segment, list, i).ok_or_else(|| full.clone())?;
                entry.store_place(space, offset, bytes.len());
                first = (OUTBOX, list, 0);
            }
        }
        self.push_message(index, pieces.len(), 0, first);
        Ok(waited)
    }

    /// Hands over the message in a slot: one piece at a place, or several listed there.
    fn push_message(
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
        self.peer.ring_bell();
    }

    fn slot(&self, index: usize) -> &QueueSlot {
        find_slot(&self.outbox.segment, self.queue, index as u64).expect("the queue was made there")
    }

    /// Returns the slot's block for copies, of at least so many bytes.
    fn block_for_copies(&mut self, index: usize, bytes: usize) -> Result<u64, TransportError> {
        let full = TransportError::Memory { rank: self.waiter.rank };
        grow_block(&self.outbox, &mut self.copies[index], bytes).ok_or(full)
    }

    /// Returns its block for a list.
    fn block_for_list(&mut self, index: usize, bytes: usize) -> Result<u64, TransportError> {
        let full = TransportError::Memory { rank: self.waiter.rank };
        grow_block(&self.outbox, &mut self.lists[index], bytes).ok_or(full)
    }
}

/// Returns a block, replaced where it has less than so many bytes; `None` where the outbox is full.
fn grow_block(outbox: &Outbox, block: &mut (u64, u64), bytes: usize) -> Option<u64> {
    let (offset, size) = *block;
    let bytes = (bytes as u64).max(64);
    if size < bytes {
        if size > 0 {
            outbox.release_block(offset, size);
        }
        *block = (0, 0);
        *block = (outbox.allocate(bytes)?, bytes);
    }
    Some(block.0)
}

impl Drop for SharedQueueSender {
    fn drop(&mut self) {
        // The peer may still read: the memory is used again once it has left the queue as well.
        let blocks = self.copies.iter().chain(&self.lists).copied();
        let blocks = blocks.filter(|&(_, size)| size > 0).collect();
        let queue = (self.queue, queue_bytes(self.slots));
        self.outbox.abandon_queue(Abandoned { entry: self.entry, queue, blocks });
    }
}
