//! Convolution and its gradients: windows are laid out as columns of a matrix (im2col; Chellapilla et al., 2006), which
//! kernels are multiplied with. Columns of one picture exist at a time for each thread.

mod kernel_grad;
mod transposed;

use graphc_ir::op::Op;
use graphc_ir::ops::Window;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::product::{Hands, Layout, Number, Write, multiply, room};
use crate::view::{View, ViewMut};

pub(crate) use kernel_grad::kernel_grad;

/// The kernel of [`Op::Convolution`].
pub(crate) fn convolution(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if let Some(op) = transposed::channels_first(op) {
        return transposed::call((convolution, &op), operands, results, cx);
    }
    match operands.first().map(|x| x.dtype) {
        Some(DType::BF16) => forward::<bf16>(op, operands, results, cx),
        Some(DType::F16) => forward::<f16>(op, operands, results, cx),
        _ => forward::<f32>(op, operands, results, cx),
    }
}

fn forward<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Convolution(op), [x, k], [y]) = (op, operands, results) else {
        return Err(KernelError::call("convolution", "takes two operands and gives one result"));
    };
    let stride = group_stride(op.groups, x.shape, x.global);
    let first = if op.groups > 1 { k.origin[1] } else { 0 };
    let taken = Taken { stride, first, count: if op.groups > 1 { k.shape[1] } else { stride } };
    let space = Space::new("convolution", op.window, taken, [x.shape, k.shape, y.shape])?;
    let (x, k, y) = (x.as_slice::<T>()?, k.as_slice::<T>()?, y.as_mut_slice::<T>()?);
    let [rows, inner, count] = [space.outputs, space.inputs * space.kernel(), space.places()];
    let extents = [rows, inner, count];
    let memory = [inner * count, room::<T, T, T>(extents.map(|extent| extent.max(1)), 1)];
    space.of_pictures(cx, (y, rows * count), memory, |[picture, group], columns, room, y| {
        if inner == 0 {
            y.fill(T::default());
            return;
        }
        let columns = space.columns(space.channels_of(x, picture, group), columns);
        let kernels = &k[group * rows * inner..];
        let (by_row, by_column) = (Layout::rows(inner), Layout::rows(count));
        let (a, b, to) = ((kernels, by_row), (columns, by_column), (y, by_column));
        multiply(extents, 1.0, a, b, to, Write::Replace, Hands::own(room));
    })
}

/// The kernel of [`Op::ConvolutionInputGrad`].
pub(crate) fn input_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if let Some(op) = transposed::channels_first(op) {
        return transposed::call((input_grad, &op), operands, results, cx);
    }
    match operands.first().map(|k| k.dtype) {
        Some(DType::BF16) => of_input::<bf16>(op, operands, results, cx),
        Some(DType::F16) => of_input::<f16>(op, operands, results, cx),
        _ => of_input::<f32>(op, operands, results, cx),
    }
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
    let shapes = [dx.shape, k.shape, dy.shape];
    let taken = Taken::all(group_stride(op.groups, dx.shape, dx.global));
    let space = Space::new("convolution_input_grad", op.window, taken, shapes)?;
    let (k, dy, dx) = (k.as_slice::<T>()?, dy.as_slice::<T>()?, dx.as_mut_slice::<T>()?);
    let [rows, inner, count] = [space.inputs * space.kernel(), space.outputs, space.places()];
    let (extents, size) = ([rows, inner, count], space.inputs * space.area());
    let of_product = room::<T, T, f32>(extents.map(|extent| extent.max(1)), 1);
    let memory = [0, rows * count + T::room(size) + of_product];
    space.of_pictures(cx, (dx, size), memory, |[picture, group], _, memory, dx| {
        if inner == 0 || count == 0 {
            dx.fill(T::default());
            return;
        }
        let (columns, rest) = memory.split_at_mut(rows * count);
        let (sums, room) = rest.split_at_mut(T::room(size));
        let kernels = (&k[group * inner * rows..], Layout::rows(rows).t());
        let gradients = (space.features_of(dy, picture, group), Layout::rows(count));
        let to = (&mut *columns, Layout::rows(count));
        multiply(extents, 1.0, kernels, gradients, to, Write::Replace, Hands::own(room));
        T::write(dx, sums, |dx| {
            dx.fill(0.0);
            space.add_columns(columns, dx);
        });
    })
}

/// Channels of one group of x. Shards have whole groups, or a part of the only one.
fn group_stride(groups: usize, x: &[usize], whole: &[usize]) -> usize {
    let channels = |shape: &[usize]| shape.get(1).copied().unwrap_or(0);
    if groups > 1 { channels(whole) / groups } else { channels(x) }
}

/// The channels of each group of x that the kernels take: `count` of `stride` from `first` on.
struct Taken {
    stride: usize,
    first: usize,
    count: usize,
}

impl Taken {
    fn all(stride: usize) -> Self {
        Self { stride, first: 0, count: stride }
    }
}

/// Extents of a convolution of shards; `outputs` and `inputs` count the channels of one group.
struct Space {
    window: Window,
    batch: usize,
    groups: usize,
    outputs: usize,
    inputs: usize,
    /// Channels of one group of x, and the first of them that the kernels take.
    stride: usize,
    first: usize,
    extents: [usize; 2],
    picture: [usize; 2],
    shown: [usize; 2],
}

impl Space {
    /// From the shapes of x, k and y.
    fn new(
        op: &'static str,
        window: Window,
        Taken { stride, first, count }: Taken,
        [x, k, y]: [&[usize]; 3],
    ) -> Result<Self, KernelError> {
        let (&[batch, channels, h, w], &[features, inputs, kh, kw], &[_, _, rows, columns]) =
            (x, k, y)
        else {
            return Err(KernelError::call(op, "operands of other rank than 4"));
        };
        let groups = channels.checked_div(stride).unwrap_or(1);
        let shown = [window.places(0, h, kh), window.places(1, w, kw)];
        if y[..2] != [batch, features]
            || shown != [Some(rows), Some(columns)]
            || groups * stride != channels
            || count != inputs
            || first.checked_add(count).is_none_or(|end| end > stride)
            || groups > 0 && !features.is_multiple_of(groups)
        {
            return Err(KernelError::call(op, format!("{x:?} and {k:?} do not meet in {y:?}")));
        }
        let outputs = features.checked_div(groups).unwrap_or(0);
        let (extents, picture, shown) = ([kh, kw], [h, w], [rows, columns]);
        Ok(Self { window, batch, groups, outputs, inputs, stride, first, extents, picture, shown })
    }

    fn kernel(&self) -> usize {
        self.extents[0] * self.extents[1]
    }

    fn area(&self) -> usize {
        self.picture[0] * self.picture[1]
    }

    fn places(&self) -> usize {
        self.shown[0] * self.shown[1]
    }

    /// The channels of a group of a picture.
    fn channels_of<'a, T>(&self, x: &'a [T], picture: usize, group: usize) -> &'a [T] {
        let start = (picture * self.groups + group) * self.stride + self.first;
        &x[start * self.area()..][..self.inputs * self.area()]
    }

    /// What a group of a picture becomes.
    fn features_of<'a, T>(&self, y: &'a [T], picture: usize, group: usize) -> &'a [T] {
        let size = self.outputs * self.places();
        &y[(picture * self.groups + group) * size..][..size]
    }

    /// Calls `work([picture, group], memory of elements, memory of f32, its part of the result)` for each, shared among
    /// threads. Results, and both memories, are of the sizes given.
    fn of_pictures<T: Number>(
        &self,
        cx: &mut KernelContext<'_>,
        (result, size): (&mut [T], usize),
        memory: [usize; 2],
        work: impl Fn([usize; 2], &mut [T], &mut [f32], &mut [T]) + Send + Sync,
    ) -> Result<(), KernelError> {
        if result.is_empty() {
            return Ok(());
        }
        let columns = self.inputs * self.kernel() * self.places();
        let units = self.batch * self.groups;
        let parts = parallel::parts(cx, units * columns * self.outputs.max(1)).min(units);
        let each = units.div_ceil(parts);
        let memory = memory.map(|count| count.max(1));
        let (elements, singles) = cx.scratch.take_both::<T, f32>(memory.map(|count| parts * count));
        let memories = elements.chunks_mut(memory[0]).zip(singles.chunks_mut(memory[1]));
        let pieces = result.chunks_mut(each * size).zip(memories).enumerate().collect();
        parallel::run(cx.pool, pieces, |(piece, (result, (elements, singles)))| {
            for (index, result) in result.chunks_mut(size).enumerate() {
                let unit = piece * each + index;
                work([unit / self.groups, unit % self.groups], elements, singles, result);
            }
            Ok(())
        })
    }

    /// Rows of one element of the kernels each, columns of one place each.
    fn columns<'a, T: Number>(&self, channels: &'a [T], memory: &'a mut [T]) -> &'a [T] {
        if self.window == Window::PLAIN && self.kernel() == 1 {
            return channels;
        }
        let count = channels.len() / self.area().max(1) * self.kernel() * self.places();
        let memory = &mut memory[..count];
        self.each_row(memory.len(), |channel, j, row, place| {
            let to = &mut memory[place..place + self.shown[1]];
            match row {
                None => to.fill(T::default()),
                Some(row) => {
                    let from = &channels[channel * self.area() + row * self.picture[1]..];
                    self.row_of(j, &from[..self.picture[1]], to);
                }
            }
        });
        memory
    }

    /// The elements that element `j` of the window meets in a row of the picture.
    fn row_of<T: Number>(&self, j: usize, from: &[T], to: &mut [T]) {
        if self.window.strides[1] == 1 {
            let (ahead, before) = (j * self.window.dilations[1], self.window.pads[1]);
            let start = before.saturating_sub(ahead).min(to.len());
            let end = (from.len() + before).saturating_sub(ahead).clamp(start, to.len());
            to[..start].fill(T::default());
            to[end..].fill(T::default());
            if start < end {
                to[start..end].copy_from_slice(&from[start + ahead - before..end + ahead - before]);
            }
            return;
        }
        for (place, to) in to.iter_mut().enumerate() {
            *to = self
                .window
                .source(1, place, j, from.len())
                .map_or(T::default(), |column| from[column]);
        }
    }

    /// Adds columns to where their elements come from.
    fn add_columns(&self, columns: &[f32], channels: &mut [f32]) {
        let count = channels.len() / self.area().max(1) * self.kernel() * self.places();
        self.each_row(count, |channel, j, row, place| {
            let Some(row) = row else { return };
            let to = &mut channels[channel * self.area() + row * self.picture[1]..];
            let to = &mut to[..self.picture[1]];
            for (column, value) in columns[place..place + self.shown[1]].iter().enumerate() {
                if let Some(column) = self.window.source(1, column, j, to.len()) {
                    to[column] += value;
                }
            }
        });
    }

    /// Calls `body(channel, column of the window, row of the picture, where its places are)` for each row of places.
    fn each_row(&self, count: usize, mut body: impl FnMut(usize, usize, Option<usize>, usize)) {
        if count == 0 {
            return;
        }
        let [rows, width] = self.shown;
        for index in 0..count / width {
            let (place, element) = (index % rows, index / rows);
            let (channel, element) = (element / self.kernel(), element % self.kernel());
            let (i, j) = (element / self.extents[1], element % self.extents[1]);
            let row = self.window.source(0, place, i, self.picture[0]);
            body(channel, j, row, index * width);
        }
    }
}
