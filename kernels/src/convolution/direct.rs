//! Convolution of `f32` without columns, by AVX-512: one group after the other.

use super::axis::{self, meetings};
use super::gather::{Gather, Pack, Side};
use super::merged::Merged;
use super::outer::Sums;
use super::pack::Kernels;
use super::space::Space;
use crate::context::KernelContext;
use crate::epilogue::Sink;
use crate::error::KernelError;
use crate::parallel;

/// y from x and k.
pub(super) fn forward(
    space: &Space,
    x: &[f32],
    k: &[f32],
    y: Sink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let hands = (cx.pool, parallel::parts(cx, space.multiplications()));
    let words = Gather::words(hands.1, y);
    if let Some(merged) = Merged::of(space) {
        let gather = gather(&merged.space, 0, merged.side(), axis::forward);
        let slots = gather.slots();
        let [of_x, of_k] = [merged.padded(), k.len()];
        let count = of_x + of_k + gather.room(&slots, Pack::ByOutputs);
        let (words, room) = cx.scratch.take_both::<i64, f32>([words, count]);
        let (padded, room) = room.split_at_mut(of_x);
        let (kernels, room) = room.split_at_mut(of_k);
        merged.pad(hands, x, padded)?;
        merged.kernels(k, kernels);
        let kernels = of_group(&merged.space, 0, kernels, &slots);
        return gather.run(hands, (kernels, Pack::ByOutputs), (room, words), padded, y);
    }
    // What follows needs the channels of all groups.
    let of_one = if space.groups == 1 { y } else { y.alone() };
    for group in 0..space.groups {
        let gather = gather(space, group, x_side(space, group), axis::forward);
        let slots = gather.slots();
        let count = gather.room(&slots, Pack::ByOutputs);
        let (words, room) = cx.scratch.take_both::<i64, f32>([words, count]);
        let kernels = of_group(space, group, k, &slots);
        gather.run(hands, (kernels, Pack::ByOutputs), (room, words), x, of_one)?;
    }
    if space.groups == 1 { Ok(()) } else { y.finish(cx) }
}

/// dx from k and dy.
pub(super) fn backward(
    space: &Space,
    k: &[f32],
    dy: &[f32],
    dx: Sink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let hands = (cx.pool, parallel::parts(cx, space.multiplications()));
    for group in 0..space.groups {
        let to = x_side(space, group);
        let forward = gather(space, group, to, axis::backward);
        let gather = Gather { from: forward.to, to, ..forward };
        let slots = gather.slots();
        let room = cx.scratch.take::<f32>(gather.room(&slots, Pack::ByInputs));
        let kernels = of_group(space, group, k, &slots);
        gather.run(hands, (kernels, Pack::ByInputs), (room, &mut []), dy, dx.alone())?;
    }
    Ok(())
}

/// dk from x and dy.
pub(super) fn sums(
    space: &Space,
    x: &[f32],
    dy: &[f32],
    dk: &mut [f32],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let hands = (cx.pool, parallel::parts(cx, space.multiplications()));
    if let Some(merged) = Merged::of(space) {
        let sums = sums_of(&merged.space, 0, merged.side());
        let slots = sums.slots();
        let of_x = merged.padded();
        let room = cx.scratch.take::<f32>(of_x + dk.len() + sums.room(&slots));
        let (padded, room) = room.split_at_mut(of_x);
        let (kernels, room) = room.split_at_mut(dk.len());
        merged.pad(hands, x, padded)?;
        sums.run(hands, &slots, room, [padded, dy], kernels)?;
        merged.gradients(kernels, dk);
        return Ok(());
    }
    let size = space.outputs * space.inputs * space.taps();
    for (group, dk) in dk.chunks_exact_mut(size).take(space.groups).enumerate() {
        let sums = sums_of(space, group, x_side(space, group));
        let slots = sums.slots();
        let room = cx.scratch.take::<f32>(sums.room(&slots));
        sums.run(hands, &slots, room, [x, dy], dk)?;
    }
    Ok(())
}

fn x_side(space: &Space, group: usize) -> Side {
    let first = group * space.stride + space.first;
    Side { extents: space.image, width: space.channels(), first, count: space.inputs }
}

fn y_side(space: &Space, group: usize) -> Side {
    let (width, first) = (space.features(), group * space.outputs);
    Side { extents: space.shown, width, first, count: space.outputs }
}

/// From x to y, with the classes of either direction.
fn gather(
    space: &Space,
    group: usize,
    from: Side,
    classes: fn(&graphc_ir::ops::Window, usize, [usize; 3]) -> Vec<axis::Class>,
) -> Gather {
    let classes = [0, 1].map(|dim| classes(&space.window, dim, space.along(dim)));
    let to = y_side(space, group);
    Gather { batch: space.batch, from, to, classes, kernel: space.extents }
}

fn sums_of(space: &Space, group: usize, x: Side) -> Sums {
    let meetings = [0, 1].map(|dim| meetings(&space.window, dim, space.along(dim)));
    let (y, strides) = (y_side(space, group), space.window.strides);
    Sums { batch: space.batch, x, y, meetings, strides }
}

fn of_group<'a>(
    space: &Space,
    group: usize,
    k: &'a [f32],
    slots: &'a [Option<usize>],
) -> Kernels<'a> {
    let size = space.outputs * space.inputs * space.taps();
    let data = &k[group * size..(group + 1) * size];
    Kernels { data, outputs: space.outputs, inputs: space.inputs, slots }
}
