//! Memory of a device, as the host reaches it between steps.

use graphc_comm::memory::{ArenaRange, HostArena};

use super::cuda::CardMemory;

/// The memory of one rank: what the registers of its program lie in.
#[derive(Debug)]
pub(crate) enum DeviceMemory {
    /// Memory of the host.
    Cpu(HostArena),
    /// Memory of a card.
    Cuda(CardMemory),
}

impl DeviceMemory {
    /// Lets `read` see bytes. No stream may be in a step.
    pub(crate) fn read<R>(&self, place: ArenaRange, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Cpu(arena) => read(arena.read(place)),
            Self::Cuda(memory) => memory.read(place, read),
        }
    }

    /// Lets `write` fill bytes, all of them. No stream may be in a step.
    pub(crate) fn write<R>(&self, place: ArenaRange, write: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Self::Cpu(arena) => write(arena.write(place)),
            Self::Cuda(memory) => memory.write(place, write),
        }
    }

    /// Has bytes hold zeros to which nothing was written before.
    pub(crate) fn begin_with_zeros(&self, place: ArenaRange) {
        match self {
            // They are there already; whoever first needs the pages touches them.
            Self::Cpu(_) => {}
            Self::Cuda(memory) => memory.clear(place),
        }
    }
}
