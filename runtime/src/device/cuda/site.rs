//! The site of an action's launches: where they find what they need.

use graphc_kernels::cuda::{Argument, CallRegister, LaunchMemory as Where};

use super::super::port::{Port, Turn};
use super::driver::{CardBuffer, Loaded};
use super::memory::CardMemory;
use super::stream::CardStream;
use crate::error::Cause;

/// The registers, memory and numbers of a launch.
pub(super) struct LaunchSite<'a> {
    pub(super) operands: &'a [Port],
    pub(super) results: &'a [Port],
    pub(super) memory: &'a CardMemory,
    pub(super) turn: Turn,
    /// The number of this call among those of the device.
    pub(super) call: u32,
    /// The index of its first number among the numbers of the device.
    pub(super) numbers: usize,
    /// The table of kernels of several actors, where it has some.
    pub(super) table: Option<&'a CardBuffer>,
}

impl LaunchSite<'_> {
    /// Launches a kernel.
    #[inline]
    pub(super) fn launch(
        &self,
        stream: &mut CardStream,
        loaded: Loaded,
        arguments: &[Argument],
    ) -> Result<(), Cause> {
        stream.launch_kernel(loaded, |stream, values| {
            values.extend(arguments.iter().map(|&one| self.argument_value(one, stream)));
        })
    }

    #[inline]
    fn port(&self, slot: CallRegister) -> &Port {
        match slot {
            CallRegister::Operand(index) => &self.operands[index],
            CallRegister::Result(index) => &self.results[index],
        }
    }

    #[inline]
    pub(super) fn address(&self, place: Where, stream: &CardStream) -> u64 {
        match place {
            Where::Slot(slot) => self.memory.address(self.port(slot).content_range(self.turn)),
            Where::Scratch(byte) => stream.scratch_address(byte),
        }
    }

    /// Returns the value of an argument; all are of 64 bits, of which a shorter one is the lower.
    #[inline]
    pub(super) fn argument_value(&self, argument: Argument, stream: &CardStream) -> u64 {
        match argument {
            Argument::Address(place) => self.address(place, stream),
            Argument::Origin(slot, dim) => {
                self.port(slot).rect(self.turn.microbatch).origin[dim] as u64
            }
            Argument::Now => stream.now_address(),
            Argument::Numbers => stream.numbers_address(self.numbers),
            Argument::Fault => stream.fault_address(),
            Argument::Call => u64::from(self.call),
            Argument::Constant(number) => u64::from(number),
            Argument::Registers => self.memory.buffer.address(0, 0),
            Argument::Table => self.table.map_or(0, |table| table.address(0, 0)),
        }
    }
}
