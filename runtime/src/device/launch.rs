//! Launches: what a device was prepared to do for an actor.

use super::{cpu, cuda};

/// A call that was prepared.
pub(crate) enum Launch {
    /// For the processor.
    Cpu(cpu::Launch),
    /// The launch of a card.
    Cuda(cuda::Launch),
}

impl Launch {
    /// Steps after which its registers' slots come again.
    pub(crate) fn period(&self, microbatches: u64) -> u64 {
        match self {
            Self::Cpu(_) => 1,
            Self::Cuda(launch) => launch.period(microbatches),
        }
    }
}
