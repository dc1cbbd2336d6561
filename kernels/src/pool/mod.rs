//! Pooling of images and its gradients: of images `[n, c, h, w]` one channel after the other, of images `[n, h, w, c]` all
//! channels at a time (`last.rs`).

mod last;

use graphc_ir::op::Op;
use graphc_ir::ops::{Window, mean_divisor};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::{Float, parts_of};
use crate::view::{View, ViewMut};

/// The kernel of [`Op::MaxPool`] and [`Op::AveragePool`].
pub(crate) fn pool_images<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([x], [y]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes one operand and gives one result"));
    };
    let space = PoolExtents::new(op, x.shape, y.shape)?;
    let (x, y) = (x.as_slice::<T>()?, y.as_mut_slice::<T>()?);
    if space.channels_last {
        return space.pool_last(x, y, cx);
    }
    let room = T::scratch_len(space.input_places());
    space.each_image(cx, y, space.output_places(), room, |image, y, room| {
        let x = T::read_values(&x[image * space.input_places()..][..space.input_places()], room);
        for (place, y) in y.iter_mut().enumerate() {
            *y = match space.mean {
                None => space.greatest(x, place).1,
                Some(border) => {
                    let mut sum = 0.0;
                    space.over_window(place, |element| sum += x[element]);
                    sum / space.divisor(place, border)
                }
            };
        }
    })
}

/// The kernel of [`Op::MaxPoolGrad`] and [`Op::AveragePoolGrad`].
pub(crate) fn pool_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([rest @ .., dy], [dx]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes a gradient and gives one result"));
    };
    let space = PoolExtents::new(op, dx.shape, dy.shape)?;
    let x = match (space.mean, rest) {
        (None, [x]) if x.shape == dx.shape => x.as_slice::<T>()?,
        (Some(_), []) => &[],
        _ => return Err(KernelError::bad_call(op.name(), "operands of other number or shape")),
    };
    let (dy, dx) = (dy.as_slice::<T>()?, dx.as_mut_slice::<T>()?);
    if space.channels_last {
        return space.pool_grad_last(x, dy, dx, cx);
    }
    let room = T::scratch_len(2 * space.input_places().max(space.output_places()));
    space.each_image(cx, dx, space.input_places(), room, |image, dx, room| {
        let [of_x, of_dy] = parts_of(room);
        dx.fill(0.0);
        let dy =
            T::read_values(&dy[image * space.output_places()..][..space.output_places()], of_dy);
        let x = match space.mean {
            None => {
                T::read_values(&x[image * space.input_places()..][..space.input_places()], of_x)
            }
            Some(_) => &[],
        };
        for (place, &g) in dy.iter().enumerate() {
            match space.mean {
                None => dx[space.greatest(x, place).0] += g,
                Some(border) => {
                    let g = g / space.divisor(place, border);
                    space.over_window(place, |element| dx[element] += g);
                }
            }
        }
    })
}

/// Extents of the shards.
struct PoolExtents {
    kernel: [usize; 2],
    window: Window,
    /// Whether a mean counts borders; `None` for the greatest element.
    mean: Option<bool>,
    channels_last: bool,
    channels: usize,
    image: [usize; 2],
    shown: [usize; 2],
}

impl PoolExtents {
    fn new(op: &Op, x: &[usize], y: &[usize]) -> Result<Self, KernelError> {
        let (kernel, window, mean, channels_last) = match op {
            Op::MaxPool(op) => (op.kernel, op.window, None, op.channels_last),
            Op::MaxPoolGrad(op) => (op.kernel, op.window, None, op.channels_last),
            Op::AveragePool(op) => (op.kernel, op.window, Some(op.count_border), op.channels_last),
            Op::AveragePoolGrad(op) => {
                (op.kernel, op.window, Some(op.count_border), op.channels_last)
            }
            _ => return Err(KernelError::bad_call(op.name(), "is no pooling")),
        };
        let misfit = || KernelError::bad_call(op.name(), format!("{x:?} does not give {y:?}"));
        let (&[batch, a, b, c], &[images, d, e, f]) = (x, y) else { return Err(misfit()) };
        let order = |[a, b, c]: [usize; 3]| if channels_last { [c, a, b] } else { [a, b, c] };
        let ([channels, h, w], [features, rows, columns]) = (order([a, b, c]), order([d, e, f]));
        let shown = [window.count_places(0, h, kernel[0]), window.count_places(1, w, kernel[1])];
        if [batch, channels] != [images, features] || shown != [Some(rows), Some(columns)] {
            return Err(misfit());
        }
        let (image, shown) = ([h, w], [rows, columns]);
        Ok(Self { kernel, window, mean, channels_last, channels, image, shown })
    }

    fn input_places(&self) -> usize {
        self.image[0] * self.image[1]
    }

    fn output_places(&self) -> usize {
        self.shown[0] * self.shown[1]
    }

    /// Calls `work(image, its part of the result, room)` for each image of each channel, shared among threads.
    fn each_image<T: Float>(
        &self,
        cx: &mut KernelContext<'_>,
        result: &mut [T],
        size: usize,
        room: usize,
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Send + Sync,
    ) -> Result<(), KernelError> {
        if result.is_empty() {
            return Ok(());
        }
        let weight = self.kernel[0] * self.kernel[1] * self.output_places();
        let (count, result) = (result.len() / size, RowOutput::new(result, size));
        let of_result = T::scratch_len(size);
        over_rows(cx, [count, weight], of_result + room, result, &|range, mut result, room| {
            let (of_result, room) = room.split_at_mut(of_result);
            for (index, image) in range.enumerate() {
                T::write_values(result.row(index), of_result, |result| work(image, result, room));
            }
            Ok(())
        })
    }

    /// Calls `body` with each element of the image in the window at a place, row-major.
    fn over_window(&self, place: usize, mut body: impl FnMut(usize)) {
        let (row, column) = (place / self.shown[1], place % self.shown[1]);
        for i in 0..self.kernel[0] {
            let Some(row) = self.window.source_index(0, row, i, self.image[0]) else { continue };
            for j in 0..self.kernel[1] {
                if let Some(column) = self.window.source_index(1, column, j, self.image[1]) {
                    body(row * self.image[1] + column);
                }
            }
        }
    }

    /// Returns the position of the first greatest element of a window, and its value; a NaN is greater than all.
    fn greatest(&self, x: &[f32], place: usize) -> (usize, f32) {
        let mut found = None;
        self.over_window(place, |element| {
            let greater =
                |(_, old): (usize, f32)| x[element] > old || x[element].is_nan() && !old.is_nan();
            if found.is_none_or(greater) {
                found = Some((element, x[element]));
            }
        });
        found.unwrap_or((0, f32::NEG_INFINITY))
    }

    /// Returns the number that a mean divides by at a place.
    fn divisor(&self, place: usize, border: bool) -> f32 {
        let place = [place / self.shown[1], place % self.shown[1]];
        mean_divisor((self.kernel, self.window), border, place, self.image) as f32
    }
}
