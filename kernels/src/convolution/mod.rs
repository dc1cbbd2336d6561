//! Convolution and its gradients of pictures with their channels last. There are three ways:
//!
//! - [`direct`] and [`outer`]: `f32` by AVX-512, from the pictures as they lie;
//! - [`depthwise`]: groups of one channel each, channels as vectors;
//! - [`columns`]: all else. Windows are laid out as rows of a matrix (im2col; Chellapilla et al., 2006), which is multiplied.
//!
//! Pictures whose channels come first are brought to that order and back.

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
mod space;

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::product::{Data, DataMut, Number};
use crate::view::{View, ViewMut};
use space::{Space, Taken, transposed};

/// The kernel of [`Op::Convolution`].
pub(crate) fn convolution(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|x| x.dtype) {
        Some(DType::BF16) => of_forward::<bf16>(op, operands, results, cx),
        Some(DType::F16) => of_forward::<f16>(op, operands, results, cx),
        _ => of_forward::<f32>(op, operands, results, cx),
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
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Convolution(op), [x, k], [y]) = (op, operands, results) else {
        return Err(KernelError::call("convolution", "takes two operands and gives one result"));
    };
    let channels = if op.channels_last { 3 } else { 1 };
    let stride = group_stride(op.groups, channels, [x.shape, x.global]);
    let first = if op.groups > 1 { k.origin[1] } else { 0 };
    let taken = Taken { stride, first, count: if op.groups > 1 { k.shape[1] } else { stride } };
    let shapes = [x.shape, k.shape, y.shape];
    let space = Space::new("convolution", op.window, op.channels_last, taken, shapes)?;
    let (x, k, y) = (x.as_slice::<T>()?, k.as_slice::<T>()?, y.as_mut_slice::<T>()?);
    if op.channels_last {
        return forward(&space, x, k, y, cx);
    }
    let (outer, inner) = cx.scratch.nested();
    let (from, to) = outer.take::<T, T>([x.len(), y.len()]);
    transposed(&space, x, from, [space.channels(), space.area()]);
    forward(&space, from, k, to, &mut KernelContext { scratch: inner, ..*cx })?;
    transposed(&space, to, y, [space.places(), space.features()]);
    Ok(())
}

fn of_input<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ConvolutionInputGrad(op), [k, dy], [dx]) = (op, operands, results) else {
        let reason = "takes two operands and gives one result";
        return Err(KernelError::call("convolution_input_grad", reason));
    };
    let channels = if op.channels_last { 3 } else { 1 };
    let shapes = [dx.shape, k.shape, dy.shape];
    let taken = Taken::all(group_stride(op.groups, channels, [dx.shape, dx.global]));
    let space = Space::new("convolution_input_grad", op.window, op.channels_last, taken, shapes)?;
    let (k, dy, dx) = (k.as_slice::<T>()?, dy.as_slice::<T>()?, dx.as_mut_slice::<T>()?);
    if op.channels_last {
        return backward(&space, k, dy, dx, cx);
    }
    let (outer, inner) = cx.scratch.nested();
    let (from, to) = outer.take::<T, T>([dy.len(), dx.len()]);
    transposed(&space, dy, from, [space.features(), space.places()]);
    backward(&space, k, from, to, &mut KernelContext { scratch: inner, ..*cx })?;
    transposed(&space, to, dx, [space.area(), space.channels()]);
    Ok(())
}

fn of_kernels<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ConvolutionKernelGrad(op), [x, dy], [dk]) = (op, operands, results) else {
        let reason = "takes two operands and gives one result";
        return Err(KernelError::call("convolution_kernel_grad", reason));
    };
    let channels = if op.channels_last { 3 } else { 1 };
    let shapes = [x.shape, dk.shape, dy.shape];
    let taken = Taken::all(group_stride(op.groups, channels, [x.shape, x.global]));
    let space = Space::new("convolution_kernel_grad", op.window, op.channels_last, taken, shapes)?;
    let (x, dy, dk) = (x.as_slice::<T>()?, dy.as_slice::<T>()?, dk.as_mut_slice::<T>()?);
    if op.channels_last {
        return sums(&space, x, dy, dk, cx);
    }
    let (outer, inner) = cx.scratch.nested();
    let (of_x, of_dy) = outer.take::<T, T>([x.len(), dy.len()]);
    transposed(&space, x, of_x, [space.channels(), space.area()]);
    transposed(&space, dy, of_dy, [space.features(), space.places()]);
    sums(&space, of_x, of_dy, dk, &mut KernelContext { scratch: inner, ..*cx })
}

/// Adds the sums of slabs of pictures, `size` numbers of each, up in the place of the first: in an order that does not depend on how
/// many threads made them.
fn added_up(slabs: &mut [f32], size: usize) -> &mut [f32] {
    let (sums, others) = slabs.split_at_mut(size);
    for slab in others.chunks_exact(size) {
        sums.iter_mut().zip(slab).for_each(|(sum, other)| *sum += other);
    }
    sums
}

/// Channels of one group of x. Shards have whole groups, or a part of the only one.
fn group_stride(groups: usize, dim: usize, [shape, whole]: [&[usize]; 2]) -> usize {
    let channels = |shape: &[usize]| shape.get(dim).copied().unwrap_or(0);
    if groups > 1 { channels(whole) / groups } else { channels(shape) }
}

/// Of pictures with their channels last.
fn forward<T: Number>(
    space: &Space,
    x: &[T],
    k: &[T],
    y: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if y.is_empty() || space.inputs * space.taps() == 0 {
        y.fill(T::default());
        return Ok(());
    }
    if space.is_depthwise() {
        return depthwise::forward(space, x, k, y, cx);
    }
    #[cfg(target_arch = "x86_64")]
    if let (Data::Single(x), Data::Single(k), true) = (T::data(x), T::data(k), space.is_direct())
        && let DataMut::Single(y) = T::data_mut(y)
    {
        return direct::forward(space, x, k, y, cx);
    }
    columns::forward(space, x, k, y, cx)
}

fn backward<T: Number>(
    space: &Space,
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
        return depthwise::backward(space, k, dy, dx, cx);
    }
    #[cfg(target_arch = "x86_64")]
    if let (Data::Single(k), Data::Single(dy), true) = (T::data(k), T::data(dy), space.is_direct())
        && let DataMut::Single(dx) = T::data_mut(dx)
    {
        return direct::backward(space, k, dy, dx, cx);
    }
    columns::backward(space, k, dy, dx, cx)
}

fn sums<T: Number>(
    space: &Space,
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
        return depthwise::sums(space, x, dy, dk, cx);
    }
    #[cfg(target_arch = "x86_64")]
    if let (Data::Single(x), Data::Single(dy), true) = (T::data(x), T::data(dy), space.is_direct())
        && let DataMut::Single(dk) = T::data_mut(dk)
    {
        return direct::sums(space, x, dy, dk, cx);
    }
    columns::sums(space, x, dy, dk, cx)
}
