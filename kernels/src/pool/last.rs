//! Pooling of images `[n, h, w, c]`, all channels of a place at a time: rows of windows are gone over element by element of the window,
//! so that what is compared or added stands side by side.

use std::ops::Range;

use super::PoolExtents;
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::Float;
use crate::simd::vectorized;

/// The number of a place whose window has no greatest element: no element has it.
const NONE: f32 = -1.0;

impl PoolExtents {
    /// Pools all rows of windows, shared among threads.
    pub(super) fn pool_last<T: Float>(
        &self,
        x: &[T],
        y: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        if y.is_empty() {
            return Ok(());
        }
        let (from, to) = (self.row_len(), self.row_of_places());
        let (rows, weight) = (y.len() / to, to * self.kernel[0] * self.kernel[1]);
        let room = T::scratch_len(from) + T::scratch_len(to);
        over_rows(cx, [rows, weight], room, RowOutput::new(y, to), &|range, mut y, room| {
            let (of_x, of_y) = room.split_at_mut(T::scratch_len(from));
            for (index, row) in range.enumerate() {
                let x = self.image_of(x, row / self.shown[0]);
                T::write_values(y.row(index), of_y, |y| {
                    self.row_last(x, row % self.shown[0], y, of_x)
                });
            }
            Ok(())
        })
    }

    fn row_last<T: Float>(&self, x: &[T], place: usize, y: &mut [f32], room: &mut [f32]) {
        y.fill(if self.mean.is_some() { 0.0 } else { f32::NEG_INFINITY });
        self.each_row(place, |_, row| {
            let x = T::read_values(&x[row * self.row_len()..][..self.row_len()], room);
            for j in 0..self.kernel[1] {
                let runs = self.runs(j);
                match self.mean {
                    None => raise_to_greater(runs, x, y),
                    Some(_) => add_runs(runs, x, y),
                }
            }
        });
        if let Some(border) = self.mean {
            self.divide_row(place, border, y);
        }
    }

    /// Computes the gradients of all images, shared among threads: windows of one overlap.
    pub(super) fn pool_grad_last<T: Float>(
        &self,
        x: &[T],
        dy: &[T],
        dx: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        if dx.is_empty() {
            return Ok(());
        }
        let (from, to) = (self.row_len(), self.row_of_places());
        let size = from * self.image[0];
        let (images, weight) =
            (dx.len() / size, to * self.shown[0] * self.kernel[0] * self.kernel[1]);
        let room = T::scratch_len(size) + T::scratch_len(from) + 3 * to;
        over_rows(cx, [images, weight], room, RowOutput::new(dx, size), &|range, mut dx, room| {
            let (of_dx, room) = room.split_at_mut(T::scratch_len(size));
            for (index, image) in range.enumerate() {
                let x = self.mean.is_none().then(|| self.image_of(x, image));
                let dy = &dy[image * self.shown[0] * to..][..self.shown[0] * to];
                T::write_values(dx.row(index), of_dx, |dx| {
                    dx.fill(0.0);
                    for (place, dy) in dy.chunks_exact(to).enumerate() {
                        self.row_grad_last(x, dy, place, dx, room);
                    }
                });
            }
            Ok(())
        })
    }

    /// Adds the contribution of one row of windows to the gradient of their image.
    fn row_grad_last<T: Float>(
        &self,
        x: Option<&[T]>,
        dy: &[T],
        place: usize,
        dx: &mut [f32],
        room: &mut [f32],
    ) {
        let (row, to) = (self.row_len(), self.row_of_places());
        let (of_x, rest) = room.split_at_mut(T::scratch_len(row));
        let (g, rest) = rest.split_at_mut(to);
        let (best, number) = rest.split_at_mut(to);
        T::widen(dy, g);
        match (x, self.mean) {
            (Some(x), _) => self.first_greatest(x, place, best, number, of_x),
            (None, Some(border)) => self.divide_row(place, border, g),
            (None, None) => {}
        }
        self.each_row(place, |i, source| {
            let dx = &mut dx[source * row..][..row];
            // From the last column on, so that an element is added to in the order of places.
            for j in (0..self.kernel[1]).rev() {
                let runs = self.runs(j);
                match self.mean {
                    None => give_gradients(runs, number_of(i * self.kernel[1] + j), number, g, dx),
                    Some(_) => spread_gradients(runs, g, dx),
                }
            }
        });
    }

    /// Finds for each channel of each place the first greatest element of the window, row-major; a NaN is greater than all.
    fn first_greatest<T: Float>(
        &self,
        x: &[T],
        place: usize,
        best: &mut [f32],
        number: &mut [f32],
        room: &mut [f32],
    ) {
        best.fill(f32::NEG_INFINITY);
        number.fill(NONE);
        self.each_row(place, |i, row| {
            let x = T::read_values(&x[row * self.row_len()..][..self.row_len()], room);
            for j in 0..self.kernel[1] {
                choose_greatest(self.runs(j), number_of(i * self.kernel[1] + j), x, best, number);
            }
        });
    }

    fn divide_row(&self, place: usize, border: bool, row: &mut [f32]) {
        for (column, values) in row.chunks_exact_mut(self.channels).enumerate() {
            let divisor = self.divisor(place * self.shown[1] + column, border);
            values.iter_mut().for_each(|value| *value /= divisor);
        }
    }

    /// Calls `body(row of the window, row of the image)` for each that a row of places meets.
    fn each_row(&self, place: usize, mut body: impl FnMut(usize, usize)) {
        for i in 0..self.kernel[0] {
            if let Some(row) = self.window.source_index(0, place, i, self.image[0]) {
                body(i, row);
            }
        }
    }

    /// The places of a row whose windows have their column `j` in the image.
    fn runs(&self, j: usize) -> Runs {
        let (stride, ahead) = (self.window.strides[1], j * self.window.dilations[1]);
        let pad = self.window.pads[1];
        let first = pad.saturating_sub(ahead).div_ceil(stride).min(self.shown[1]);
        let end = (self.image[1] + pad).saturating_sub(ahead).div_ceil(stride);
        let end = end.clamp(first, self.shown[1]);
        let column = (first * stride + ahead).saturating_sub(pad);
        let channels = self.channels;
        let places = first * channels..end * channels;
        // Neighbours of a window that steps by one are one run.
        let (len, step) = match stride {
            1 => (places.len().max(1), places.len().max(1)),
            _ => (channels, stride * channels),
        };
        Runs { places, len, from: column * channels, step }
    }

    fn image_of<'a, T>(&self, x: &'a [T], image: usize) -> &'a [T] {
        let size = self.row_len() * self.image[0];
        &x[image * size..][..size]
    }

    fn row_len(&self) -> usize {
        self.image[1] * self.channels
    }

    fn row_of_places(&self) -> usize {
        self.shown[1] * self.channels
    }
}

/// Numbers of elements of a window stand beside values: below 2^24 an `f32` is exact, and windows of more are none that anybody
/// computes.
fn number_of(element: usize) -> f32 {
    element as f32
}

/// Elements of a row of places and those of a row of the image that they meet: runs of `len`, behind each other among places, and
/// `step` apart from `from` on in the image.
struct Runs {
    places: Range<usize>,
    len: usize,
    from: usize,
    step: usize,
}

vectorized! {
    /// Replaces elements by those of `x` that are greater; a NaN stays.
    fn raise_to_greater(runs: Runs, x: &[f32], y: &mut [f32]) {
        let x = x.get(runs.from..).unwrap_or_default().chunks(runs.step);
        for (y, x) in y[runs.places].chunks_exact_mut(runs.len).zip(x) {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = if (x > *y) | x.is_nan() { x } else { *y };
            }
        }
    }
}

vectorized! {
    fn add_runs(runs: Runs, x: &[f32], y: &mut [f32]) {
        let x = x.get(runs.from..).unwrap_or_default().chunks(runs.step);
        for (y, x) in y[runs.places].chunks_exact_mut(runs.len).zip(x) {
            for (y, x) in y.iter_mut().zip(x) {
                *y += x;
            }
        }
    }
}

vectorized! {
    /// Replaces elements by greater ones like [`raise_to_greater`], and records the number in the window of each greatest element.
    fn choose_greatest(runs: Runs, own: f32, x: &[f32], best: &mut [f32], number: &mut [f32]) {
        let x = x.get(runs.from..).unwrap_or_default().chunks(runs.step);
        let best = best[runs.places.clone()].chunks_exact_mut(runs.len);
        let number = number[runs.places].chunks_exact_mut(runs.len);
        for ((best, number), x) in best.zip(number).zip(x) {
            for ((best, number), &x) in best.iter_mut().zip(number).zip(x) {
                let first = *number == NONE;
                let greater = first | (x > *best) | (x.is_nan() & !best.is_nan());
                *best = if greater { x } else { *best };
                *number = if greater { own } else { *number };
            }
        }
    }
}

vectorized! {
    /// Adds gradients to the element of the image that has this number in its window.
    fn give_gradients(runs: Runs, own: f32, number: &[f32], g: &[f32], dx: &mut [f32]) {
        let dx = dx.get_mut(runs.from..).unwrap_or_default().chunks_mut(runs.step);
        let number = number[runs.places.clone()].chunks_exact(runs.len);
        let g = g[runs.places].chunks_exact(runs.len);
        for ((number, g), dx) in number.zip(g).zip(dx) {
            for ((&number, &g), dx) in number.iter().zip(g).zip(dx) {
                *dx += if number == own { g } else { 0.0 };
            }
        }
    }
}

vectorized! {
    fn spread_gradients(runs: Runs, g: &[f32], dx: &mut [f32]) {
        let dx = dx.get_mut(runs.from..).unwrap_or_default().chunks_mut(runs.step);
        for (g, dx) in g[runs.places].chunks_exact(runs.len).zip(dx) {
            for (g, dx) in g.iter().zip(dx) {
                *dx += g;
            }
        }
    }
}
