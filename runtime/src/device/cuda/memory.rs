//! The memory of a rank on a card, and its image on the host.
//!
//! The image is an arena as large as the rank's memory, of which pages are taken that are touched. What the host does with the
//! contents of registers in a step, exchanges with other ranks among them, is done there, between a copy from the card and one back. Between steps
//! variables are read and written one by one, through memory that is given back at once, so the host never holds all of them.

use std::sync::Arc;

use graphc_comm::memory::{ArenaRange, HostArena};

use super::CardShared;
use super::driver::{CardBuffer, Trouble};

/// Memory of a card.
#[derive(Debug)]
pub(crate) struct CardMemory {
    pub(super) buffer: CardBuffer,
    pub(super) image: HostArena,
    pub(super) shared: Arc<CardShared>,
}

impl CardMemory {
    /// Returns the address of a register's content.
    #[inline]
    pub(crate) fn address(&self, place: ArenaRange) -> u64 {
        self.buffer.address(place.offset, place.bytes)
    }

    /// Returns the image on the host.
    pub(crate) fn image(&self) -> &HostArena {
        &self.image
    }

    /// Lets `read` see bytes. No stream may be in a step.
    pub(crate) fn read<R>(&self, place: ArenaRange, read: impl FnOnce(&[u8]) -> R) -> R {
        let mut content = vec![0; place.bytes];
        if place.bytes > 0 {
            self.record_result(self.buffer.read(place.offset, &mut content));
        }
        read(&content)
    }

    /// Lets `write` fill bytes, all of them. No stream may be in a step.
    pub(crate) fn write<R>(&self, place: ArenaRange, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut content = vec![0; place.bytes];
        let result = write(&mut content);
        if place.bytes > 0 {
            self.record_result(self.buffer.write(place.offset, &content));
        }
        result
    }

    /// Fills bytes with zeros, which the host has not to bring. No stream may be in a step.
    pub(crate) fn clear(&self, place: ArenaRange) {
        if place.bytes > 0 {
            self.record_result(self.buffer.clear(place.offset, place.bytes));
        }
    }

    /// Keeps what went wrong for the next step, which fails with it.
    fn record_result(&self, result: Result<(), Trouble>) {
        if let Err(trouble) = result {
            self.shared.record_failure(trouble);
        }
    }
}
