//! Arenas in memory that processes of one host share: those of ranks, which have a mapping of their own, and blocks of the
//! outbox.

use std::sync::Arc;

use super::outbox::Outbox;
use super::segment::SharedSegment;
use crate::memory::{ALIGNMENT, HostArena, Offered, ProvidedMemory};

/// A mapping of its own, which others know by a number.
#[derive(Debug)]
struct OfferedSegment {
    segment: SharedSegment,
    outbox: Arc<Outbox>,
    number: u32,
}

// SAFETY: the mapping lives as long as the segment; peers touch only what is lent to them.
unsafe impl ProvidedMemory for OfferedSegment {
    fn start(&self) -> *mut u8 {
        self.segment.start()
    }

    fn bytes(&self) -> usize {
        self.segment.len()
    }
}

impl Drop for OfferedSegment {
    fn drop(&mut self) {
        self.outbox.withdraw_arena(self.number);
    }
}

/// Makes memory of so many bytes that the others may map; `None` where the system gives none.
pub(super) fn offer_segment(bytes: u64, outbox: &Arc<Outbox>) -> Option<Offered> {
    let segment = SharedSegment::new(bytes.max(ALIGNMENT as u64)).ok()?;
    let number = outbox.lend_arena(&segment)?;
    Some(Offered(Box::new(OfferedSegment { segment, outbox: Arc::clone(outbox), number })))
}

/// A block of an outbox.
#[derive(Debug)]
struct OutboxBlock {
    outbox: Arc<Outbox>,
    offset: u64,
    bytes: u64,
}

// SAFETY: the block is inside the outbox's mapping, and nobody else's until it is released.
unsafe impl ProvidedMemory for OutboxBlock {
    fn start(&self) -> *mut u8 {
        self.outbox.block_start(self.offset, self.bytes)
    }

    fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Drop for OutboxBlock {
    fn drop(&mut self) {
        self.outbox.release_block(self.offset, self.bytes);
    }
}

/// Allocates memory of arbitrary content in an outbox; `None` where that is full.
pub(super) fn allocate_in_outbox(bytes: u64, outbox: &Arc<Outbox>) -> Option<HostArena> {
    usize::try_from(bytes).ok()?;
    let offset = outbox.allocate(bytes)?;
    HostArena::from_provided(Box::new(OutboxBlock { outbox: Arc::clone(outbox), offset, bytes }))
}
