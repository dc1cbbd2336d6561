//! Convolution of `f32` without columns, by AVX-512: one group after the other.

use super::axis::{self, find_meetings};
use super::gather::{ConvolutionGather, ImageSide, KernelPacking};
use super::merged::MergedConvolution;
use super::outer::KernelSums;
use super::pack::Kernels;
use super::space::ConvolutionSpace;
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::sink::ResultSink;

/// y from x and k.
pub(super) fn convolve_images(
    space: &ConvolutionSpace,
    x: &[f32],
    k: &[f32],
    y: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let hands = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    let words = ConvolutionGather::scratch_words(hands.1, y);
    if let Some(merged) = MergedConvolution::from_space(space) {
        let gather = build_gather(&merged.space, 0, merged.side(), axis::classify_places);
        let slots = gather.slots();
        let [of_x, of_k] = [merged.padded_len(), k.len()];
        let count = of_x + of_k + gather.scratch_len(&slots, KernelPacking::ByOutputs);
        let (words, room) = cx.scratch.take_both::<i64, f32>([words, count]);
        let (padded, room) = room.split_at_mut(of_x);
        let (kernels, room) = room.split_at_mut(of_k);
        merged.pad(hands, x, padded)?;
        merged.reorder_kernels(k, kernels);
        let kernels = of_group(&merged.space, 0, kernels, &slots);
        return gather.compute_result(
            hands,
            (kernels, KernelPacking::ByOutputs),
            (room, words),
            padded,
            y,
        );
    }
    // What follows needs the channels of all groups.
    let of_one = if space.groups == 1 { y } else { y.without_followers() };
    for group in 0..space.groups {
        let gather = build_gather(space, group, x_side(space, group), axis::classify_places);
        let slots = gather.slots();
        let count = gather.scratch_len(&slots, KernelPacking::ByOutputs);
        let (words, room) = cx.scratch.take_both::<i64, f32>([words, count]);
        let kernels = of_group(space, group, k, &slots);
        gather.compute_result(
            hands,
            (kernels, KernelPacking::ByOutputs),
            (room, words),
            x,
            of_one,
        )?;
    }
    if space.groups == 1 { Ok(()) } else { y.finish(cx) }
}

/// dx from k and dy.
pub(super) fn compute_input_grad(
    space: &ConvolutionSpace,
    k: &[f32],
    dy: &[f32],
    dx: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let hands = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    for group in 0..space.groups {
        let to = x_side(space, group);
        let forward = build_gather(space, group, to, axis::classify_rows);
        let gather = ConvolutionGather { from: forward.to, to, ..forward };
        let slots = gather.slots();
        let room = cx.scratch.take::<f32>(gather.scratch_len(&slots, KernelPacking::ByInputs));
        let kernels = of_group(space, group, k, &slots);
        gather.compute_result(
            hands,
            (kernels, KernelPacking::ByInputs),
            (room, &mut []),
            dy,
            dx.without_followers(),
        )?;
    }
    Ok(())
}

/// dk from x and dy.
pub(super) fn compute_kernel_grad(
    space: &ConvolutionSpace,
    x: &[f32],
    dy: &[f32],
    dk: &mut [f32],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let hands = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    if let Some(merged) = MergedConvolution::from_space(space) {
        let sums = sums_of(&merged.space, 0, merged.side());
        let slots = sums.slots();
        let of_x = merged.padded_len();
        let room = cx.scratch.take::<f32>(of_x + dk.len() + sums.scratch_len(&slots));
        let (padded, room) = room.split_at_mut(of_x);
        let (kernels, room) = room.split_at_mut(dk.len());
        merged.pad(hands, x, padded)?;
        sums.compute_kernels(hands, &slots, room, [padded, dy], kernels)?;
        merged.restore_gradients(kernels, dk);
        return Ok(());
    }
    let size = space.outputs * space.inputs * space.taps();
    for (group, dk) in dk.chunks_exact_mut(size).take(space.groups).enumerate() {
        let sums = sums_of(space, group, x_side(space, group));
        let slots = sums.slots();
        let room = cx.scratch.take::<f32>(sums.scratch_len(&slots));
        sums.compute_kernels(hands, &slots, room, [x, dy], dk)?;
    }
    Ok(())
}

fn x_side(space: &ConvolutionSpace, group: usize) -> ImageSide {
    let first = group * space.stride + space.first;
    ImageSide { extents: space.image, width: space.input_channels(), first, count: space.inputs }
}

fn y_side(space: &ConvolutionSpace, group: usize) -> ImageSide {
    let (width, first) = (space.output_channels(), group * space.outputs);
    ImageSide { extents: space.shown, width, first, count: space.outputs }
}

/// Prepares the gathering from x to y, with the classes of either direction.
fn build_gather(
    space: &ConvolutionSpace,
    group: usize,
    from: ImageSide,
    classes: fn(&graphc_ir::ops::Window, usize, [usize; 3]) -> Vec<axis::PlaceClass>,
) -> ConvolutionGather {
    let classes = [0, 1].map(|dim| classes(&space.window, dim, space.extents_along(dim)));
    let to = y_side(space, group);
    ConvolutionGather { batch: space.batch, from, to, classes, kernel: space.extents }
}

fn sums_of(space: &ConvolutionSpace, group: usize, x: ImageSide) -> KernelSums {
    let meetings = [0, 1].map(|dim| find_meetings(&space.window, dim, space.extents_along(dim)));
    let (y, strides) = (y_side(space, group), space.window.strides);
    KernelSums { batch: space.batch, x, y, meetings, strides }
}

fn of_group<'a>(
    space: &ConvolutionSpace,
    group: usize,
    k: &'a [f32],
    slots: &'a [Option<usize>],
) -> Kernels<'a> {
    let size = space.outputs * space.inputs * space.taps();
    let data = &k[group * size..(group + 1) * size];
    Kernels { data, outputs: space.outputs, inputs: space.inputs, slots }
}
