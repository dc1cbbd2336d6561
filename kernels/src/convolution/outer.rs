//! The gradient of kernels without columns: for each element of the window the sum, over all places at which it meets the image,
//! of the products of channels of the image and of the gradient, in registers.
//!
//! A part of the images at a time stays in the cache for all elements of the window. Threads share elements. If a kernel is too
//! small for that, they share slabs of images, whose sums are added up at last. The shape alone decides how many slabs there are.

use std::ops::Range;

use graphc_ir::shard::split_range;

use super::added_up;
use super::axis::WindowMeeting;
use super::gather::{ImageSide, SHARES, cut_by_cost};
use super::pack::interleave_taps;
use crate::error::KernelError;
use crate::panels::{Panel, cut_panels};
use crate::parallel;
use crate::threads::ThreadPool;
use crate::vectors::{LANES, Outer, PlaceRun, VectorTarget, accumulate_outer, rows_beside};

/// Places that are summed at a time: what is read of them stays in the cache while tiles of the result go by.
const PLACES: usize = 128;
/// Rows of the result, channels of the gradient, of a unit of work, at most.
const ROWS: usize = 48;
/// Numbers of both factors that stay in the cache while all taps go by.
const NEAR: usize = 3 << 16;
/// The number of units of work that are enough for threads to share. With fewer, images are shared instead, where the sums of each slab of
/// them are at most [`SMALL`].
const FEW_UNITS: usize = 8;
const SMALL: usize = 1 << 16;
/// Both factors are far where they are more numbers than this: they do not stay in the second cache. Threads that share taps would each
/// read all of them from memory, so images are shared, where the sums of each slab are at most [`SMALL_OF_FAR`]. (Two threads, 8 images of
/// 128 x 128: 32 channels by 32 10.4 ms with taps, 5.7 with images; of 64 x 64, 64 by 128, whose sums are 73,728 numbers, 11.5 and 9.8.)
const FAR: usize = 1 << 20;
const SMALL_OF_FAR: usize = 1 << 17;
/// The number of slabs into which images are cut for threads to share. It is fixed, because the order of a sum must not depend on the
/// number of threads.
const SLABS: usize = 4;

/// Sums over places of images.
pub(super) struct KernelSums {
    pub batch: usize,
    /// The image, whose channels are columns of the result, and the gradient, whose channels are its rows.
    pub x: ImageSide,
    pub y: ImageSide,
    /// The places at which each element of the window meets the image, along h and along w: the first one, its source, and how many there
    /// are.
    pub meetings: [Vec<WindowMeeting>; 2],
    pub strides: [usize; 2],
}

/// The part of a meeting that lies in a range of places, when sources are `stride` apart.
fn meeting_within(
    meeting: WindowMeeting,
    places: &Range<usize>,
    stride: usize,
) -> Option<WindowMeeting> {
    let start = meeting.place.max(places.start);
    let end = (meeting.place + meeting.count).min(places.end);
    let source = meeting.source + start.saturating_sub(meeting.place) * stride;
    (start < end).then(|| WindowMeeting { place: start, source, count: end - start })
}

/// Rows of the result for one tap.
struct TapUnit {
    tap: usize,
    slot: usize,
    rows: Range<usize>,
}

/// Images, and rows of places in each.
struct ImageBlock {
    images: Range<usize>,
    rows: Range<usize>,
}

/// Nested loops over places: how often, and how far it is from one to the next in the image and in the gradient. The last
/// is the innermost.
type Nest = Vec<(usize, [usize; 2])>;

impl KernelSums {
    fn taps(&self) -> usize {
        self.meetings[0].len() * self.meetings[1].len()
    }

    /// Numbers the taps that meet the image anywhere. Returns for each tap its number among these.
    pub(super) fn slots(&self) -> Vec<Option<usize>> {
        let mut next = 0..;
        let [down, right] = &self.meetings;
        let pairs = down.iter().flat_map(|h| right.iter().map(move |w| h.count * w.count));
        pairs.map(|count| (count > 0 && self.batch > 0).then(|| next.next()).flatten()).collect()
    }

    /// Numbers to work in.
    pub(super) fn scratch_len(&self, slots: &[Option<usize>]) -> usize {
        match (self.taps(), self.slabs(slots)) {
            (1, 1) => 0,
            (_, slabs) => slabs * self.slab_len(slots),
        }
    }

    /// Sums of all taps that are used.
    fn slab_len(&self, slots: &[Option<usize>]) -> usize {
        slots.iter().flatten().count() * self.x.count * self.y.count
    }

    /// Returns the number of slabs of images that have sums of their own.
    fn slabs(&self, slots: &[Option<usize>]) -> usize {
        let units = slots.iter().flatten().count() * self.y.count.div_ceil(ROWS);
        let are_far = self.batch * (self.x.image_len() + self.y.image_len()) > FAR;
        let size = self.slab_len(slots);
        let shared = units < FEW_UNITS && size <= SMALL || are_far && size <= SMALL_OF_FAR;
        if shared && self.batch >= SLABS { SLABS } else { 1 }
    }

    /// Writes the gradient of the kernels `[channels of y, channels of x, taps]`. The processor has AVX-512.
    pub(super) fn compute_kernels(
        &self,
        (pool, parts): (Option<&ThreadPool>, usize),
        slots: &[Option<usize>],
        room: &mut [f32],
        [x, y]: [&[f32]; 2],
        dk: &mut [f32],
    ) -> Result<(), KernelError> {
        if slots.iter().all(Option::is_none) {
            dk.fill(0.0);
            return Ok(());
        }
        let slabs = self.slabs(slots);
        if (self.taps(), slabs) == (1, 1) {
            return self.sum_slabs((pool, parts), slots, [x, y], dk);
        }
        self.sum_slabs((pool, parts), slots, [x, y], room)?;
        let sums = added_up(room, self.slab_len(slots));
        if self.taps() == 1 {
            dk.copy_from_slice(sums);
            return Ok(());
        }
        let row = self.x.count * self.taps();
        let each = self.y.count.div_ceil(parts.max(1));
        let pieces = dk.chunks_mut(each * row).enumerate().collect();
        parallel::run_parts(pool, pieces, &|(piece, dk): (usize, &mut [f32])| {
            for (index, to) in dk.chunks_mut(row).enumerate() {
                let from = sums.get((piece * each + index) * self.x.count..).unwrap_or_default();
                // SAFETY: the processor has AVX-512, as the caller says.
                unsafe { interleave_taps(from, self.x.count * self.y.count, slots, to) };
            }
            Ok(())
        })
    }

    /// Writes the sums of each tap that is used, `[slab, slot, channel of y, channel of x]`.
    fn sum_slabs(
        &self,
        (pool, parts): (Option<&ThreadPool>, usize),
        slots: &[Option<usize>],
        [x, y]: [&[f32]; 2],
        to: &mut [f32],
    ) -> Result<(), KernelError> {
        let units = self.units(slots);
        let cost = |unit: &TapUnit| {
            let [h, w] = self.meeting(unit.tap);
            h.count * w.count * unit.rows.len()
        };
        let costs: Vec<usize> = units.iter().map(cost).collect();
        let panels: Vec<Panel> = cut_panels(self.x.count).collect();
        let target = VectorTarget::new(to);
        let (slabs, size) = (self.slabs(slots), self.slab_len(slots));
        let shares = if parts > 1 { (parts * SHARES).div_ceil(slabs) } else { 1 };
        let slab = |slab| {
            let images = split_range(self.batch, slabs, slab);
            cut_by_cost(&costs, shares).into_iter().map(move |units| (slab, images.clone(), units))
        };
        let pieces = (0..slabs).flat_map(slab).collect();
        parallel::run_parts(pool, pieces, &|(slab, images, part): (usize, _, Range<usize>)| {
            let units = &units[part];
            let mut begun = vec![false; units.len()];
            for block in &self.blocks(images) {
                for (unit, begun) in units.iter().zip(&mut begun) {
                    self.sum_unit(unit, block, &panels, [x, y], (target, slab * size, begun));
                }
            }
            Ok(())
        })
    }

    fn units(&self, slots: &[Option<usize>]) -> Vec<TapUnit> {
        let used = slots.iter().enumerate().filter_map(|(tap, slot)| Some((tap, (*slot)?)));
        let chunks = self.y.count.div_ceil(ROWS);
        let units = used.flat_map(|(tap, slot)| {
            let rows = move |chunk| split_range(self.y.count, chunks, chunk);
            (0..chunks).map(move |chunk| TapUnit { tap, slot, rows: rows(chunk) })
        });
        units.collect()
    }

    /// Parts of images of which all taps and channels are summed before the next is read.
    fn blocks(&self, images: Range<usize>) -> Vec<ImageBlock> {
        let row = self.y.place_steps()[0] + self.strides[0] * self.x.place_steps()[0];
        let rows = self.y.extents[0];
        if row * rows > NEAR {
            let each = (NEAR / row).max(1);
            let of_image = |image| {
                let part = move |start| ImageBlock {
                    images: image..image + 1,
                    rows: start..rows.min(start + each),
                };
                (0..rows).step_by(each).map(part)
            };
            return images.flat_map(of_image).collect();
        }
        let (each, end) = ((NEAR / (row * rows).max(1)).max(1), images.end);
        let block = |start| ImageBlock { images: start..end.min(start + each), rows: 0..rows };
        images.step_by(each).map(block).collect()
    }

    fn meeting(&self, tap: usize) -> [WindowMeeting; 2] {
        let across = self.meetings[1].len();
        [self.meetings[0][tap / across], self.meetings[1][tap % across]]
    }

    /// Adds up a range of rows for one tap over a block; the sums of the slab begin at `first`.
    fn sum_unit(
        &self,
        unit: &TapUnit,
        block: &ImageBlock,
        panels: &[Panel],
        [x, y]: [&[f32]; 2],
        (to, first, begun): (VectorTarget<'_>, usize, &mut bool),
    ) {
        let [h, w] = self.meeting(unit.tap);
        let Some(h) = meeting_within(h, &block.rows, self.strides[0]) else { return };
        let (base, nest) = self.nest_loops(&block.images, [h, w]);
        let Some(&(_, steps)) = nest.last() else { return };
        let count = unit.rows.len();
        let mut places = PlaceRuns::new(base, &nest);
        loop {
            let runs = places.next_block();
            if runs.is_empty() {
                return;
            }
            for panel in panels {
                let tiles = count.div_ceil(rows_beside(panel.vectors));
                for tile in 0..tiles {
                    let rows = split_range(count, tiles, tile);
                    let row = unit.rows.start + rows.start;
                    let at = first + (unit.slot * self.y.count + row) * self.x.count;
                    let outer = Outer {
                        wide: &x[panel.start * LANES..],
                        narrow: &y[row..],
                        steps,
                        runs,
                        to,
                        at: [at + panel.start * LANES, self.x.count],
                        rows: rows.len(),
                        vectors: panel.vectors,
                        last: panel.last,
                        add: *begun,
                    };
                    // SAFETY: the processor has AVX-512, as the caller of `compute_kernels` says; units have their own rows.
                    unsafe { accumulate_outer(&outer) };
                }
            }
            *begun = true;
        }
    }

    /// Finds all places at which a tap meets images: where the first lies, and loops as few as possible.
    fn nest_loops(&self, images: &Range<usize>, [h, w]: [WindowMeeting; 2]) -> ([usize; 2], Nest) {
        let [x, y] = [self.x.place_steps(), self.y.place_steps()];
        let base = [
            images.start * self.x.image_len() + h.source * x[0] + w.source * x[1] + self.x.first,
            images.start * self.y.image_len() + h.place * y[0] + w.place * y[1] + self.y.first,
        ];
        let loops = [
            (images.len(), [self.x.image_len(), self.y.image_len()]),
            (h.count, [self.strides[0] * x[0], y[0]]),
            (w.count, [self.strides[1] * x[1], y[1]]),
        ];
        let mut nest: Nest = Vec::new();
        for (count, steps) in loops {
            if count == 1 {
                continue;
            }
            match nest.last_mut() {
                Some((outer, before)) if *before == steps.map(|step| step * count) => {
                    (*outer, *before) = (*outer * count, steps);
                }
                _ => nest.push((count, steps)),
            }
        }
        if nest.is_empty() {
            nest.push((1, [0; 2]));
        }
        (base, nest)
    }
}

/// Goes over places run by run.
struct PlaceRuns<'a> {
    base: [usize; 2],
    outer: &'a [(usize, [usize; 2])],
    inner: (usize, [usize; 2]),
    /// The next run: its index among the outer loops' iterations, and the first of its places that is left.
    next: [usize; 2],
    iterations: usize,
    runs: [PlaceRun; PLACES],
}

impl<'a> PlaceRuns<'a> {
    fn new(base: [usize; 2], nest: &'a Nest) -> Self {
        let (inner, outer) = nest.split_last().expect("there is a loop");
        let iterations = outer.iter().map(|(count, _)| count).product();
        let none = PlaceRun { wide: 0, narrow: 0, count: 0 };
        Self { base, outer, inner: *inner, next: [0; 2], iterations, runs: [none; PLACES] }
    }

    /// The next places; none when all have been.
    fn next_block(&mut self) -> &[PlaceRun] {
        let (mut count, mut left) = (0, PLACES);
        while left > 0 && self.next[0] < self.iterations {
            let [iteration, start] = self.next;
            let (all, steps) = self.inner;
            let taken = left.min(all - start);
            let mut at = [0, 1].map(|side| self.base[side] + start * steps[side]);
            let mut rest = iteration;
            for (extent, steps) in self.outer.iter().rev() {
                (0..2).for_each(|side| at[side] += rest % extent * steps[side]);
                rest /= extent;
            }
            self.runs[count] = PlaceRun { wide: at[0], narrow: at[1], count: taken };
            (count, left) = (count + 1, left - taken);
            self.next =
                if start + taken == all { [iteration + 1, 0] } else { [iteration, start + taken] };
        }
        &self.runs[..count]
    }
}
