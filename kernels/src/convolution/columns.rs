//! Convolution by columns: windows of a few places are laid out as rows of a matrix, which kernels are multiplied with.

use std::ops::Range;

use graphc_ir::types::DType;

use super::space::ConvolutionSpace;
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{self, with_rooms};
use crate::product::{Hands, Layout, Number, Write, multiply, room};

/// Places whose windows are laid out at a time.
const PLACES: usize = 256;

/// y from x and k.
pub(super) fn convolve_images<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    k: &[T],
    y: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (depth, features) = (space.taps() * space.inputs, space.output_channels());
    let (pool, parts) = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    let own = room::<T, T, T>([PLACES, depth, space.outputs], 1);
    let (elements, singles) =
        cx.scratch.take_both::<T, f32>([k.len() + parts * PLACES * depth, parts * own]);
    let (kernels, elements) = elements.split_at_mut(k.len());
    by_taps(space, k, kernels);
    let kernels = &*kernels;
    let places = space.batch * space.output_places();
    let each = places.div_ceil(PLACES).div_ceil(parts) * PLACES;
    let pieces = y.chunks_mut(each * features).zip(elements.chunks_mut(PLACES * depth)).enumerate();
    parallel::run_parts(pool, with_rooms(pieces, singles, own), &|((piece, (y, columns)), room)| {
        for (index, y) in y.chunks_mut(PLACES * features).enumerate() {
            let start = piece * each + index * PLACES;
            let places = start..start + y.len() / features;
            for group in 0..space.groups {
                space.lay_out(x, group, places.clone(), 0..depth, columns);
                let kernels = &kernels[group * space.outputs * depth..];
                let extents = [places.len(), depth, space.outputs];
                let factors =
                    ((&*columns, Layout::rows(depth)), (kernels, Layout::rows(depth).t()));
                let to = (&mut y[group * space.outputs..], Layout::rows(features));
                let hands = Hands::own(&mut *room);
                multiply(extents, 1.0, factors.0, factors.1, to, Write::Replace, hands);
            }
        }
        Ok(())
    })
}

/// dx from k and dy: image by image.
pub(super) fn compute_input_grad<T: Number>(
    space: &ConvolutionSpace,
    k: &[T],
    dy: &[T],
    dx: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (depth, features, count) =
        (space.taps() * space.inputs, space.output_channels(), space.output_places());
    let (pool, parts) = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    let size = space.input_places() * space.input_channels();
    let extents = [count, space.outputs, depth];
    let of_product = room::<T, T, f32>(extents, 1);
    let own = count * depth + T::scratch_len(size) + of_product;
    let (kernels, singles) = cx.scratch.take_both::<T, f32>([k.len(), parts * own]);
    by_taps(space, k, kernels);
    let kernels = &*kernels;
    let each = space.batch.div_ceil(parts);
    let pieces = dx.chunks_mut(each * size).zip(dy.chunks(each * count * features));
    parallel::run_parts(pool, with_rooms(pieces, singles, own), &|((dx, dy), memory)| {
        let (columns, rest) = memory.split_at_mut(count * depth);
        let (sums, room) = rest.split_at_mut(T::scratch_len(size));
        for (dx, dy) in dx.chunks_mut(size).zip(dy.chunks(count * features)) {
            T::write_values(dx, sums, |dx| {
                dx.fill(0.0);
                for group in 0..space.groups {
                    let gradients = (&dy[group * space.outputs..], Layout::rows(features));
                    let kernels = (&kernels[group * space.outputs * depth..], Layout::rows(depth));
                    let to = (&mut *columns, Layout::rows(depth));
                    let hands = Hands::own(&mut *room);
                    multiply(extents, 1.0, gradients, kernels, to, Write::Replace, hands);
                    space.add_columns(columns, group, dx);
                }
            });
        }
        Ok(())
    })
}

/// dk from x and dy: columns of the kernels are shared among threads, places are added in their order.
pub(super) fn compute_kernel_grad<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    dy: &[T],
    dk: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let depth = space.taps() * space.inputs;
    let size = space.outputs * depth;
    // What is of half precision is packed with as many rows of dy each time: there are fewer and larger ranges.
    let width = depth.min(if T::DTYPE == DType::F32 { 64 } else { 256 });
    let ranges = depth.div_ceil(width);
    let (pool, parts) =
        (cx.pool, parallel::count_parts(cx, space.count_multiplications()).min(ranges));
    let own = room::<T, T, f32>([space.outputs, PLACES, width], 1);
    let counts = [parts * PLACES * width, size + parts * own];
    for (group, dk) in dk.chunks_exact_mut(size).take(space.groups).enumerate() {
        let (mut elements, singles) = cx.scratch.take_both::<T, f32>(counts);
        let (sums, rooms) = singles.split_at_mut(size);
        let mut shares: Vec<Vec<(usize, &mut [f32])>> = (0..parts).map(|_| Vec::new()).collect();
        for (index, sums) in sums.chunks_mut(space.outputs * width).enumerate() {
            shares[index % parts].push((index * width, sums));
        }
        let pieces = shares.into_iter().map(|share| {
            let columns = elements.split_off_mut(..PLACES * width).unwrap_or_default();
            (share, columns)
        });
        parallel::run_parts(pool, with_rooms(pieces, rooms, own), &|((share, columns), room)| {
            for (start, sums) in share {
                let range = start..start + sums.len() / space.outputs;
                space.sum_range(group, range, [x, dy], (&mut *columns, &mut *room), sums);
            }
            Ok(())
        })?;
        from_taps(space, width, sums, dk);
    }
    Ok(())
}

/// Kernels `[output, input, tap]` as `[output, tap, input]`.
fn by_taps<T: Number>(space: &ConvolutionSpace, k: &[T], to: &mut [T]) {
    let (taps, inputs) = (space.taps(), space.inputs);
    let size = (taps * inputs).max(1);
    for (k, to) in k.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
        for (input, k) in k.chunks_exact(taps).enumerate() {
            k.iter().enumerate().for_each(|(tap, &value)| to[tap * inputs + input] = value);
        }
    }
}

/// Gradients of ranges of `width` columns `[output, tap and input]` as `[output, input, tap]`.
fn from_taps<T: Number>(space: &ConvolutionSpace, width: usize, sums: &[f32], dk: &mut [T]) {
    let (taps, inputs) = (space.taps(), space.inputs);
    for (index, sums) in sums.chunks(space.outputs * width).enumerate() {
        let own = sums.len() / space.outputs;
        for (sums, dk) in sums.chunks_exact(own).zip(dk.chunks_exact_mut(taps * inputs)) {
            for (offset, &sum) in sums.iter().enumerate() {
                let column = index * width + offset;
                dk[column % inputs * taps + column / inputs] = T::round_from(sum);
            }
        }
    }
}

impl ConvolutionSpace {
    /// The sum over all places of the gradients of a range of columns of one group's kernels.
    fn sum_range<T: Number>(
        &self,
        group: usize,
        range: Range<usize>,
        [x, dy]: [&[T]; 2],
        (columns, room): (&mut [T], &mut [f32]),
        sums: &mut [f32],
    ) {
        let (features, all) = (self.output_channels(), self.batch * self.output_places());
        sums.fill(0.0);
        for start in (0..all).step_by(PLACES) {
            let places = start..all.min(start + PLACES);
            self.lay_out(x, group, places.clone(), range.clone(), columns);
            let gradients = &dy[start * features + group * self.outputs..];
            let gradients = (gradients, Layout::rows(features).t());
            let columns = (&*columns, Layout::rows(range.len()));
            let to = (&mut *sums, Layout::rows(range.len()));
            let extents = [self.outputs, places.len(), range.len()];
            multiply(extents, 1.0, gradients, columns, to, Write::Add, Hands::own(&mut *room));
        }
    }

    /// Writes for each place a row of the elements of a group's channels that a range of its window's elements meets, tap by tap.
    fn lay_out<T: Number>(
        &self,
        x: &[T],
        group: usize,
        places: Range<usize>,
        range: Range<usize>,
        to: &mut [T],
    ) {
        let first = group * self.stride + self.first;
        for (place, to) in places.zip(to.chunks_exact_mut(range.len())) {
            let image =
                &x[place / self.output_places() * self.input_places() * self.input_channels()..];
            let mut at = range.start;
            while at < range.end {
                let (tap, input) = (at / self.inputs, at % self.inputs);
                let count = (self.inputs - input).min(range.end - at);
                let to = &mut to[at - range.start..][..count];
                match self.find_source(place % self.output_places(), tap) {
                    Some(source) => {
                        let from = &image[source * self.input_channels() + first + input..];
                        to.copy_from_slice(&from[..count]);
                    }
                    None => to.fill(T::default()),
                }
                at += count;
            }
        }
    }

    /// Adds rows of windows to where their elements come from, of one image.
    fn add_columns(&self, columns: &[f32], group: usize, image: &mut [f32]) {
        let first = group * self.stride + self.first;
        for (index, part) in columns.chunks_exact(self.inputs).enumerate() {
            let (place, tap) = (index / self.taps(), index % self.taps());
            if let Some(source) = self.find_source(place, tap) {
                let to = &mut image[source * self.input_channels() + first..][..self.inputs];
                to.iter_mut().zip(part).for_each(|(to, part)| *to += part);
            }
        }
    }

    /// The place of x that a tap meets at a place of y.
    fn find_source(&self, place: usize, tap: usize) -> Option<usize> {
        let place = [place / self.shown[1], place % self.shown[1]];
        let tap = [tap / self.extents[1], tap % self.extents[1]];
        let row = self.window.source_index(0, place[0], tap[0], self.image[0])?;
        let column = self.window.source_index(1, place[1], tap[1], self.image[1])?;
        Some(row * self.image[1] + column)
    }
}
