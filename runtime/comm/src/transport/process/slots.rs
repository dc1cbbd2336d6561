//! The layout of a queue in shared memory: its counters, its slots, and the lists of pieces.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::segment::SharedSegment;
use crate::transport::HEAD;

/// The space (`ListedPiece::space`) of pieces in the outbox itself; arena `i` is `i + 1`.
pub(super) const OUTBOX: u32 = 0;
/// The space of pieces in the slot.
pub(super) const INLINE: u32 = u16::MAX as u32;
/// The space of pieces in the sender's own memory, at an address of that process.
pub(super) const FOREIGN: u32 = INLINE - 1;

/// The counters of a queue, each on cache lines of its own.
#[repr(C, align(128))]
pub(super) struct QueueHead {
    pub(super) emptied: Counter,
    /// The number of slots, and whether the receiver can read the sender's own memory.
    pub(super) slots: Counter,
    pub(super) foreign: AtomicU32,
    /// Whether the sender has given up: what it has lent is not there any more.
    pub(super) withdrawn: AtomicU32,
    /// Whether the receiver is gone: it will not touch the queue again.
    pub(super) left: AtomicU32,
}

#[repr(C, align(128))]
pub(super) struct Counter(pub(super) AtomicU64);

/// A message. All that a receiver reads of a short one is on these two cache lines, and its number is what the receiver
/// waits for: so that message costs the transfer of one line or two.
#[repr(C, align(128))]
pub(super) struct QueueSlot {
    /// The number of messages with this one.
    pub(super) number: AtomicU64,
    pub(super) pieces: AtomicU32,
    /// Bytes of the head, which lies in `inline`.
    pub(super) head: AtomicU16,
    /// The place of the piece, or with several of the list of them.
    pub(super) space: AtomicU16,
    pub(super) offset: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) inline: [AtomicU64; (HEAD + BODY) / 8],
}

const _: () = assert!(size_of::<QueueSlot>() == 128, "a message is two cache lines");

/// The longest body that lies in the slot, after the place of the head.
pub(super) const BODY: usize = 64;

pub(super) const HEAD_AT: u64 = std::mem::offset_of!(QueueSlot, inline) as u64;
pub(super) const BODY_AT: u64 = HEAD_AT + HEAD as u64;

#[repr(C)]
pub(super) struct ListedPiece {
    pub(super) space: AtomicU32,
    pub(super) offset: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Space, offset and size of a piece.
pub(super) type Place = (u32, u64, u64);

impl QueueSlot {
    pub(super) fn place(&self) -> Place {
        let space = self.space.load(Ordering::Relaxed);
        (space.into(), self.offset.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl ListedPiece {
    pub(super) fn load_place(&self) -> Place {
        let space = self.space.load(Ordering::Relaxed);
        (space, self.offset.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    pub(super) fn store_place(&self, space: u32, offset: u64, bytes: usize) {
        self.space.store(space, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

pub(super) const SLOTS_AT: u64 = size_of::<QueueHead>() as u64;

pub(super) fn queue_bytes(slots: u64) -> u64 {
    slot_at(0, slots)
}

/// Returns the place of slot `index` of the queue at `queue`.
pub(super) fn slot_at(queue: u64, index: u64) -> u64 {
    queue + SLOTS_AT + index * size_of::<QueueSlot>() as u64
}

pub(super) fn queue_head(segment: &SharedSegment, offset: u64) -> Option<&QueueHead> {
    // SAFETY: `QueueHead` is atomics alone.
    unsafe { segment.struct_at(offset) }
}

/// Marks a queue that the receiver will not touch again.
pub(super) fn leave_queue(segment: &SharedSegment, queue: u64) {
    if let Some(head) = queue_head(segment, queue) {
        head.left.store(1, Ordering::Release);
    }
}

/// Whether the receiver has said so.
pub(super) fn is_left(segment: &SharedSegment, queue: u64) -> bool {
    queue_head(segment, queue).is_none_or(|head| head.left.load(Ordering::Acquire) != 0)
}

pub(super) fn find_slot(segment: &SharedSegment, queue: u64, index: u64) -> Option<&QueueSlot> {
    // SAFETY: `QueueSlot` is atomics alone.
    unsafe { segment.struct_at(slot_at(queue, index)) }
}

pub(super) fn find_piece(segment: &SharedSegment, list: u64, index: usize) -> Option<&ListedPiece> {
    // SAFETY: `ListedPiece` is atomics alone.
    unsafe { segment.struct_at(list + (index * size_of::<ListedPiece>()) as u64) }
}
