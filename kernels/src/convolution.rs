//! Convolution and its gradients: windows are laid out as columns of a matrix (im2col; Chellapilla et al., 2006), which
//! kernels are multiplied with. Columns of one picture exist at a time for each thread.

use std::ops::Range;

use gemm::Parallelism;
use graphc_ir::op::Op;
use graphc_ir::ops::Window;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::product::{Layout, Write, multiply};
use crate::view::{View, ViewMut};

/// Columns of the gradient of kernels that one thread computes at a time.
const CHUNK: usize = 64;

/// The kernel of [`Op::Convolution`].
pub(crate) fn convolution(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Convolution(op), [x, k], [y]) = (op, operands, results) else {
        return Err(KernelError::call("convolution", "takes two operands and gives one result"));
    };
    let mut space = Space::new("convolution", op.window, op.groups, [x.shape, k.shape, y.shape])?;
    if op.groups > 1 {
        space.of_groups(x, k, op.groups)?;
    }
    let (x, k, y) = (x.as_slice::<f32>()?, k.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
    space.of_pictures(cx, y, space.outputs * space.places(), |[picture, group], columns, y| {
        let [rows, inner, count] = [space.outputs, space.inputs * space.kernel(), space.places()];
        if inner == 0 {
            y.fill(0.0);
            return;
        }
        let columns = space.columns(space.channels_of(x, picture, group), columns);
        let kernels = &k[group * rows * inner..];
        let (by_row, by_column) = (Layout::rows(inner), Layout::rows(count));
        let extents = [rows, inner, count];
        let (a, b, to) = ((kernels, by_row), (columns, by_column), (y, by_column));
        multiply(extents, 1.0, a, b, to, Write::Replace, Parallelism::None);
    })
}

/// The kernel of [`Op::ConvolutionInputGrad`].
pub(crate) fn input_grad(
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
    let space = Space::new("convolution_input_grad", op.window, op.groups, shapes)?;
    let (k, dy, dx) = (k.as_slice::<f32>()?, dy.as_slice::<f32>()?, dx.as_mut_slice::<f32>()?);
    space.of_pictures(cx, dx, space.inputs * space.area(), |[picture, group], columns, dx| {
        let [rows, inner, count] = [space.inputs * space.kernel(), space.outputs, space.places()];
        dx.fill(0.0);
        if inner == 0 || count == 0 {
            return;
        }
        let kernels = (&k[group * inner * rows..], Layout::rows(rows).t());
        let gradients = space.features_of(dy, picture, group);
        let by_column = Layout::rows(count);
        let (b, to) = ((gradients, by_column), (&mut *columns, by_column));
        multiply([rows, inner, count], 1.0, kernels, b, to, Write::Replace, Parallelism::None);
        space.add_columns(columns, dx);
    })
}

/// The kernel of [`Op::ConvolutionKernelGrad`]: pictures are added one after the other.
pub(crate) fn kernel_grad(
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
    let space = Space::new("convolution_kernel_grad", op.window, op.groups, shapes)?;
    let (x, dy, dk) = (x.as_slice::<f32>()?, dy.as_slice::<f32>()?, dk.as_mut_slice::<f32>()?);
    dk.fill(0.0);
    let [rows, count, inner] = [space.outputs, space.inputs * space.kernel(), space.places()];
    if rows * count == 0 || inner == 0 {
        return Ok(());
    }
    // Work is shared by channels, in chunks that follow from the shape alone.
    let chunk = CHUNK.div_ceil(space.kernel()).min(space.inputs);
    let (own, each) = (chunk * space.kernel() * inner, chunk * space.kernel() * (inner + rows));
    let chunks = space.inputs.div_ceil(chunk);
    let worthwhile = parallel::parts(cx, space.batch * rows * count * inner) > 1;
    let pool = cx.pool.filter(|_| worthwhile);
    let scratch = cx.scratch.take::<f32>(chunks * each);
    for group in 0..space.groups {
        let pieces = scratch.chunks_mut(each).enumerate().collect();
        parallel::run(pool, pieces, |(piece, memory): (usize, &mut [f32])| {
            let (columns, sums) = memory.split_at_mut(own);
            let channels = piece * chunk..(piece * chunk + chunk).min(space.inputs);
            space.kernels_of([group, rows], channels, [x, dy], columns, sums);
            Ok(())
        })?;
        let of_group = &mut dk[group * rows * count..(group + 1) * rows * count];
        for (piece, memory) in scratch.chunks(each).enumerate() {
            let start = piece * chunk * space.kernel();
            let width = (count - start).min(chunk * space.kernel());
            for row in 0..rows {
                let sums = &memory[own + row * width..][..width];
                of_group[row * count + start..][..width].copy_from_slice(sums);
            }
        }
    }
    Ok(())
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
    /// From the shapes of x, k and y; the groups of shards are those of the whole, or a part of them.
    fn new(
        op: &'static str,
        window: Window,
        groups: usize,
        [x, k, y]: [&[usize]; 3],
    ) -> Result<Self, KernelError> {
        let (&[batch, channels, h, w], &[features, inputs, kh, kw], &[_, _, rows, columns]) =
            (x, k, y)
        else {
            return Err(KernelError::call(op, "operands of other rank than 4"));
        };
        // Where groups are split, the shard has fewer; where channels of one group are, k has fewer.
        let own = if groups == 1 { 1 } else { channels / inputs.max(1) };
        let shown = [window.places(0, h, kh), window.places(1, w, kw)];
        if y[..2] != [batch, features]
            || shown != [Some(rows), Some(columns)]
            || channels != own * inputs && groups == 1
            || own > 0 && !features.is_multiple_of(own)
        {
            return Err(KernelError::call(op, format!("{x:?} and {k:?} do not meet in {y:?}")));
        }
        let outputs = features.checked_div(own).unwrap_or(0);
        let (stride, first) = (inputs, 0);
        let (extents, picture, shown) = ([kh, kw], [h, w], [rows, columns]);
        Ok(Self {
            window,
            batch,
            groups: own,
            outputs,
            inputs,
            stride,
            first,
            extents,
            picture,
            shown,
        })
    }

    /// Where x has all channels of a group, and k perhaps a part of them.
    fn of_groups(&mut self, x: &View<'_>, k: &View<'_>, groups: usize) -> Result<(), KernelError> {
        self.stride = x.global[1] / groups;
        self.groups = x.shape[1] / self.stride.max(1);
        self.first = k.origin[1];
        if self.groups * self.stride != x.shape[1]
            || self.first + self.inputs > self.stride
            || !k.shape[0].is_multiple_of(self.groups.max(1))
        {
            return Err(KernelError::call("convolution", "groups of another rank"));
        }
        self.outputs = k.shape[0] / self.groups.max(1);
        Ok(())
    }

    /// The sum over all pictures of the gradients of a range of channels of one group's kernels, `rows` of them.
    fn kernels_of(
        &self,
        [group, rows]: [usize; 2],
        channels: Range<usize>,
        [x, dy]: [&[f32]; 2],
        columns: &mut [f32],
        sums: &mut [f32],
    ) {
        let (width, inner) = (channels.len() * self.kernel(), self.places());
        let sums = &mut sums[..rows * width];
        sums.fill(0.0);
        for picture in 0..self.batch {
            let of_group = self.channels_of(x, picture, group);
            let of_range = &of_group[channels.start * self.area()..channels.end * self.area()];
            let columns = (self.columns(of_range, columns), Layout::rows(inner).t());
            let gradients = (self.features_of(dy, picture, group), Layout::rows(inner));
            let to = (&mut *sums, Layout::rows(width));
            let extents = [rows, inner, width];
            multiply(extents, 1.0, gradients, columns, to, Write::Add, Parallelism::None);
        }
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
    fn channels_of<'a>(&self, x: &'a [f32], picture: usize, group: usize) -> &'a [f32] {
        let start = (picture * self.groups + group) * self.stride + self.first;
        &x[start * self.area()..][..self.inputs * self.area()]
    }

    /// What a group of a picture becomes.
    fn features_of<'a>(&self, y: &'a [f32], picture: usize, group: usize) -> &'a [f32] {
        let size = self.outputs * self.places();
        &y[(picture * self.groups + group) * size..][..size]
    }

    /// Calls `work([picture, group], memory for columns, its part of the result)` for each, shared among threads.
    fn of_pictures(
        &self,
        cx: &mut KernelContext<'_>,
        result: &mut [f32],
        size: usize,
        work: impl Fn([usize; 2], &mut [f32], &mut [f32]) + Send + Sync,
    ) -> Result<(), KernelError> {
        if result.is_empty() {
            return Ok(());
        }
        let columns = self.inputs * self.kernel() * self.places();
        let units = self.batch * self.groups;
        let parts = parallel::parts(cx, units * columns * self.outputs.max(1)).min(units);
        let each = units.div_ceil(parts);
        let scratch = cx.scratch.take::<f32>(parts * columns.max(1));
        let pieces = result.chunks_mut(each * size).zip(scratch.chunks_mut(columns.max(1)));
        parallel::run(cx.pool, pieces.enumerate().collect(), |(piece, (result, columns))| {
            for (index, result) in result.chunks_mut(size).enumerate() {
                let unit = piece * each + index;
                work([unit / self.groups, unit % self.groups], columns, result);
            }
            Ok(())
        })
    }

    /// Rows of one element of the kernels each, columns of one place each.
    fn columns<'a>(&self, channels: &'a [f32], memory: &'a mut [f32]) -> &'a [f32] {
        if self.window == Window::PLAIN && self.kernel() == 1 {
            return channels;
        }
        let count = channels.len() / self.area().max(1) * self.kernel() * self.places();
        let memory = &mut memory[..count];
        self.each_row(memory.len(), |channel, j, row, place| {
            let to = &mut memory[place..place + self.shown[1]];
            match row {
                None => to.fill(0.0),
                Some(row) => {
                    let from = &channels[channel * self.area() + row * self.picture[1]..];
                    self.row_of(j, &from[..self.picture[1]], to);
                }
            }
        });
        memory
    }

    /// The elements that element `j` of the window meets in a row of the picture.
    fn row_of(&self, j: usize, from: &[f32], to: &mut [f32]) {
        if self.window.strides[1] == 1 {
            let (ahead, before) = (j * self.window.dilations[1], self.window.pads[1]);
            let start = before.saturating_sub(ahead).min(to.len());
            let end = (from.len() + before).saturating_sub(ahead).clamp(start, to.len());
            to[..start].fill(0.0);
            to[end..].fill(0.0);
            if start < end {
                to[start..end].copy_from_slice(&from[start + ahead - before..end + ahead - before]);
            }
            return;
        }
        for (place, to) in to.iter_mut().enumerate() {
            *to = self.window.source(1, place, j, from.len()).map_or(0.0, |column| from[column]);
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
