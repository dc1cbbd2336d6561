//! Launches: what a device was prepared to do for an actor.

use super::{cpu, cuda};

/// A call that was prepared.
pub(crate) enum DeviceLaunch {
    /// A launch on the processor.
    Cpu(cpu::CpuLaunch),
    /// The launch of a card.
    Cuda(cuda::CardLaunch),
}

impl DeviceLaunch {
    /// Returns the number of steps after which its registers' slots come again.
    pub(crate) fn slot_period(&self, microbatches: u64) -> u64 {
        match self {
            Self::Cpu(_) => 1,
            Self::Cuda(launch) => launch.slot_period(microbatches),
        }
    }
}
