//! The gradient of convolution's kernels: pictures are added one after the other, in f32.

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use super::{Space, Taken, group_stride, transposed};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::product::{Hands, Layout, Number, Write, multiply, room};
use crate::view::{View, ViewMut};

/// The kernel of [`Op::ConvolutionKernelGrad`].
pub(crate) fn kernel_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if let Some(op) = transposed::channels_first(op) {
        return transposed::call((kernel_grad, &op), operands, results, cx);
    }
    match operands.first().map(|x| x.dtype) {
        Some(DType::BF16) => gradient::<bf16>(op, operands, results, cx),
        Some(DType::F16) => gradient::<f16>(op, operands, results, cx),
        _ => gradient::<f32>(op, operands, results, cx),
    }
}

fn gradient<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ConvolutionKernelGrad(op), [x, dy], [dk]) = (op, operands, results) else {
        let reason = "takes two operands and gives one result";
        return Err(KernelError::call("convolution_kernel_grad", reason));
    };
    let shapes = [x.shape, dk.shape, dy.shape];
    let taken = Taken::all(group_stride(op.groups, x.shape, x.global));
    let space = Space::new("convolution_kernel_grad", op.window, taken, shapes)?;
    let (x, dy, dk) = (x.as_slice::<T>()?, dy.as_slice::<T>()?, dk.as_mut_slice::<T>()?);
    let size = space.outputs * space.inputs * space.kernel();
    if size == 0 || space.places() == 0 {
        dk.fill(T::default());
        return Ok(());
    }
    let cut = Cut::new::<T>(&space, cx);
    for (group, dk) in dk.chunks_exact_mut(size).take(space.groups).enumerate() {
        cut.of_group(&space, group, [x, dy], dk, cx)?;
    }
    Ok(())
}

/// How the channels of a group are cut.
struct Cut {
    /// Channels of a chunk, which are multiplied at a time: as many as follow from the shape alone.
    chunk: usize,
    /// Threads that share them.
    parts: usize,
    /// Elements of a chunk's columns, and `f32` of what a product works in.
    memory: [usize; 2],
}

/// What one thread computes, and where it works.
struct Piece<'a, T> {
    columns: &'a mut [T],
    room: &'a mut [f32],
    /// Chunks by their number, and memory for their sums.
    chunks: Vec<(usize, &'a mut [f32])>,
}

impl Cut {
    fn new<T: Number>(space: &Space, cx: &KernelContext<'_>) -> Self {
        // What is of half precision is packed with as many rows of dy each time: there are fewer and larger chunks.
        let columns: usize = if T::DTYPE == DType::F32 { 64 } else { 256 };
        let chunk = columns.div_ceil(space.kernel()).min(space.inputs);
        let chunks = space.inputs.div_ceil(chunk);
        let [rows, inner, width] = [space.outputs, space.places(), chunk * space.kernel()];
        let multiplications = space.batch * rows * space.inputs * space.kernel() * inner;
        let parts = parallel::parts(cx, multiplications).min(chunks);
        let memory = [width * inner, room::<T, T, f32>([rows, inner, width], 1)];
        Self { chunk, parts, memory }
    }

    fn of_group<T: Number>(
        &self,
        space: &Space,
        group: usize,
        operands: [&[T]; 2],
        dk: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let (rows, count) = (space.outputs, space.inputs * space.kernel());
        let [columns, room] = self.memory.map(|count| count * self.parts);
        let (columns, singles) = cx.scratch.take_both::<T, f32>([columns, room + dk.len()]);
        let (sums, mut room) = singles.split_at_mut(dk.len());
        let mut pieces: Vec<Piece<'_, T>> = columns
            .chunks_exact_mut(self.memory[0])
            .map(|columns| {
                let room = room.split_off_mut(..self.memory[1]).unwrap_or_default();
                Piece { columns, room, chunks: Vec::new() }
            })
            .collect();
        let each = rows * self.chunk * space.kernel();
        for (index, sums) in sums.chunks_mut(each).enumerate() {
            pieces[index % self.parts].chunks.push((index, sums));
        }
        parallel::run(cx.pool, pieces, |piece| {
            for (index, sums) in piece.chunks {
                let start = index * self.chunk;
                let channels = start..(start + self.chunk).min(space.inputs);
                space.kernels_of(group, channels, operands, piece.columns, piece.room, sums);
            }
            Ok(())
        })?;
        for (index, sums) in sums.chunks(each).enumerate() {
            let width = sums.len() / rows;
            let start = index * self.chunk * space.kernel();
            for (sums, dk) in sums.chunks_exact(width).zip(dk.chunks_exact_mut(count)) {
                T::narrow(sums, &mut dk[start..start + width]);
            }
        }
        Ok(())
    }
}

impl Space {
    /// The sum over all pictures of the gradients of a range of channels of one group's kernels.
    fn kernels_of<T: Number>(
        &self,
        group: usize,
        channels: Range<usize>,
        [x, dy]: [&[T]; 2],
        columns: &mut [T],
        room: &mut [f32],
        sums: &mut [f32],
    ) {
        let (width, inner) = (channels.len() * self.kernel(), self.places());
        sums.fill(0.0);
        for picture in 0..self.batch {
            let of_group = self.channels_of(x, picture, group);
            let of_range = &of_group[channels.start * self.area()..channels.end * self.area()];
            let columns = (self.columns(of_range, columns), Layout::rows(inner).t());
            let gradients = (self.features_of(dy, picture, group), Layout::rows(inner));
            let to = (&mut *sums, Layout::rows(width));
            let extents = [self.outputs, inner, width];
            multiply(extents, 1.0, gradients, columns, to, Write::Add, Hands::own(room));
        }
    }
}
