//! Convolution and its gradients of images with their channels last. There are three ways:
//!
//! - [`direct`] and [`outer`]: `f32` by AVX-512, from the images as they lie, without a matrix of columns;
//! - [`depthwise`]: groups of one channel each, with channels as the lanes of vectors;
//! - [`columns`]: all else, and half precision. Windows are laid out as rows of a matrix (im2col; Chellapilla et al., 2006),
//!   which is multiplied.
//!
//! Images whose channels come first are brought to that order and back. The pass `channels_last` of the compiler avoids that.

mod axis;
mod columns;
mod depthwise;
#[cfg(target_arch = "x86_64")]
mod direct;
#[cfg(target_arch = "x86_64")]
mod gather;
#[cfg(target_arch = "x86_64")]
mod merged;
#[cfg(target_arch = "x86_64")]
mod outer;
#[cfg(target_arch = "x86_64")]
mod pack;
pub(crate) mod space;

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
#[cfg(target_arch = "x86_64")]
use crate::product::{Data, DataMut};
use crate::product::{Hands, Layout, Number, Write, multiply, room, threads_for};
use crate::sink::ResultSink;
use crate::view::{OutputParts, View, ViewMut};
use space::{ConvolutionSpace, TakenChannels, transpose_images};

/// The kernel of [`Op::Convolution`].
pub(crate) fn convolution(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let [y] = results else { return Err(operands_and_results("convolution")) };
    to_sink(op, operands, (y.shape, ResultSink::from_parts(y.parts())), cx)
}

/// Computes [`Op::Convolution`] to a result of a given shape, of which other kernels read each part as soon as it has been written.
pub(crate) fn to_sink(
    op: &Op,
    operands: &[View<'_>],
    y: (&[usize], ResultSink<'_>),
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|x| x.dtype) {
        Some(DType::BF16) => of_forward::<bf16>(op, operands, y, cx),
        Some(DType::F16) => of_forward::<f16>(op, operands, y, cx),
        _ => of_forward::<f32>(op, operands, y, cx),
    }
}

/// The kernel of [`Op::ConvolutionInputGrad`].
pub(crate) fn input_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|k| k.dtype) {
        Some(DType::BF16) => of_input::<bf16>(op, operands, results, cx),
        Some(DType::F16) => of_input::<f16>(op, operands, results, cx),
        _ => of_input::<f32>(op, operands, results, cx),
    }
}

/// The kernel of [`Op::ConvolutionKernelGrad`].
pub(crate) fn kernel_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|x| x.dtype) {
        Some(DType::BF16) => of_kernels::<bf16>(op, operands, results, cx),
        Some(DType::F16) => of_kernels::<f16>(op, operands, results, cx),
        _ => of_kernels::<f32>(op, operands, results, cx),
    }
}

fn of_forward<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    (shape, y): (&[usize], ResultSink<'_>),
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Convolution(op), [x, k]) = (op, operands) else {
        return Err(operands_and_results("convolution"));
    };
    let channels = if op.channels_last { 3 } else { 1 };
    let stride = group_stride(op.groups, channels, [x.shape, x.global]);
    let first = if op.groups > 1 { k.origin[1] } else { 0 };
    let taken =
        TakenChannels { stride, first, count: if op.groups > 1 { k.shape[1] } else { stride } };
    let shapes = [x.shape, k.shape, shape];
    let space = ConvolutionSpace::new("convolution", op.window, op.channels_last, taken, shapes)?;
    let (x, k) = (x.as_slice::<T>()?, k.as_slice::<T>()?);
    if op.channels_last {
        return convolve_images(&space, x, k, y, cx);
    }
    let (outer, inner) = cx.scratch.nested();
    let (from, to) = outer.take::<T, T>([x.len(), y.len()]);
    transpose_images(&space, x, from, [space.input_channels(), space.input_places()]);
    let made = ResultSink::from_parts(OutputParts::from_slice(T::DTYPE, to));
    convolve_images(&space, from, k, made, &mut KernelContext { scratch: inner, ..*cx })?;
    // SAFETY: nobody else writes the result.
    let whole = unsafe { y.part(0..y.len()) }?;
    transpose_images(&space, to, whole, [space.output_places(), space.output_channels()]);
    y.finish(cx)
}

fn of_input<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ConvolutionInputGrad(op), [k, dy], [dx]) = (op, operands, results) else {
        return Err(operands_and_results("convolution_input_grad"));
    };
    let channels = if op.channels_last { 3 } else { 1 };
    let shapes = [dx.shape, k.shape, dy.shape];
    let taken =
        TakenChannels::all_of_group(group_stride(op.groups, channels, [dx.shape, dx.global]));
    let space = ConvolutionSpace::new(
        "convolution_input_grad",
        op.window,
        op.channels_last,
        taken,
        shapes,
    )?;
    let (k, dy, dx) = (k.as_slice::<T>()?, dy.as_slice::<T>()?, dx.as_mut_slice::<T>()?);
    if op.channels_last {
        return compute_input_grad(&space, k, dy, dx, cx);
    }
    let (outer, inner) = cx.scratch.nested();
    let (from, to) = outer.take::<T, T>([dy.len(), dx.len()]);
    transpose_images(&space, dy, from, [space.output_channels(), space.output_places()]);
    compute_input_grad(&space, k, from, to, &mut KernelContext { scratch: inner, ..*cx })?;
    transpose_images(&space, to, dx, [space.input_places(), space.input_channels()]);
    Ok(())
}

fn of_kernels<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ConvolutionKernelGrad(op), [x, dy], [dk]) = (op, operands, results) else {
        return Err(operands_and_results("convolution_kernel_grad"));
    };
    let channels = if op.channels_last { 3 } else { 1 };
    let shapes = [x.shape, dk.shape, dy.shape];
    let taken = TakenChannels::all_of_group(group_stride(op.groups, channels, [x.shape, x.global]));
    let space = ConvolutionSpace::new(
        "convolution_kernel_grad",
        op.window,
        op.channels_last,
        taken,
        shapes,
    )?;
    let (x, dy, dk) = (x.as_slice::<T>()?, dy.as_slice::<T>()?, dk.as_mut_slice::<T>()?);
    if op.channels_last {
        return compute_kernel_grad(&space, x, dy, dk, cx);
    }
    let (outer, inner) = cx.scratch.nested();
    let (of_x, of_dy) = outer.take::<T, T>([x.len(), dy.len()]);
    transpose_images(&space, x, of_x, [space.input_channels(), space.input_places()]);
    transpose_images(&space, dy, of_dy, [space.output_channels(), space.output_places()]);
    compute_kernel_grad(&space, of_x, of_dy, dk, &mut KernelContext { scratch: inner, ..*cx })
}

fn operands_and_results(op: &'static str) -> KernelError {
    KernelError::bad_call(op, "takes two operands and gives one result")
}

/// Adds the sums of slabs of images, `size` numbers of each, up in the place of the first: in an order that does not depend on how
/// many threads made them.
fn added_up(slabs: &mut [f32], size: usize) -> &mut [f32] {
    let (sums, others) = slabs.split_at_mut(size);
    for slab in others.chunks_exact(size) {
        sums.iter_mut().zip(slab).for_each(|(sum, other)| *sum += other);
    }
    sums
}

/// Channels of one group of x. Shards have whole groups, or a part of one.
pub(crate) fn group_stride(groups: usize, dim: usize, [shape, whole]: [&[usize]; 2]) -> usize {
    let channels = |shape: &[usize]| shape.get(dim).copied().unwrap_or(0);
    let (own, one) = (channels(shape), channels(whole) / groups.max(1));
    if groups > 1 && (own == 0 || own > one) { one } else { own }
}

/// Convolves images with their channels last.
fn convolve_images<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    k: &[T],
    y: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let nothing = y.len() == 0 || space.inputs * space.taps() == 0;
    if !nothing && space.is_product() {
        return convolve_as_product(space, x, k, y, cx);
    }
    if !nothing && space.is_depthwise() {
        return depthwise::convolve_images(space, x, k, y, cx);
    }
    #[cfg(target_arch = "x86_64")]
    if let (Data::Single(x), Data::Single(k), true) = (T::data(x), T::data(k), space.is_direct())
        && !nothing
    {
        return direct::convolve_images(space, x, k, y, cx);
    }
    // SAFETY: nobody else writes the result.
    let whole = unsafe { y.part::<T>(0..y.len()) }?;
    if nothing {
        whole.fill(T::default());
    } else {
        columns::convolve_images(space, x, k, whole, cx)?;
    }
    y.finish(cx)
}

/// The product of a convolution that [`ConvolutionSpace::is_product`].
fn convolve_as_product<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    k: &[T],
    y: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let extents = [space.batch, space.inputs, space.outputs];
    let threads = threads_for(cx, extents.iter().product());
    let room = cx.scratch.take(room::<T, T, T>(extents, threads));
    let factors = [Layout::rows(space.inputs), Layout::rows(space.inputs).t()];
    // SAFETY: nobody else writes the result.
    let whole = unsafe { y.part::<T>(0..y.len()) }?;
    let to = (whole, Layout::rows(space.outputs));
    let hands = Hands { pool: cx.pool, threads, room };
    multiply(extents, 1.0, (x, factors[0]), (k, factors[1]), to, Write::Replace, hands);
    y.finish(cx)
}

fn compute_input_grad<T: Number>(
    space: &ConvolutionSpace,
    k: &[T],
    dy: &[T],
    dx: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if dx.is_empty() || dy.is_empty() {
        dx.fill(T::default());
        return Ok(());
    }
    if space.is_depthwise() {
        return depthwise::compute_input_grad(
            space,
            k,
            dy,
            ResultSink::from_parts(OutputParts::from_slice(T::DTYPE, dx)),
            cx,
        );
    }
    #[cfg(target_arch = "x86_64")]
    if let (Data::Single(k), Data::Single(dy), true) = (T::data(k), T::data(dy), space.is_direct())
    {
        return direct::compute_input_grad(
            space,
            k,
            dy,
            ResultSink::from_parts(OutputParts::from_slice(T::DTYPE, dx)),
            cx,
        );
    }
    columns::compute_input_grad(space, k, dy, dx, cx)
}

fn compute_kernel_grad<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    dy: &[T],
    dk: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if dk.is_empty() || x.is_empty() || dy.is_empty() {
        dk.fill(T::default());
        return Ok(());
    }
    if space.is_depthwise() {
        return depthwise::compute_kernel_grad(space, x, dy, dk, cx);
    }
    #[cfg(target_arch = "x86_64")]
    if let (Data::Single(x), Data::Single(dy), true) = (T::data(x), T::data(dy), space.is_direct())
        && let DataMut::Single(dk) = T::data_mut(dk)
    {
        return direct::compute_kernel_grad(space, x, dy, dk, cx);
    }
    columns::compute_kernel_grad(space, x, dy, dk, cx)
}
