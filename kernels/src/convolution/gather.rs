//! Convolution without columns: a tile of the result is summed in registers over all elements of the window, whose channels are
//! read where they lie (after Dukhan, "The Indirect Convolution Algorithm", arXiv 1907.02129). Kernels are packed once a call.
//!
//! Places of the result are grouped by the elements of the window that meet the image there ([`Class`]), so border is never
//! multiplied. Of a 3 x 3 kernel on an image of 1 x 1 one element of nine is.

use std::ops::Range;
use std::sync::Arc;

use graphc_ir::shard::split_range;

use super::axis::Class;
use super::pack::Kernels;
use crate::epilogue::Sink;
use crate::error::KernelError;
use crate::panels::{Panel, panels};
use crate::parallel::{self, with_rooms};
use crate::threads::ThreadPool;
use crate::vectors::{LANES, Rows, STRIP, Strip, Tap, Target, multiply};

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
/// So few rows read kernels where they lie.
const LITTLE: usize = 96;

/// Images in memory, and which channels of them take part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Rows of an image, and places of a row.
    pub extents: [usize; 2],
    /// Numbers of a place.
    pub width: usize,
    /// The first of them that takes part, and how many do.
    pub first: usize,
    pub count: usize,
}

impl Side {
    pub fn image(&self) -> usize {
        self.extents[0] * self.extents[1] * self.width
    }

    /// From one row, and one place, to the next.
    pub fn steps(&self) -> [usize; 2] {
        [self.extents[1] * self.width, self.width]
    }
}

/// A result each of whose places is a sum of products of places of `from`.
pub(super) struct Gather {
    pub batch: usize,
    pub from: Side,
    pub to: Side,
    /// Of h and w.
    pub classes: [Vec<Class>; 2],
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
struct Part {
    batch: usize,
    rows: Range<usize>,
}

/// The work of a part, and of all parts alike.
struct Work {
    part: Part,
    gather: Gather,
    shared: Vec<Shared>,
    units: Vec<Unit>,
}

/// A part of the result from one image on.
struct Piece {
    first: usize,
    work: Arc<Work>,
}

/// Kernels as they are multiplied.
struct Factors<'a> {
    panels: &'a [Panel],
    packed: &'a [f32],
    /// Rows of a panel.
    depth: usize,
    /// From row to row, of kernels that are not packed.
    stride: Option<usize>,
}

impl Factors<'_> {
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

/// How kernels are packed.
#[derive(Clone, Copy)]
pub(super) enum Pack {
    ByOutputs,
    ByInputs,
}

impl Pack {
    /// Whether kernels lie as they are needed: those of one element do, by inputs. For many rows that is worth less than what
    /// is read from places far apart costs.
    fn is_needless(self, slots: &[Option<usize>], rows: usize) -> bool {
        matches!(self, Self::ByInputs) && slots.len() == 1 && rows <= LITTLE
    }
}

/// Rows of the result of one pair of classes, times the columns of one panel.
struct Unit {
    class: [usize; 2],
    panel: usize,
    rows: Range<usize>,
}

/// The taps and places of a pair of classes.
struct Shared {
    taps: Vec<Tap>,
    /// Where the first tap's source and the result begin, of each row of places and of each place in a row.
    places: [Vec<(usize, usize)>; 2],
}

impl Gather {
    /// Of each tap its place among those that some result needs.
    pub fn slots(&self) -> Vec<Option<usize>> {
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
    pub fn room(&self, slots: &[Option<usize>], pack: Pack) -> usize {
        if pack.is_needless(slots, self.rows()) {
            return 0;
        }
        self.to.count.div_ceil(LANES) * LANES * self.depth(slots)
    }

    /// Places of all images of the result.
    fn rows(&self) -> usize {
        let [down, right] = self.classes.each_ref();
        let places =
            |classes: &[Class]| classes.iter().map(|class| class.places.len()).sum::<usize>();
        self.batch * places(down) * places(right)
    }

    /// Rows of a panel.
    fn depth(&self, slots: &[Option<usize>]) -> usize {
        slots.iter().flatten().count() * self.from.count
    }

    /// Computes the result for kernels that are packed into `room`, on as many threads. The processor has AVX-512.
    pub fn run(
        &self,
        (pool, parts): (Option<&ThreadPool>, usize),
        (kernels, pack): (Kernels<'_>, Pack),
        (room, words): (&mut [f32], &mut [i64]),
        from: &[f32],
        to: Sink<'_>,
    ) -> Result<(), KernelError> {
        let panels: Vec<Panel> = panels(self.to.count).collect();
        let depth = self.depth(kernels.slots);
        let as_they_are = pack.is_needless(kernels.slots, self.rows());
        if !as_they_are {
            packed((pool, parts), &panels, depth, (kernels, pack), room)?;
        }
        let factors = Factors {
            panels: &panels,
            packed: if as_they_are { kernels.data } else { room },
            depth,
            stride: as_they_are.then_some(self.to.count),
        };
        // SAFETY: units have their own places, and what follows reads them when they are there.
        let target = unsafe { Target::of(to.ptr()?, to.len()) };
        let shared = self.shared(kernels.slots);
        if let Some(each) = self.near(to, self.to.count * depth, parts) {
            let pieces = self.pieces(each, &factors, kernels.slots);
            return run_pieces((pool, parts), &pieces, &factors, from, (to, target, words));
        }
        let units = self.units(&panels, self.to.count * depth, parts);
        let costs: Vec<usize> =
            units.iter().map(|unit| self.cost(unit, &panels, &shared)).collect();
        parallel::run(pool, cut(&costs, parts * SHARES), &|part| {
            for unit in &units[part] {
                self.unit(unit, &shared, &factors, from, target);
            }
            Ok(())
        })?;
        to.finish_in((pool, parts), words)
    }

    /// How much memory [`Gather::run`] works in for what follows the result.
    pub fn words(parts: usize, to: Sink<'_>) -> usize {
        parts * SHARES * to.words()
    }

    /// How many images, or bands of rows of one image, are computed before what follows reads them from the cache; `None`
    /// where all at once stay in it, or nothing follows.
    fn near(&self, to: Sink<'_>, packed: usize, parts: usize) -> Option<Each> {
        let size = self.from.image() + self.to.image();
        if !to.is_followed() || self.batch * size <= KEPT * parts {
            return None;
        }
        if size > KEPT {
            return Some(Each::Bands(size.div_ceil(KEPT).min(self.to.extents[0])));
        }
        // Kernels are read again for each part.
        let worthwhile =
            (KEPT / size).max(if packed > KEPT { packed / self.to.image() } else { 1 });
        Some(Each::Images(worthwhile.min(self.batch.div_ceil(2 * parts))))
    }

    /// The result in parts that stay in the cache.
    fn pieces(&self, each: Each, factors: &Factors<'_>, slots: &[Option<usize>]) -> Vec<Piece> {
        let rows = self.to.extents[0];
        let [few, bands] = match each {
            Each::Images(count) => [count, 1],
            Each::Bands(count) => [1, count],
        };
        let starts = (0..self.batch).step_by(few);
        let places = starts.flat_map(|first| (0..bands).map(move |band| (first, band)));
        let mut pieces: Vec<Piece> = Vec::new();
        for (first, band) in places {
            let part =
                Part { batch: few.min(self.batch - first), rows: split_range(rows, bands, band) };
            let known = pieces.iter().find(|piece| piece.work.part == part);
            let work = known.map(|piece| Arc::clone(&piece.work));
            let work = work.unwrap_or_else(|| Arc::new(self.work(part, factors, slots)));
            pieces.push(Piece { first, work });
        }
        pieces
    }

    /// The work on some rows of some images.
    fn work(&self, part: Part, factors: &Factors<'_>, slots: &[Option<usize>]) -> Work {
        let within = |class: &Class| Class {
            taps: class.taps.clone(),
            places: class
                .places
                .iter()
                .filter(|place| part.rows.contains(&place.0))
                .copied()
                .collect(),
        };
        let classes = [self.classes[0].iter().map(within).collect(), self.classes[1].clone()];
        let gather = Gather { batch: part.batch, classes, ..*self };
        let shared = gather.shared(slots);
        let units = gather.units(factors.panels, self.to.count * factors.depth, 1);
        Work { part, gather, shared, units }
    }

    /// The taps and places of each pair of classes, those of h first.
    fn shared(&self, slots: &[Option<usize>]) -> Vec<Shared> {
        let pairs =
            self.classes[0].iter().flat_map(|h| self.classes[1].iter().map(move |w| [h, w]));
        let [from, to] = [self.from.steps(), self.to.steps()];
        let shared = |pair: [&Class; 2]| {
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
            Shared { taps: taps.map(tap).collect(), places }
        };
        pairs.map(shared).collect()
    }

    /// All work, in an order in which what is read again is near; at least as many units as threads share, where rows allow.
    fn units(&self, panels: &[Panel], packed: usize, parts: usize) -> Vec<Unit> {
        let mut units = Vec::new();
        let shares = if parts > 1 { (parts * SHARES).div_ceil(panels.len().max(1)) } else { 1 };
        for (h, down) in self.classes[0].iter().enumerate() {
            for (w, right) in self.classes[1].iter().enumerate() {
                let rows = self.batch * down.places.len() * right.places.len();
                let pieces =
                    rows.div_ceil(ROWS).max(even(rows / TOGETHER, shares, parts)).min(rows);
                for piece in 0..pieces {
                    let rows = split_range(rows, pieces, piece);
                    let unit = |panel| Unit { class: [h, w], panel, rows: rows.clone() };
                    units.extend((0..panels.len()).map(unit));
                }
            }
        }
        // Either all kernels are read for each unit's rows, or all rows for each panel.
        let again = units.len() / panels.len().max(1) * packed;
        let rows = self.rows() * self.from.count * (panels.len() - 1);
        if packed > NEAR && rows < again {
            units.sort_by_key(|unit| unit.panel);
        }
        units
    }

    fn cost(&self, unit: &Unit, panels: &[Panel], shared: &[Shared]) -> usize {
        let taps = shared[unit.class[0] * self.classes[1].len() + unit.class[1]].taps.len();
        unit.rows.len() * panels[unit.panel].vectors * (taps * self.from.count + 1)
    }

    fn unit(
        &self,
        unit: &Unit,
        shared: &[Shared],
        factors: &Factors<'_>,
        from: &[f32],
        to: Target<'_>,
    ) {
        let shared = &shared[unit.class[0] * self.classes[1].len() + unit.class[1]];
        let (panel, (packed, stride)) = factors.panel(unit.panel);
        let [down, right] = &shared.places;
        let [from_image, to_image] = [self.from.image(), self.to.image()];
        let column = self.to.first + panel.start * LANES;
        let mut index = Self::place(unit.rows.start, [down.len(), right.len()]);
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
        let strip = Strip {
            from,
            to,
            rows: Rows::Listed(rows),
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
        // SAFETY: the processor has AVX-512, as the caller of `run` says; units have their own places.
        unsafe { multiply(&strip) };
    }

    /// Which image, row of places and place in the row a row is.
    fn place(row: usize, [down, right]: [usize; 2]) -> [usize; 3] {
        [row / right / down, row / right % down, row % right]
    }
}

/// Computes pieces, and does with each what follows.
fn run_pieces(
    (pool, parts): (Option<&ThreadPool>, usize),
    pieces: &[Piece],
    factors: &Factors<'_>,
    from: &[f32],
    (to, target, words): (Sink<'_>, Target<'_>, &mut [i64]),
) -> Result<(), KernelError> {
    let shares = (parts * SHARES).min(pieces.len());
    let ranges = (0..shares).map(|share| split_range(pieces.len(), shares, share));
    parallel::run(pool, with_rooms(ranges, words, to.words()), &|(range, words)| {
        for Piece { first, work } in &pieces[range] {
            let Work { part, gather, shared, units } = &**work;
            let from = &from[first * gather.from.image()..];
            let start = first * gather.to.image();
            for unit in units {
                gather.unit(unit, shared, factors, from, target.starting_at(start));
            }
            let row = gather.to.steps()[0];
            let end = start + (part.batch - 1) * gather.to.image() + part.rows.end * row;
            // SAFETY: the piece is this thread's: whole rows of one image, or whole images.
            unsafe { to.follow(start + part.rows.start * row..end, words) }?;
        }
        Ok(())
    })
}

/// Packs kernels panel by panel, each in pieces where threads share few.
fn packed(
    (pool, parts): (Option<&ThreadPool>, usize),
    panels: &[Panel],
    depth: usize,
    (kernels, pack): (Kernels<'_>, Pack),
    room: &mut [f32],
) -> Result<(), KernelError> {
    let channels = match pack {
        Pack::ByOutputs => kernels.inputs,
        Pack::ByInputs => kernels.outputs,
    };
    let shares = if panels.len() < parts * SHARES { parts.min(channels).max(1) } else { 1 };
    let room = Target::new(room);
    let pieces = panels.iter().flat_map(|&panel| (0..shares).map(move |share| (panel, share)));
    parallel::run(pool, pieces.collect(), &|(panel, share)| {
        let channels = split_range(channels, shares, share);
        let to = room.starting_at(panel.start * LANES * depth);
        // SAFETY: the processor has AVX-512, as the caller of `run` says; pieces have channels of their own.
        unsafe {
            match pack {
                Pack::ByOutputs => kernels.by_outputs(panel, channels, to),
                Pack::ByInputs => kernels.by_inputs(panel, channels, to),
            }
        }
        Ok(())
    })
}

/// How many pieces threads share, up to `most`, where there is work for `enough`: as many for each thread.
fn even(enough: usize, most: usize, threads: usize) -> usize {
    if most == 1 { 1 } else { (enough.min(most) / threads).max(1) * threads }
}

/// Ranges of about equal cost, as many as there are parts.
pub(super) fn cut(costs: &[usize], parts: usize) -> Vec<Range<usize>> {
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
