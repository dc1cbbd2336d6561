//! The buffers of a collective.

use graphc_comm::memory::{ArenaRange, HostArena};

/// The memory that a collective works on.
pub(crate) struct Buffers<'a> {
    pub(crate) arena: &'a HostArena,
    /// The places of the inputs and outputs in this action.
    pub(crate) inputs: &'a [ArenaRange],
    pub(crate) outputs: &'a [ArenaRange],
    /// Buffers of the outputs' sizes, for collectives in place; otherwise none.
    pub(crate) staging: &'a mut [Vec<u8>],
    /// Buffers in which sums of 16-bit numbers are made, one for each output.
    pub(crate) wide: &'a mut [Vec<f32>],
    /// The pack buffer.
    pub(crate) packed: &'a mut Vec<u8>,
}
