//! Convolution without columns: a tile of the result is summed in registers over all elements of the window, whose channels are
//! read where they lie (after Dukhan, "The Indirect Convolution Algorithm", arXiv 1907.02129). Kernels are packed once a call.
//!
//! Places of the result are grouped by the elements of the window that meet the image there ([`PlaceClass`]), so border is never
//! multiplied. Of a 3 x 3 kernel on an image of 1 x 1 one element of nine is.

use std::ops::Range;
use std::sync::Arc;

use graphc_ir::shard::split_range;

use super::axis::PlaceClass;
use super::pack::Kernels;
use crate::error::KernelError;
use crate::panels::{Panel, cut_panels};
use crate::parallel::{self, with_rooms};
use crate::sink::ResultSink;
use crate::threads::ThreadPool;
use crate::vectors::{LANES, RowStarts, STRIP, Tap, VectorStrip, VectorTarget, multiply_strip};

/// Rows of a unit of work, at most.
const ROWS: usize = STRIP;
/// Rows that stay together, at least, when threads share them: some times what is multiplied at a time.
const TOGETHER: usize = 48;
/// Numbers that stay in the cache while others go by.
const NEAR: usize = 1 << 18;
/// Numbers of images that a core's second cache keeps until what follows has read them.
const KEPT: usize = 1 << 16;
/// Shares of the work for each thread: who is done sooner takes another.
pub(super) const SHARES: usize = 4;
/// The most rows for which kernels are read where they lie.
const LITTLE: usize = 96;

/// Images in memory, and which channels of them take part.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageSide {
    /// Rows of an image, and places of a row.
    pub extents: [usize; 2],
    /// Numbers of a place.
    pub width: usize,
    /// The first of them that takes part, and how many do.
    pub first: usize,
    pub count: usize,
}

impl ImageSide {
    pub(super) fn image_len(&self) -> usize {
        self.extents[0] * self.extents[1] * self.width
    }

    /// Returns the distances from one row, and from one place, to the next.
    pub(super) fn place_steps(&self) -> [usize; 2] {
        [self.extents[1] * self.width, self.width]
    }
}

/// A result each of whose places is a sum of products of places of `from`.
pub(super) struct ConvolutionGather {
    pub batch: usize,
    pub from: ImageSide,
    pub to: ImageSide,
    /// The classes of places along h and along w.
    pub classes: [Vec<PlaceClass>; 2],
    /// Height and width of the kernels.
    pub kernel: [usize; 2],
}

/// A part that is computed before what follows reads it.
#[derive(Clone, Copy)]
enum Each {
    Images(usize),
    Bands(usize),
}

/// Rows of some images of the result: of several all.
#[derive(PartialEq)]
struct GatherPart {
    batch: usize,
    rows: Range<usize>,
}

/// The work of a part, and of all parts alike.
struct GatherWork {
    part: GatherPart,
    gather: ConvolutionGather,
    shared: Vec<SharedTaps>,
    units: Vec<GatherUnit>,
}

/// A part of the result from one image on.
struct GatherPiece {
    first: usize,
    work: Arc<GatherWork>,
}

/// Kernels as they are multiplied.
struct PackedFactors<'a> {
    panels: &'a [Panel],
    packed: &'a [f32],
    /// Rows of a panel.
    depth: usize,
    /// The distance from row to row, of kernels that are not packed.
    stride: Option<usize>,
}

impl PackedFactors<'_> {
    /// A panel, its numbers and how far one row lies from the next.
    fn panel(&self, index: usize) -> (Panel, (&[f32], usize)) {
        let panel = self.panels[index];
        let (start, width) = (panel.start * LANES, panel.vectors * LANES);
        let numbers = match self.stride {
            Some(stride) => (&self.packed[start..], stride),
            None => (&self.packed[start * self.depth..][..width * self.depth], width),
        };
        (panel, numbers)
    }
}

/// The order in which kernels are packed.
#[derive(Clone, Copy)]
pub(super) enum KernelPacking {
    ByOutputs,
    ByInputs,
}

impl KernelPacking {
    /// Whether kernels lie as they are needed: those of one element do, by inputs. For many rows that is worth less than what
    /// is read from places far apart costs.
    fn is_needless(self, slots: &[Option<usize>], rows: usize) -> bool {
        matches!(self, Self::ByInputs) && slots.len() == 1 && rows <= LITTLE
    }
}

/// Rows of the result of one pair of classes, times the columns of one panel.
struct GatherUnit {
    class: [usize; 2],
    panel: usize,
    rows: Range<usize>,
}

/// The taps and places of a pair of classes.
struct SharedTaps {
    taps: Vec<Tap>,
    /// The positions of the first tap's source and of the result, for each row of places and for each place in a row.
    places: [Vec<(usize, usize)>; 2],
}

impl ConvolutionGather {
    /// Numbers the taps that some result needs. Returns for each tap its number among these.
    pub(super) fn slots(&self) -> Vec<Option<usize>> {
        let used = self.classes.each_ref().map(|classes| {
            let taps = classes.iter().flat_map(|class| &class.taps);
            taps.map(|&(tap, _)| tap).collect::<std::collections::BTreeSet<usize>>()
        });
        let mut next = 0..;
        let taps = (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j)));
        let slot = |(i, j)| (used[0].contains(&i) && used[1].contains(&j)).then(|| next.next());
        taps.map(slot).map(Option::flatten).collect()
    }

    /// Numbers of packed kernels.
    pub(super) fn scratch_len(&self, slots: &[Option<usize>], pack: KernelPacking) -> usize {
        if pack.is_needless(slots, self.count_rows()) {
            return 0;
        }
        self.to.count.div_ceil(LANES) * LANES * self.depth(slots)
    }

    /// Places of all images of the result.
    fn count_rows(&self) -> usize {
        let [down, right] = self.classes.each_ref();
        let places =
            |classes: &[PlaceClass]| classes.iter().map(|class| class.places.len()).sum::<usize>();
        self.batch * places(down) * places(right)
    }

    /// Rows of a panel.
    fn depth(&self, slots: &[Option<usize>]) -> usize {
        slots.iter().flatten().count() * self.from.count
    }

    /// Computes the result for kernels that are packed into `room`, on as many threads. The processor has AVX-512.
    pub(super) fn compute_result(
        &self,
        (pool, parts): (Option<&ThreadPool>, usize),
        (kernels, pack): (Kernels<'_>, KernelPacking),
        (room, words): (&mut [f32], &mut [i64]),
        from: &[f32],
        to: ResultSink<'_>,
    ) -> Result<(), KernelError> {
        let panels: Vec<Panel> = cut_panels(self.to.count).collect();
        let depth = self.depth(kernels.slots);
        let as_they_are = pack.is_needless(kernels.slots, self.count_rows());
        if !as_they_are {
            pack_kernels((pool, parts), &panels, depth, (kernels, pack), room)?;
        }
        let factors = PackedFactors {
            panels: &panels,
            packed: if as_they_are { kernels.data } else { room },
            depth,
            stride: as_they_are.then_some(self.to.count),
        };
        // SAFETY: units have their own places, and what follows reads them when they are there.
        let target = unsafe { VectorTarget::from_raw(to.ptr()?, to.len()) };
        let shared = self.pair_classes(kernels.slots);
        if let Some(each) = self.choose_piece_size(to, self.to.count * depth, parts) {
            let pieces = self.pieces(each, &factors, kernels.slots);
            return run_pieces((pool, parts), &pieces, &factors, from, (to, target, words));
        }
        let units = self.units(&panels, self.to.count * depth, parts);
        let costs: Vec<usize> =
            units.iter().map(|unit| self.cost(unit, &panels, &shared)).collect();
        parallel::run_parts(pool, cut_by_cost(&costs, parts * SHARES), &|part| {
            for unit in &units[part] {
                self.compute_unit(unit, &shared, &factors, from, target);
            }
            Ok(())
        })?;
        to.finish_in((pool, parts), words)
    }

    /// Returns the number of words of memory that the chain behind [`ConvolutionGather::compute_result`] works in.
    pub(super) fn scratch_words(parts: usize, to: ResultSink<'_>) -> usize {
        parts * SHARES * to.scratch_words()
    }

    /// Chooses the number of images, or of bands of one image, that are computed before the chain behind the result reads them from the
    /// cache. It is `None` where all images together stay in the cache, or no chain follows.
    fn choose_piece_size(&self, to: ResultSink<'_>, packed: usize, parts: usize) -> Option<Each> {
        let size = self.from.image_len() + self.to.image_len();
        if !to.is_followed() || self.batch * size <= KEPT * parts {
            return None;
        }
        if size > KEPT {
            return Some(Each::Bands(size.div_ceil(KEPT).min(self.to.extents[0])));
        }
        // Kernels are read again for each part.
        let worthwhile =
            (KEPT / size).max(if packed > KEPT { packed / self.to.image_len() } else { 1 });
        Some(Each::Images(worthwhile.min(self.batch.div_ceil(2 * parts))))
    }

    /// The result in parts that stay in the cache.
    fn pieces(
        &self,
        each: Each,
        factors: &PackedFactors<'_>,
        slots: &[Option<usize>],
    ) -> Vec<GatherPiece> {
        let rows = self.to.extents[0];
        let [few, bands] = match each {
            Each::Images(count) => [count, 1],
            Each::Bands(count) => [1, count],
        };
        let starts = (0..self.batch).step_by(few);
        let places = starts.flat_map(|first| (0..bands).map(move |band| (first, band)));
        let mut pieces: Vec<GatherPiece> = Vec::new();
        for (first, band) in places {
            let part = GatherPart {
                batch: few.min(self.batch - first),
                rows: split_range(rows, bands, band),
            };
            let known = pieces.iter().find(|piece| piece.work.part == part);
            let work = known.map(|piece| Arc::clone(&piece.work));
            let work = work.unwrap_or_else(|| Arc::new(self.plan_work(part, factors, slots)));
            pieces.push(GatherPiece { first, work });
        }
        pieces
    }

    /// The work on some rows of some images.
    fn plan_work(
        &self,
        part: GatherPart,
        factors: &PackedFactors<'_>,
        slots: &[Option<usize>],
    ) -> GatherWork {
        let within = |class: &PlaceClass| PlaceClass {
            taps: class.taps.clone(),
            places: class
                .places
                .iter()
                .filter(|place| part.rows.contains(&place.0))
                .copied()
                .collect(),
        };
        let classes = [self.classes[0].iter().map(within).collect(), self.classes[1].clone()];
        let gather = ConvolutionGather { batch: part.batch, classes, ..*self };
        let shared = gather.pair_classes(slots);
        let units = gather.units(factors.panels, self.to.count * factors.depth, 1);
        GatherWork { part, gather, shared, units }
    }

    /// The taps and places of each pair of classes, those of h first.
    fn pair_classes(&self, slots: &[Option<usize>]) -> Vec<SharedTaps> {
        let pairs =
            self.classes[0].iter().flat_map(|h| self.classes[1].iter().map(move |w| [h, w]));
        let [from, to] = [self.from.place_steps(), self.to.place_steps()];
        let shared = |pair: [&PlaceClass; 2]| {
            let taps = pair[0].taps.iter().flat_map(|&h| pair[1].taps.iter().map(move |&w| [h, w]));
            let tap = |[(i, down), (j, right)]: [(usize, isize); 2]| Tap {
                ahead: down * from[0] as isize + right * from[1] as isize,
                slot: slots[i * self.kernel[1] + j].unwrap_or_default(),
            };
            let places = [0, 1].map(|dim| {
                let place =
                    |&(place, source): &(usize, usize)| (source * from[dim], place * to[dim]);
                pair[dim].places.iter().map(place).collect()
            });
            SharedTaps { taps: taps.map(tap).collect(), places }
        };
        pairs.map(shared).collect()
    }

    /// All work, in an order in which what is read again is near; at least as many units as threads share, where rows allow.
    fn units(&self, panels: &[Panel], packed: usize, parts: usize) -> Vec<GatherUnit> {
        let mut units = Vec::new();
        let shares = if parts > 1 { (parts * SHARES).div_ceil(panels.len().max(1)) } else { 1 };
        for (h, down) in self.classes[0].iter().enumerate() {
            for (w, right) in self.classes[1].iter().enumerate() {
                let rows = self.batch * down.places.len() * right.places.len();
                let pieces = rows
                    .div_ceil(ROWS)
                    .max(balance_pieces(rows / TOGETHER, shares, parts))
                    .min(rows);
                for piece in 0..pieces {
                    let rows = split_range(rows, pieces, piece);
                    let unit = |panel| GatherUnit { class: [h, w], panel, rows: rows.clone() };
                    units.extend((0..panels.len()).map(unit));
                }
            }
        }
        // Either all kernels are read for each unit's rows, or all rows for each panel.
        let again = units.len() / panels.len().max(1) * packed;
        let rows = self.count_rows() * self.from.count * (panels.len() - 1);
        if packed > NEAR && rows < again {
            units.sort_by_key(|unit| unit.panel);
        }
        units
    }

    fn cost(&self, unit: &GatherUnit, panels: &[Panel], shared: &[SharedTaps]) -> usize {
        let taps = shared[unit.class[0] * self.classes[1].len() + unit.class[1]].taps.len();
        unit.rows.len() * panels[unit.panel].vectors * (taps * self.from.count + 1)
    }

    fn compute_unit(
        &self,
        unit: &GatherUnit,
        shared: &[SharedTaps],
        factors: &PackedFactors<'_>,
        from: &[f32],
        to: VectorTarget<'_>,
    ) {
        let shared = &shared[unit.class[0] * self.classes[1].len() + unit.class[1]];
        let (panel, (packed, stride)) = factors.panel(unit.panel);
        let [down, right] = &shared.places;
        let [from_image, to_image] = [self.from.image_len(), self.to.image_len()];
        let column = self.to.first + panel.start * LANES;
        let mut index = Self::split_row_index(unit.rows.start, [down.len(), right.len()]);
        let mut rows = [(0, 0); ROWS];
        let rows = &mut rows[..unit.rows.len()];
        for row in &mut *rows {
            let [image, h, w] = index;
            *row = (
                image * from_image + down[h].0 + right[w].0 + self.from.first,
                image * to_image + down[h].1 + right[w].1 + column,
            );
            index[2] += 1;
            if index[2] == right.len() {
                index = if h + 1 == down.len() { [image + 1, 0, 0] } else { [image, h + 1, 0] };
            }
        }
        let strip = VectorStrip {
            from,
            to,
            rows: RowStarts::Listed(rows),
            taps: &shared.taps,
            channels: self.from.count,
            step: 1,
            panel: packed,
            stride,
            vectors: panel.vectors,
            last: panel.last,
            scale: 1.0,
            add: false,
            next: &[],
        };
        // SAFETY: the processor has AVX-512, as the caller of `compute_result` says; units have their own places.
        unsafe { multiply_strip(&strip) };
    }

    /// Splits the index of a row into the image, the row of places and the place in that row.
    fn split_row_index(row: usize, [down, right]: [usize; 2]) -> [usize; 3] {
        [row / right / down, row / right % down, row % right]
    }
}

/// Computes pieces, and does with each what follows.
fn run_pieces(
    (pool, parts): (Option<&ThreadPool>, usize),
    pieces: &[GatherPiece],
    factors: &PackedFactors<'_>,
    from: &[f32],
    (to, target, words): (ResultSink<'_>, VectorTarget<'_>, &mut [i64]),
) -> Result<(), KernelError> {
    let shares = (parts * SHARES).min(pieces.len());
    let ranges = (0..shares).map(|share| split_range(pieces.len(), shares, share));
    parallel::run_parts(pool, with_rooms(ranges, words, to.scratch_words()), &|(range, words)| {
        for GatherPiece { first, work } in &pieces[range] {
            let GatherWork { part, gather, shared, units } = &**work;
            let from = &from[first * gather.from.image_len()..];
            let start = first * gather.to.image_len();
            for unit in units {
                gather.compute_unit(unit, shared, factors, from, target.starting_at(start));
            }
            let row = gather.to.place_steps()[0];
            let end = start + (part.batch - 1) * gather.to.image_len() + part.rows.end * row;
            // SAFETY: the piece is this thread's: whole rows of one image, or whole images.
            unsafe { to.follow_part(start + part.rows.start * row..end, words) }?;
        }
        Ok(())
    })
}

/// Packs kernels panel by panel, each in pieces where threads share few.
fn pack_kernels(
    (pool, parts): (Option<&ThreadPool>, usize),
    panels: &[Panel],
    depth: usize,
    (kernels, pack): (Kernels<'_>, KernelPacking),
    room: &mut [f32],
) -> Result<(), KernelError> {
    let channels = match pack {
        KernelPacking::ByOutputs => kernels.inputs,
        KernelPacking::ByInputs => kernels.outputs,
    };
    let shares = if panels.len() < parts * SHARES { parts.min(channels).max(1) } else { 1 };
    let room = VectorTarget::new(room);
    let pieces = panels.iter().flat_map(|&panel| (0..shares).map(move |share| (panel, share)));
    parallel::run_parts(pool, pieces.collect(), &|(panel, share)| {
        let channels = split_range(channels, shares, share);
        let to = room.starting_at(panel.start * LANES * depth);
        // SAFETY: the processor has AVX-512, as the caller of `compute_result` says; pieces have channels of their own.
        unsafe {
            match pack {
                KernelPacking::ByOutputs => kernels.by_outputs(panel, channels, to),
                KernelPacking::ByInputs => kernels.by_inputs(panel, channels, to),
            }
        }
        Ok(())
    })
}

/// Returns the number of pieces that threads share: `enough`, but at most `most`, rounded down to a multiple of the number of threads and
/// at least one for each of them. Where `most` is 1, it is 1.
fn balance_pieces(enough: usize, most: usize, threads: usize) -> usize {
    if most == 1 { 1 } else { (enough.min(most) / threads).max(1) * threads }
}

/// Ranges of about equal cost, as many as there are parts.
pub(super) fn cut_by_cost(costs: &[usize], parts: usize) -> Vec<Range<usize>> {
    let all: usize = costs.iter().sum();
    let (mut ranges, mut start, mut sum) = (Vec::with_capacity(parts), 0, 0);
    for (index, cost) in costs.iter().enumerate() {
        sum += cost;
        if index + 1 == costs.len() || sum * parts >= all * (ranges.len() + 1) {
            ranges.push(start..index + 1);
            start = index + 1;
        }
    }
    ranges
}
