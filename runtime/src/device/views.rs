//! Shards in an arena as kernels are told them.

use graphc_comm::memory::{ALIGNMENT, ArenaRange, HostArena};
use graphc_ir::types::DType;
use graphc_kernels::{View, ViewMut};

/// The shape of a shard, as a kernel is told it beside its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardShape<'a> {
    pub(crate) dtype: DType,
    pub(crate) extent: &'a [usize],
    pub(crate) global: &'a [usize],
    pub(crate) origin: &'a [usize],
}

/// Returns a shard to be read by a kernel.
pub(super) fn view<'a>(arena: &'a HostArena, place: ArenaRange, shape: ShardShape<'a>) -> View<'a> {
    check_shape(place, shape);
    let data = arena.address(place);
    // SAFETY: aligned and of the shape's size, as just checked; alive as the arena; an output of the same call is
    // the same memory only where `Operation::in_place` has the pair, as is proven of every plan.
    unsafe { View::new(shape.dtype, shape.extent, shape.global, shape.origin, data) }
}

/// Returns a shard to be written by a kernel.
pub(super) fn view_mut<'a>(
    arena: &'a HostArena,
    place: ArenaRange,
    shape: ShardShape<'a>,
) -> ViewMut<'a> {
    check_shape(place, shape);
    let data = arena.address(place);
    // SAFETY: as in `view`; nobody else reaches it while the plan's credits let this rank write, see the head of
    // `graphc_comm::memory`.
    unsafe { ViewMut::new(shape.dtype, shape.extent, shape.global, shape.origin, data) }
}

fn check_shape(place: ArenaRange, shape: ShardShape<'_>) {
    let elements: usize = shape.extent.iter().product();
    assert!(place.offset.is_multiple_of(ALIGNMENT), "registers are aligned");
    assert_eq!(place.bytes, elements * shape.dtype.size(), "a register has its shape's bytes");
}
