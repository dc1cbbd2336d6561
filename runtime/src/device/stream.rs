//! Streams and events.

use super::{Launch, Memory, Turn, cpu};
use crate::error::Cause;
use crate::memory::{Arena, Place};

/// A queue of launches. Each worker has one.
pub(crate) enum Stream {
    /// The worker's own thread, and those that share its kernels' work.
    Cpu(cpu::Stream),
}

/// Something that has come when all launches before it on its stream have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// It has come: on a processor launches end before they return.
    Past,
}

impl Stream {
    /// What is launched from now on belongs to this step, counted from 0 of the whole training.
    pub(crate) fn begin_step(&mut self, step: u64) {
        match self {
            Self::Cpu(stream) => stream.step = step,
        }
    }

    /// Launches what was prepared, on the contents of this turn.
    ///
    /// # Errors
    /// Where the kernel refuses its operands, e.g. an index that is out of range, as far as that is known at once.
    #[inline]
    pub(crate) fn launch(
        &mut self,
        launch: &Launch,
        memory: &Memory,
        turn: Turn,
    ) -> Result<(), Cause> {
        match (self, launch, memory) {
            (Self::Cpu(stream), Launch::Cpu(launch), Memory::Cpu(arena)) => {
                Ok(stream.launch(launch, arena, turn)?)
            }
        }
    }

    /// The event of all launches so far.
    #[inline]
    pub(crate) fn record(&mut self) -> Event {
        match self {
            Self::Cpu(_) => Event::Past,
        }
    }

    /// Launches from now on begin when an event of another stream of the device has come; the host does not wait.
    pub(crate) fn wait(&mut self, event: Event) {
        match (self, event) {
            (Self::Cpu(_), Event::Past) => {}
        }
    }

    /// Waits until all launches so far have ended.
    ///
    /// # Errors
    /// Where one of them has failed.
    pub(crate) fn synchronize(&mut self) -> Result<(), Cause> {
        match self {
            Self::Cpu(_) => Ok(()),
        }
    }

    /// Lets `read` see bytes when all launches so far have ended.
    pub(crate) fn read<R>(
        &mut self,
        memory: &Memory,
        place: Place,
        read: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match self {
            Self::Cpu(_) => memory.read(place, read),
        }
    }

    /// Lets `write` fill bytes, which launches from now on see. All of them are written.
    pub(crate) fn fill<R>(
        &mut self,
        memory: &Memory,
        place: Place,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        match self {
            Self::Cpu(_) => memory.write(place, write),
        }
    }

    /// Memory that the host and its peers reach in place, when all launches so far have ended.
    #[inline]
    pub(crate) fn host<'m>(&mut self, memory: &'m Memory) -> &'m Arena {
        match (self, memory) {
            (Self::Cpu(_), Memory::Cpu(arena)) => arena,
        }
    }
}
