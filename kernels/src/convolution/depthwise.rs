//! Convolution where each channel is a group of its own: channels are the lanes of vectors.

use std::ops::Range;

use graphc_ir::shard::split_range;

use super::added_up;
use super::axis::{self, Class, Meeting, meetings};
use super::space::Space;
use crate::context::KernelContext;
use crate::epilogue::Sink;
use crate::error::KernelError;
use crate::parallel::{self, with_rooms};
use crate::product::Number;
use crate::simd::vectorized;

/// Channels whose sums are in registers at a time.
const WIDTH: usize = 64;
/// Numbers of a result that the cache keeps until what follows has read them.
const NEAR: usize = 1 << 15;
/// Parts for each thread.
const SHARES: usize = 4;
/// Channels of one vector.
const VECTOR: usize = 16;
/// Into how many slabs images are cut whose sums are added up at last: threads share them, and what is added to what does not
/// depend on how many threads there are.
const SLABS: usize = 8;

/// y from x and k.
pub(super) fn forward<T: Number>(
    space: &Space,
    x: &[T],
    k: &[T],
    y: Sink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let classes = [0, 1].map(|dim| axis::forward(&space.window, dim, space.along(dim)));
    gathered(space, &classes, [space.area(), space.places()], (x, space.image[1]), k, y, cx)
}

/// dx from k and dy.
pub(super) fn backward<T: Number>(
    space: &Space,
    k: &[T],
    dy: &[T],
    dx: Sink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let classes = [0, 1].map(|dim| axis::backward(&space.window, dim, space.along(dim)));
    gathered(space, &classes, [space.places(), space.area()], (dy, space.shown[1]), k, dx, cx)
}

/// By rows, and by places of a row, what is read: elements of the window and their sources.
type Readers = [Vec<Vec<(usize, usize)>>; 2];

fn readers(classes: &[Vec<Class>; 2]) -> Readers {
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
fn gathered<T: Number>(
    space: &Space,
    classes: &[Vec<Class>; 2],
    [from_places, to_places]: [usize; 2],
    (from, across): (&[T], usize),
    k: &[T],
    to: Sink<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (channels, taps) = (space.groups, space.taps());
    let sizes = [from_places * channels, to_places * channels];
    let readers = readers(classes);
    let (pool, threads) = (cx.pool, parallel::parts(cx, space.multiplications()));
    // Who is done sooner takes another part.
    let parts = if threads == 1 { 1 } else { (threads * SHARES).min(space.batch) };
    let of_image = T::room(sizes[0]) + T::room(sizes[1]);
    let (words, room) = (cx.scratch)
        .take_both::<i64, f32>([parts * to.words(), taps * channels + parts * of_image]);
    let (weights, rooms) = room.split_at_mut(taps * channels);
    by_taps(k, taps, weights);
    let weights = &*weights;
    let pieces =
        with_rooms((0..parts).map(|part| split_range(space.batch, parts, part)), words, to.words());
    let near = (NEAR / sizes[1].max(1)).max(1);
    parallel::run(pool, with_rooms(pieces.into_iter(), rooms, of_image), &|(
        (images, words),
        room,
    )| {
        let (of_from, of_to) = room.split_at_mut(T::room(sizes[0]));
        for first in images.clone().step_by(near) {
            let images = first..images.end.min(first + near);
            for index in images.clone() {
                let from = T::read(&from[index * sizes[0]..][..sizes[0]], of_from);
                // SAFETY: each image is one thread's.
                let to = unsafe { to.part::<T>(index * sizes[1]..(index + 1) * sizes[1]) }?;
                T::write(to, of_to, |to| image(&readers, space, (from, across), weights, to));
            }
            // SAFETY: as above.
            unsafe { to.follow(images.start * sizes[1]..images.end * sizes[1], words) }?;
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
    fn image(readers: &Readers, space: &Space, source: (&[f32], usize), weights: &[f32], to: &mut [f32]) {
        let (from, across) = source;
        let (channels, columns) = (space.groups, space.extents[1]);
        let mut places = to.chunks_exact_mut(channels);
        for down in &readers[0] {
            for right in &readers[1] {
                let Some(to) = places.next() else { return };
                let mut start = 0;
                while start < channels {
                    let place = Place { down, right, across, columns, channels, start };
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
struct Place<'a> {
    /// Rows and columns of the window with their sources.
    down: &'a [(usize, usize)],
    right: &'a [(usize, usize)],
    /// Places of a row of the source, columns of the window.
    across: usize,
    columns: usize,
    channels: usize,
    start: usize,
}

impl Place<'_> {
    /// Sums over the window for `N` channels; gives their number.
    #[inline(always)]
    fn sum<const N: usize>(&self, from: &[f32], weights: &[f32], to: &mut [f32]) -> usize {
        let mut sums = [0.0; N];
        for &(i, row) in self.down {
            for &(j, column) in self.right {
                let from =
                    lanes::<N>(from, (row * self.across + column) * self.channels + self.start);
                let weights =
                    lanes::<N>(weights, (i * self.columns + j) * self.channels + self.start);
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
fn lanes<const N: usize>(all: &[f32], start: usize) -> &[f32; N] {
    all[start..start + N].try_into().expect("N of them")
}

/// dk from x and dy: threads share images, and channels where there are many threads.
pub(super) fn sums<T: Number>(
    space: &Space,
    x: &[T],
    dy: &[T],
    dk: &mut [T],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (channels, taps) = (space.groups, space.taps());
    let sizes = [space.area() * channels, space.places() * channels];
    let meetings = [0, 1].map(|dim| meetings(&space.window, dim, space.along(dim)));
    let (pool, parts) = (cx.pool, parallel::parts(cx, space.multiplications()));
    let slabs = SLABS.min(space.batch);
    let each = channels.div_ceil(parts.div_ceil(slabs)).next_multiple_of(VECTOR).min(channels);
    let of_images = T::room(sizes[0]) + T::room(sizes[1]);
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
    parallel::run(pool, with_rooms(pieces, rooms, of_images), &|((images, range, own), room)| {
        let (of_x, of_dy) = room.split_at_mut(T::room(sizes[0]));
        own.fill(0.0);
        for image in images {
            let x = T::read(&x[image * sizes[0]..][..sizes[0]], of_x);
            let dy = T::read(&dy[image * sizes[1]..][..sizes[1]], of_dy);
            add_image(space, &meetings, range.clone(), [x, dy], own);
        }
        Ok(())
    })?;
    let sums = added_up(sums, taps * channels);
    for (piece, dk) in dk.chunks_mut(each * taps).enumerate() {
        let (count, sums) = (dk.len() / taps, &sums[piece * each * taps..]);
        for (channel, dk) in dk.chunks_exact_mut(taps).enumerate() {
            for (tap, dk) in dk.iter_mut().enumerate() {
                *dk = T::nearest(sums[tap * count + channel]);
            }
        }
    }
    Ok(())
}

/// Adds the sums of one image for a range of channels, `[tap, channel]`.
fn add_image(
    space: &Space,
    meetings: &[Vec<Meeting>; 2],
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
    fn add_tap(space: &Space, at: [Meeting; 2], channel: usize, factors: [&[f32]; 2], sums: &mut [f32]) {
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

/// The same for `N` channels; gives their number.
#[inline(always)]
fn over_places<const N: usize>(
    space: &Space,
    [h, w]: [Meeting; 2],
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
            let x = lanes::<N>(x, (from + place * strides[1]) * channels + channel);
            let dy = lanes::<N>(dy, (to + place) * channels + channel);
            for lane in 0..N {
                own[lane] = x[lane].mul_add(dy[lane], own[lane]);
            }
        }
    }
    sums[..N].iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
    N
}
