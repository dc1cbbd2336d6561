//! The host program: what it knows to be done, and the pinned memory that it must leave alone until then.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Copy, End, Machine, Place, Task};
use crate::code::Code;
use crate::memory::{Clock, Home};

/// Pinned memory that a copy reads: it must be the same when the host program learns that the copy is done.
pub(super) struct Pledge {
    stream: u32,
    tick: u32,
    address: u64,
    bytes: usize,
    digest: u64,
}

impl Machine {
    /// The host program learns that something is done, with all that came before it.
    pub(super) fn learn(&mut self, places: &[Place]) {
        for place in places {
            self.host.join(&place.clock);
            self.host.advance(place.stream, place.tick);
        }
        self.redeem();
    }

    /// A callback tells the host program what came before it.
    pub(super) fn told(&mut self, clock: &Clock) {
        self.host.join(clock);
        self.redeem();
    }

    /// Notes the bytes of pinned memory that a task will read.
    pub(super) fn pledge(&mut self, task: &Task, stream: u32, tick: u32) {
        let Task::Copy(Copy { from: End::Memory(address), bytes, .. }) = task else { return };
        let pinned = self.space.whose(*address).is_some_and(|(home, _, _)| home == Home::Host);
        if let Some(digest) = self.digest(*address, *bytes).filter(|_| pinned) {
            let (address, bytes) = (*address, *bytes);
            self.pledges.push(Pledge { stream, tick, address, bytes, digest });
        }
    }

    /// A copy writes pinned memory: who was to read it has done so, as the order of both is checked.
    pub(super) fn release(&mut self, address: u64, bytes: usize) {
        let (from, to) = (address, address + bytes as u64);
        self.pledges.retain(|p| p.address >= to || p.address + p.bytes as u64 <= from);
    }

    /// Compares all pinned memory that copies are now known to have read.
    fn redeem(&mut self) {
        let known = &self.host;
        let (due, open) = std::mem::take(&mut self.pledges)
            .into_iter()
            .partition(|pledge: &Pledge| known.covers(pledge.stream, pledge.tick));
        self.pledges = open;
        for Pledge { stream, tick, address, bytes, digest } in due {
            if self.digest(address, bytes) != Some(digest) {
                let copy = self.space.operations().find(stream, tick);
                let text = format!(
                    "the host program changed or freed {bytes} bytes of pinned memory at {address:#x} \
                     before it could know that {copy}, which reads them, was done"
                );
                return self.fail(Code::IllegalAddress, &text);
            }
        }
    }

    fn digest(&self, address: u64, bytes: usize) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        self.space.peek(address, bytes)?.hash(&mut hasher);
        Some(hasher.finish())
    }
}
