//! Convolution without columns: a tile of the result is summed in registers over all elements of the window, whose
//! channels are read where they lie (after Dukhan, "The Indirect Convolution Algorithm", arXiv 1907.02129). Kernels are
//! packed once a call. Places are taken by [`Class`], so border is never multiplied: in a picture of 1 x 1 one element of
//! nine is.

use std::ops::Range;

use super::axis::Class;
use super::pack::Kernels;
use crate::error::KernelError;
use crate::panels::{Panel, panels};
use crate::parallel;
use crate::threads::ThreadPool;
use crate::vectors::{LANES, STRIP, Strip, Tap, Target, multiply};

/// Rows of a unit of work, at most.
const ROWS: usize = STRIP;
/// Rows that stay together when threads share them: a multiple of all that are multiplied at a time.
const TOGETHER: usize = 24;
/// Numbers that stay in the cache while others go by.
const NEAR: usize = 1 << 18;
/// Shares of the work for each thread: who is done sooner takes another.
pub(super) const SHARES: usize = 4;
/// So few rows read kernels where they lie.
const LITTLE: usize = 96;

/// Pictures in memory, and which channels of them take part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Rows of a picture, and places of a row.
    pub extents: [usize; 2],
    /// Numbers of a place.
    pub width: usize,
    /// The first of them that takes part, and how many do.
    pub first: usize,
    pub count: usize,
}

impl Side {
    pub fn picture(&self) -> usize {
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

/// What two classes have in common.
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

    /// Places of all pictures of the result.
    fn rows(&self) -> usize {
        self.batch * self.to.extents[0] * self.to.extents[1]
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
        room: &mut [f32],
        from: &[f32],
        to: &mut [f32],
    ) -> Result<(), KernelError> {
        let panels = panels(self.to.count);
        let depth = self.depth(kernels.slots);
        let as_they_are = pack.is_needless(kernels.slots, self.rows());
        if !as_they_are {
            packed(pool, &panels, depth, (kernels, pack), room)?;
        }
        let shared = self.shared(kernels.slots);
        let units = self.units(&panels, self.to.count * depth, parts);
        let costs: Vec<usize> =
            units.iter().map(|unit| self.cost(unit, &panels, &shared)).collect();
        let (room, target) = (&*room, Target::new(to));
        parallel::run(pool, cut(&costs, parts * SHARES), |part| {
            for unit in &units[part] {
                let panel = panels[unit.panel];
                let width = panel.vectors * LANES;
                let packed = if as_they_are {
                    (&kernels.data[panel.start * LANES..], self.to.count)
                } else {
                    (&room[panel.start * LANES * depth..][..width * depth], width)
                };
                let [h, w] = unit.class;
                self.unit(
                    unit,
                    &shared[h * self.classes[1].len() + w],
                    (panel, packed),
                    from,
                    target,
                );
            }
            Ok(())
        })
    }

    /// What each pair of classes has in common, those of h first.
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
        let each = self.rows().div_ceil(shares).next_multiple_of(TOGETHER).min(ROWS);
        for (h, down) in self.classes[0].iter().enumerate() {
            for (w, right) in self.classes[1].iter().enumerate() {
                let rows = self.batch * down.places.len() * right.places.len();
                for start in (0..rows).step_by(each) {
                    let rows = start..rows.min(start + each);
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
        shared: &Shared,
        (panel, (packed, stride)): (Panel, (&[f32], usize)),
        from: &[f32],
        to: Target<'_>,
    ) {
        let [down, right] = &shared.places;
        let [from_picture, to_picture] = [self.from.picture(), self.to.picture()];
        let column = self.to.first + panel.start * LANES;
        let mut index = Self::place(unit.rows.start, [down.len(), right.len()]);
        let mut rows = [(0, 0); ROWS];
        let rows = &mut rows[..unit.rows.len()];
        for row in &mut *rows {
            let [picture, h, w] = index;
            *row = (
                picture * from_picture + down[h].0 + right[w].0 + self.from.first,
                picture * to_picture + down[h].1 + right[w].1 + column,
            );
            index[2] += 1;
            if index[2] == right.len() {
                index = if h + 1 == down.len() { [picture + 1, 0, 0] } else { [picture, h + 1, 0] };
            }
        }
        let strip = Strip {
            from,
            to,
            rows,
            taps: &shared.taps,
            channels: self.from.count,
            panel: packed,
            stride,
            vectors: panel.vectors,
            last: panel.last,
            scale: 1.0,
            add: false,
            next: None,
        };
        // SAFETY: the processor has AVX-512, as the caller of `run` says; units have their own places.
        unsafe { multiply(&strip) };
    }

    /// Which picture, row of places and place in the row a row is.
    fn place(row: usize, [down, right]: [usize; 2]) -> [usize; 3] {
        [row / right / down, row / right % down, row % right]
    }
}

/// Packs kernels panel by panel.
fn packed(
    pool: Option<&ThreadPool>,
    panels: &[Panel],
    depth: usize,
    (kernels, pack): (Kernels<'_>, Pack),
    mut room: &mut [f32],
) -> Result<(), KernelError> {
    let mut pieces = Vec::with_capacity(panels.len());
    for &panel in panels {
        let own = room.split_off_mut(..panel.vectors * LANES * depth);
        pieces.push((panel, own.unwrap_or_default()));
    }
    parallel::run(pool, pieces, |(panel, to)| {
        // SAFETY: the processor has AVX-512, as the caller of `run` says.
        unsafe {
            match pack {
                Pack::ByOutputs => kernels.by_outputs(panel, to),
                Pack::ByInputs => kernels.by_inputs(panel, to),
            }
        }
        Ok(())
    })
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
