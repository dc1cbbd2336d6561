//! Convolution where each channel is a group of its own: channels are the lanes of vectors.

use std::ops::Range;

use graphc_ir::shard::split_range;

use super::added_up;
use super::axis::{self, PlaceClass, WindowMeeting, find_meetings};
use super::space::ConvolutionSpace;
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{self, with_rooms};
use crate::product::Number;
use crate::simd::vectorized;
use crate::sink::ResultSink;

/// Channels whose sums are in registers at a time.
const WIDTH: usize = 64;
/// Numbers of a result that the cache keeps until what follows has read them.
const NEAR: usize = 1 << 15;
/// Parts for each thread.
const SHARES: usize = 4;
/// Channels of one vector.
const VECTOR: usize = 16;
/// The number of slabs into which images are cut, whose sums are added up at last. Threads share the slabs. The number is fixed, because
/// the order of a sum must not depend on the number of threads.
const SLABS: usize = 8;

/// y from x and k.
pub(super) fn convolve_images<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    k: &[T],
    y: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let classes =
        [0, 1].map(|dim| axis::classify_places(&space.window, dim, space.extents_along(dim)));
    gather_images(
        space,
        &classes,
        [space.input_places(), space.output_places()],
        (x, space.image[1]),
        k,
        y,
        cx,
    )
}

/// dx from k and dy.
pub(super) fn compute_input_grad<T: Number>(
    space: &ConvolutionSpace,
    k: &[T],
    dy: &[T],
    dx: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let classes =
        [0, 1].map(|dim| axis::classify_rows(&space.window, dim, space.extents_along(dim)));
    gather_images(
        space,
        &classes,
        [space.output_places(), space.input_places()],
        (dy, space.shown[1]),
        k,
        dx,
        cx,
    )
}

/// The elements of the window that are read, and their sources: by rows, and by places of a row.
type Readers = [Vec<Vec<(usize, usize)>>; 2];

fn find_readers(classes: &[Vec<PlaceClass>; 2]) -> Readers {
    classes.each_ref().map(|classes| {
        let count = classes.iter().map(|class| class.places.len()).sum();
        let mut readers = vec![Vec::new(); count];
        for class in classes {
            for &(place, source) in &class.places {
                let tap =
                    |&(tap, behind): &(usize, isize)| (tap, source.wrapping_add_signed(behind));
                readers[place] = class.taps.iter().map(tap).collect();
            }
        }
        readers
    })
}

/// Images made of sums over elements of the window: image by image, shared among threads.
fn gather_images<T: Number>(
    space: &ConvolutionSpace,
    classes: &[Vec<PlaceClass>; 2],
    [from_places, to_places]: [usize; 2],
    (from, across): (&[T], usize),
    k: &[T],
    to: ResultSink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (channels, taps) = (space.groups, space.taps());
    let sizes = [from_places * channels, to_places * channels];
    let readers = find_readers(classes);
    let (pool, threads) = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    // Who is done sooner takes another part.
    let parts = if threads == 1 { 1 } else { (threads * SHARES).min(space.batch) };
    let of_image = T::scratch_len(sizes[0]) + T::scratch_len(sizes[1]);
    let (words, room) = (cx.scratch)
        .take_both::<i64, f32>([parts * to.scratch_words(), taps * channels + parts * of_image]);
    let (weights, rooms) = room.split_at_mut(taps * channels);
    by_taps(k, taps, weights);
    let weights = &*weights;
    let pieces = with_rooms(
        (0..parts).map(|part| split_range(space.batch, parts, part)),
        words,
        to.scratch_words(),
    );
    let near = (NEAR / sizes[1].max(1)).max(1);
    parallel::run_parts(pool, with_rooms(pieces.into_iter(), rooms, of_image), &|(
        (images, words),
        room,
    )| {
        let (of_from, of_to) = room.split_at_mut(T::scratch_len(sizes[0]));
        for first in images.clone().step_by(near) {
            let images = first..images.end.min(first + near);
            for index in images.clone() {
                let from = T::read_values(&from[index * sizes[0]..][..sizes[0]], of_from);
                // SAFETY: each image is one thread's.
                let to = unsafe { to.part::<T>(index * sizes[1]..(index + 1) * sizes[1]) }?;
                T::write_values(to, of_to, |to| {
                    gather_image(&readers, space, (from, across), weights, to)
                });
            }
            // SAFETY: as above.
            unsafe { to.follow_part(images.start * sizes[1]..images.end * sizes[1], words) }?;
        }
        Ok(())
    })
}

/// Kernels `[channel, tap]` as `[tap, channel]`.
fn by_taps<T: Number>(k: &[T], taps: usize, to: &mut [f32]) {
    let channels = k.len() / taps;
    for (channel, k) in k.chunks_exact(taps).enumerate() {
        for (tap, value) in k.iter().enumerate() {
            to[tap * channels + channel] = value.value();
        }
    }
}

vectorized! {
    /// Makes one image of another.
    fn gather_image(readers: &Readers, space: &ConvolutionSpace, source: (&[f32], usize), weights: &[f32], to: &mut [f32]) {
        let (from, across) = source;
        let (channels, columns) = (space.groups, space.extents[1]);
        let mut places = to.chunks_exact_mut(channels);
        for down in &readers[0] {
            for right in &readers[1] {
                let Some(to) = places.next() else { return };
                let mut start = 0;
                while start < channels {
                    let place = DepthwisePlace { down, right, across, columns, channels, start };
                    start += match channels - start {
                        WIDTH.. => place.sum::<WIDTH>(from, weights, to),
                        VECTOR.. => place.sum::<VECTOR>(from, weights, to),
                        _ => place.sum::<1>(from, weights, to),
                    };
                }
            }
        }
    }
}

/// One place of a result, from one channel on.
struct DepthwisePlace<'a> {
    /// Rows and columns of the window with their sources.
    down: &'a [(usize, usize)],
    right: &'a [(usize, usize)],
    /// Places of a row of the source, columns of the window.
    across: usize,
    columns: usize,
    channels: usize,
    start: usize,
}

impl DepthwisePlace<'_> {
    /// Sums over the window for `N` channels; gives their number.
    #[inline(always)]
    fn sum<const N: usize>(&self, from: &[f32], weights: &[f32], to: &mut [f32]) -> usize {
        let mut sums = [0.0; N];
        for &(i, row) in self.down {
            for &(j, column) in self.right {
                let from = lanes_from::<N>(
                    from,
                    (row * self.across + column) * self.channels + self.start,
                );
                let weights =
                    lanes_from::<N>(weights, (i * self.columns + j) * self.channels + self.start);
                for lane in 0..N {
                    sums[lane] = from[lane].mul_add(weights[lane], sums[lane]);
                }
            }
        }
        to[self.start..self.start + N].copy_from_slice(&sums);
        N
    }
}

/// `N` numbers from one on.
#[inline(always)]
fn lanes_from<const N: usize>(all: &[f32], start: usize) -> &[f32; N] {
    all[start..start + N].try_into().expect("N of them")
}

/// dk from x and dy: threads share images, and channels where there are many threads.
pub(super) fn compute_kernel_grad<T: Number>(
    space: &ConvolutionSpace,
    x: &[T],
    dy: &[T],
    dk: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (channels, taps) = (space.groups, space.taps());
    let sizes = [space.input_places() * channels, space.output_places() * channels];
    let meetings = [0, 1].map(|dim| find_meetings(&space.window, dim, space.extents_along(dim)));
    let (pool, parts) = (cx.pool, parallel::count_parts(cx, space.count_multiplications()));
    let slabs = SLABS.min(space.batch);
    let each = channels.div_ceil(parts.div_ceil(slabs)).next_multiple_of(VECTOR).min(channels);
    let of_images = T::scratch_len(sizes[0]) + T::scratch_len(sizes[1]);
    let chunks = channels.div_ceil(each);
    let all = cx.scratch.take::<f32>(slabs * (taps * channels + chunks * of_images));
    let (sums, rooms) = all.split_at_mut(slabs * taps * channels);
    let starts = (0..slabs).flat_map(|slab| (0..channels).step_by(each).map(move |at| (slab, at)));
    let mut rest = &mut *sums;
    let pieces = starts.map(|(slab, start)| {
        let range = start..channels.min(start + each);
        let own = rest.split_off_mut(..taps * range.len()).unwrap_or_default();
        (split_range(space.batch, slabs, slab), range, own)
    });
    parallel::run_parts(pool, with_rooms(pieces, rooms, of_images), &|(
        (images, range, own),
        room,
    )| {
        let (of_x, of_dy) = room.split_at_mut(T::scratch_len(sizes[0]));
        own.fill(0.0);
        for image in images {
            let x = T::read_values(&x[image * sizes[0]..][..sizes[0]], of_x);
            let dy = T::read_values(&dy[image * sizes[1]..][..sizes[1]], of_dy);
            add_image(space, &meetings, range.clone(), [x, dy], own);
        }
        Ok(())
    })?;
    let sums = added_up(sums, taps * channels);
    for (piece, dk) in dk.chunks_mut(each * taps).enumerate() {
        let (count, sums) = (dk.len() / taps, &sums[piece * each * taps..]);
        for (channel, dk) in dk.chunks_exact_mut(taps).enumerate() {
            for (tap, dk) in dk.iter_mut().enumerate() {
                *dk = T::round_from(sums[tap * count + channel]);
            }
        }
    }
    Ok(())
}

/// Adds the sums of one image for a range of channels, `[tap, channel]`.
fn add_image(
    space: &ConvolutionSpace,
    meetings: &[Vec<WindowMeeting>; 2],
    range: Range<usize>,
    [x, dy]: [&[f32]; 2],
    sums: &mut [f32],
) {
    let [down, right] = meetings;
    let mut sums = sums.chunks_exact_mut(range.len());
    for h in down {
        for w in right {
            let Some(sums) = sums.next() else { return };
            add_tap(space, [*h, *w], range.start, [x, dy], sums);
        }
    }
}

vectorized! {
    /// Adds the sums of one tap over the places of an image, for as many channels from one on as there are sums.
    fn add_tap(space: &ConvolutionSpace, at: [WindowMeeting; 2], channel: usize, factors: [&[f32]; 2], sums: &mut [f32]) {
        let mut start = 0;
        while start < sums.len() {
            let first = channel + start;
            start += match sums.len() - start {
                WIDTH.. => over_places::<WIDTH>(space, at, first, factors, &mut sums[start..]),
                VECTOR.. => over_places::<VECTOR>(space, at, first, factors, &mut sums[start..]),
                _ => over_places::<1>(space, at, first, factors, &mut sums[start..]),
            };
        }
    }
}

/// Adds the sums of one tap over the places of an image, for `N` channels from `channel` on. Returns `N`.
#[inline(always)]
fn over_places<const N: usize>(
    space: &ConvolutionSpace,
    [h, w]: [WindowMeeting; 2],
    channel: usize,
    [x, dy]: [&[f32]; 2],
    sums: &mut [f32],
) -> usize {
    let (channels, strides) = (space.groups, space.window.strides);
    let mut own = [0.0; N];
    for row in 0..h.count {
        let from = (h.source + row * strides[0]) * space.image[1] + w.source;
        let to = (h.place + row) * space.shown[1] + w.place;
        for place in 0..w.count {
            let x = lanes_from::<N>(x, (from + place * strides[1]) * channels + channel);
            let dy = lanes_from::<N>(dy, (to + place) * channels + channel);
            for lane in 0..N {
                own[lane] = x[lane].mul_add(dy[lane], own[lane]);
            }
        }
    }
    sums[..N].iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
    N
}
