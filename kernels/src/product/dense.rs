//! Products of `f32` by AVX-512, in tiles of up to 12 rows by 64 columns in registers (after Goto and van de Geijn, "Anatomy of
//! High-Performance Matrix Multiplication", 2008, section 4).
//!
//! Blocks of the second factor are packed in panels of 64 columns. The first factor is read where it lies. If its columns are the
//! rows in memory and lie far apart, as in the gradient of a weight, it is copied column by column.
//!
//! Stores and packing would otherwise wait for memory. So while a tile is summed, the lines of the result that are written next
//! and those of the panel that is packed next are asked for, a few at a time. Packing itself asks for lines a few rows ahead.
//!
//! Each element is summed along the inner extent in steps of 512, however threads cut the product.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use graphc_ir::shard::split_range;

use super::{Hands, Layout, ProductPart, Then, Write, by_rows};
use crate::error::KernelError;
use crate::panels::{Panel, Panels, copy_rows, cut_panels, load_rows, store_rows};
use crate::parallel;
use crate::product::transposed;
use crate::simd::{SimdLevel, simd_level};
use crate::vectors::{
    LANES, PrefetchLines, RowStarts, STRIP, Tap, VectorStrip, VectorTarget, multiply_strip,
};
use crate::view::OutputParts;

/// Places along the inner extent that are summed at a time: a row of the first factor stays in the nearest cache.
pub(super) const DEPTH: usize = 512;
/// Columns of the second factor that are packed at a time: 1 MiB, which stays in the second cache.
const COLUMNS: usize = 512;
/// Rows of the first factor that are packed at a time, where they are.
pub(super) const ROWS: usize = STRIP;
/// Rows of the first factor that are packed at a time where each part of the product is read at once together with other matrices, so that
/// caches keep all of them. (Of 24 to 240 the fastest in 2048 x 128 x 2048.)
const FEW_ROWS: usize = 96;
/// Matrices that are read behind parts of a product, at most, and asked for before.
const MOST_BESIDE: usize = 3;
/// Rows that stay together when threads share them: a multiple of all that are multiplied at a time.
pub(super) const ROWS_TOGETHER: usize = 24;
/// Parts for each thread, at most: who is done sooner takes another.
pub(super) const SHARES: usize = 4;
/// Rows that are asked for ahead of the one that is packed: where they lie a multiple of 4 KiB apart, all meet in places of the nearest
/// cache for 8 lines. (Of 4, 8, 16 and 32: 128 x 2048 x 2048 is 1.07 to 1.09 times as fast as without, but for 32.)
const AHEAD: usize = 8;
/// The greatest distance between columns of the first factor at which they are read in place, where the factor's rows are not contiguous.
/// (The gradients of attention are 1.01 to 1.03 times as fast as with packing, a gradient of 256 rows 1.01.)
const NEAR: usize = 256;
/// Columns of a panel.
const PANEL: usize = 64;
/// The number of rows below which packing would take longer than the product.
const FEW: usize = 16;

/// Whether products of these extents and layouts, of both factors and the result, are computed here.
pub(super) fn is_fast([rows, _, columns]: [usize; 3], layouts: [Layout; 3]) -> bool {
    let [.., to] = layouts;
    let rows = if to.column == 1 { rows } else { columns };
    let by_rows_or_columns = layouts.iter().all(|layout| layout.column == 1 || layout.row == 1);
    simd_level() == SimdLevel::Avx512 && by_rows_or_columns && rows >= FEW
}

/// Numbers that so many threads work in.
pub(super) fn scratch_len(extents: [usize; 3], threads: usize) -> usize {
    threads.max(1) * room_of_one(extents)
}

/// Returns the numbers that one thread works in. Either factor may be the second one, as the product may be written by columns.
fn room_of_one([rows, inner, columns]: [usize; 3]) -> usize {
    let longer = rows.max(columns);
    let columns = inner.min(DEPTH) * longer.min(COLUMNS).next_multiple_of(LANES);
    columns + inner.min(DEPTH) * longer.min(ROWS).next_multiple_of(LANES)
}

/// A product, or a part of one, whose result is written by rows.
#[derive(Clone, Copy)]
pub(super) struct DenseProduct<'a> {
    pub extents: [usize; 3],
    pub scale: f32,
    pub factors: [(&'a [f32], Layout); 2],
    pub to: VectorTarget<'a>,
    /// The position at which the result begins, and the distance from each row to the next.
    pub at: usize,
    pub stride: usize,
    pub add: bool,
}

/// Writes a product for which [`is_fast`]. Each element is summed in an order that follows from the inner extent alone.
pub(super) fn multiply_dense(
    extents: [usize; 3],
    scale: f32,
    factors: [(&[f32], Layout); 2],
    (out, to): (&mut [f32], Layout),
    write: Write,
    hands: Hands<'_>,
) {
    let (extents, factors, rows) = by_rows(extents, factors, to);
    let (to, add) = (VectorTarget::new(out), write == Write::Add);
    let whole = DenseProduct { extents, scale, factors, to, at: 0, stride: rows.row, add };
    let threads = if hands.pool.is_some() { hands.threads.max(1) } else { 1 };
    if threads == 1 {
        return whole.multiply_blocks(hands.room);
    }
    let rooms = Rooms::new(hands.room, room_of_one(extents), threads);
    let shared = parallel::run_parts(hands.pool, whole.cut(threads), &|part: DenseProduct<'_>| {
        rooms.with_free(|room| part.multiply_blocks(room));
        Ok(())
    });
    debug_assert!(shared.is_ok(), "parts give no errors");
}

/// Gives away a product for which [`is_fast`], written by rows, part by part: what [`multiply_dense`] would write there. Memory of as many
/// numbers as it has is worked in.
pub(super) fn in_turn(
    [rows, inner, columns]: [usize; 3],
    factors: [(&[f32], Layout); 2],
    mut area: &mut [f32],
    hands: Hands<'_>,
    beside: &[OutputParts<'_>],
    then: Then<'_>,
) -> Result<(), KernelError> {
    let extents = [rows, inner, columns];
    let to = VectorTarget::new(&mut []);
    let whole =
        DenseProduct { extents, scale: 1.0, factors, to, at: 0, stride: columns, add: false };
    let threads = if hands.pool.is_some() { hands.threads.max(1) } else { 1 };
    let mut parts = Vec::new();
    for part in whole.cut(threads) {
        let [rows, _, columns] = part.extents;
        parts.push((part, area.split_off_mut(..rows * columns).unwrap_or_default()));
    }
    let rooms = Rooms::new(hands.room, room_of_one(extents), threads);
    parallel::run_parts(hands.pool, parts, &|(part, area): (DenseProduct<'_>, &mut [f32])| {
        let origin = [part.at / columns, part.at % columns];
        rooms.with_free(|room| part.in_turn(origin, columns, (area, room), (beside, then)))
    })
}

/// A matrix of the product's extents that is read behind each part of it: where its part begins, and how far rows lie apart.
#[derive(Clone, Copy)]
struct BesideMatrix {
    first: *const f32,
    stride: usize,
}

impl BesideMatrix {
    /// Takes the parts of matrices that begin at an element.
    fn from_parts(
        parts: &[OutputParts<'_>],
        start: usize,
        stride: usize,
    ) -> Result<Vec<Self>, KernelError> {
        let part = |part: &OutputParts<'_>| {
            Ok(Self { first: part.ptr::<f32>()?.cast_const().wrapping_add(start), stride })
        };
        parts.iter().take(MOST_BESIDE).map(part).collect()
    }

    /// The lines beside the panel.
    fn lines(self, rows: usize, panel: Panel) -> PrefetchLines {
        let first = self.first.wrapping_add(panel.start * LANES);
        PrefetchLines {
            first,
            stride: self.stride,
            each: panel.vectors,
            count: rows * panel.vectors,
        }
    }
}

const NO_LINES: PrefetchLines =
    PrefetchLines { first: std::ptr::null(), stride: 0, each: 1, count: 0 };

/// Memory to work in, of each thread.
pub(super) struct Rooms<'a>(Vec<Mutex<&'a mut [f32]>>);

impl<'a> Rooms<'a> {
    pub(super) fn new(room: &'a mut [f32], own: usize, threads: usize) -> Self {
        assert!(room.len() >= threads * own, "room to multiply");
        Self(room.chunks_exact_mut(own).take(threads).map(Mutex::new).collect())
    }

    /// Works in some that is free. A thread works on one part at a time, so some always is, unless a pool has more threads than may be
    /// used: those wait for the first.
    pub(super) fn with_free<T>(&self, work: impl FnOnce(&mut [f32]) -> T) -> T {
        let free = self.0.iter().find_map(|room| room.try_lock().ok());
        let wait = || self.0[0].lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut free.unwrap_or_else(wait))
    }
}

/// Cuts an extent in ranges of `step` places; the last may be shorter.
pub(super) fn cut_steps(extent: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..extent).step_by(step).map(move |start| start..extent.min(start + step))
}

/// Columns of the second factor at places along the inner extent, where they lie.
#[derive(Clone, Copy)]
pub(super) struct PanelSource<'a> {
    data: &'a [f32],
    layout: Layout,
    panel: Panel,
    depth: usize,
}

impl<'a> DenseProduct<'a> {
    /// Parts of rows or of columns, of whichever there are more: several for each thread, so that none waits long for another, where
    /// they are large enough that packing the other factor again for each does not count.
    fn cut(&self, threads: usize) -> Vec<DenseProduct<'a>> {
        let [rows, inner, columns] = self.extents;
        let packed_again = self.factors[0].1.column > NEAR;
        let (side, unit, enough) = match columns > rows {
            true => (1, PANEL, if packed_again { COLUMNS } else { COLUMNS / 2 }),
            false => (0, ROWS_TOGETHER, 2 * ROWS),
        };
        let extent = [rows, columns][side];
        let units = extent.div_ceil(unit);
        let several = (extent / enough).min(threads * SHARES) / threads * threads;
        let parts = if threads == 1 { 1 } else { several.max(threads).min(units) };
        let part = |index| {
            let units = split_range(units, parts, index);
            let start = units.start * unit;
            let end = (units.end * unit).min([rows, columns][side]);
            let [(a, by_row), (b, layout)] = self.factors;
            match side {
                0 => DenseProduct {
                    extents: [end - start, inner, columns],
                    factors: [(&a[start * by_row.row..], by_row), (b, layout)],
                    at: start * self.stride,
                    ..*self
                },
                _ => DenseProduct {
                    extents: [rows, inner, end - start],
                    factors: [(a, by_row), (&b[start * layout.column..], layout)],
                    at: start,
                    ..*self
                },
            }
        };
        (0..parts).map(part).collect()
    }

    fn multiply_blocks(&self, room: &mut [f32]) {
        let [rows, inner, columns] = self.extents;
        let width = columns.min(COLUMNS).next_multiple_of(LANES);
        let (of_b, of_a) = room.split_at_mut(inner.min(DEPTH) * width);
        for depth in cut_steps(inner, DEPTH) {
            for across in cut_steps(columns, COLUMNS) {
                let panels = cut_panels(across.len());
                for down in cut_steps(rows, ROWS) {
                    let at = self.at + down.start * self.stride + across.start;
                    let block = [down, depth.clone(), across.clone()];
                    self.multiply_strip(block, panels.clone(), at, [&mut *of_a, &mut *of_b], &[]);
                }
            }
        }
    }

    /// Computes the product by blocks of columns into `area`. Each part is handed to `then` when it is computed, and the next may take its
    /// place. The part of the whole product begins at the row `top` and the column `left`; rows of the whole have `whole` elements.
    fn in_turn(
        &self,
        [top, left]: [usize; 2],
        whole: usize,
        (area, room): (&mut [f32], &mut [f32]),
        (beside, then): (&[OutputParts<'_>], Then<'_>),
    ) -> Result<(), KernelError> {
        let [rows, inner, columns] = self.extents;
        let width = columns.min(COLUMNS).next_multiple_of(LANES);
        let (of_b, of_a) = room.split_at_mut(inner.min(DEPTH) * width);
        for across in cut_steps(columns, COLUMNS) {
            let panels = cut_panels(across.len());
            for depth in cut_steps(inner, DEPTH) {
                for down in cut_steps(rows, FEW_ROWS) {
                    // What is summed in one go needs no place to be added to later.
                    let row = if inner <= DEPTH { 0 } else { down.start };
                    let (at, stride) = (row * across.len(), across.len());
                    let part = DenseProduct { to: VectorTarget::new(area), stride, ..*self };
                    let block = [down.clone(), depth.clone(), across.clone()];
                    let start = (top + down.start) * whole + left + across.start;
                    let is_last = depth.end == inner;
                    let near = if is_last { beside } else { &[] };
                    let near = BesideMatrix::from_parts(near, start, whole)?;
                    part.multiply_strip(block, panels.clone(), at, [&mut *of_a, &mut *of_b], &near);
                    if is_last {
                        then(ProductPart {
                            start,
                            columns: across.len(),
                            stride: whole,
                            elements: &area[at..at + down.len() * stride],
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Multiplies a strip of rows, at places along the inner extent, with a block of columns, which is packed for the first of them.
    /// The result begins at a place of its memory.
    fn multiply_strip(
        &self,
        [down, depth, across]: [Range<usize>; 3],
        mut panels: Panels,
        to: usize,
        [of_a, of_b]: [&mut [f32]; 2],
        beside: &[BesideMatrix],
    ) {
        let first = self.read_first_factor(down.clone(), depth.clone(), of_a);
        let is_last = down.end == self.extents[0];
        while let Some(panel) = panels.next() {
            let at = panel.start * LANES * depth.len();
            let packed = &mut of_b[at..at + panel.vectors * LANES * depth.len()];
            if down.start == 0 {
                self.source(depth.clone(), across.start, panel).pack(packed);
            }
            let next = match panels.clone().next() {
                Some(panel) if down.start == 0 => Some((depth.clone(), across.start, panel)),
                None if is_last => self.next_panel(&depth, across.start),
                _ => None,
            };
            let next = next.map(|(depth, column, panel)| self.source(depth, column, panel).lines());
            let mut lines = [NO_LINES; MOST_BESIDE + 1];
            let beside = beside.iter().map(|beside| beside.lines(down.len(), panel));
            let mut count = 0;
            for (line, next) in lines.iter_mut().zip(beside.chain(next)) {
                (*line, count) = (next, count + 1);
            }
            let to = to + panel.start * LANES;
            self.multiply_block(
                (down.len(), depth.clone()),
                (to, panel),
                first,
                packed,
                &lines[..count],
            );
        }
    }

    /// The first panel behind a block of columns.
    fn next_panel(
        &self,
        depth: &Range<usize>,
        column: usize,
    ) -> Option<(Range<usize>, usize, Panel)> {
        let [_, inner, columns] = self.extents;
        let (depth, column) = if column + COLUMNS < columns {
            (depth.clone(), column + COLUMNS)
        } else {
            (depth.end..inner.min(depth.end + DEPTH), 0)
        };
        let panel = cut_panels(columns.min(column + COLUMNS) - column).next()?;
        (!depth.is_empty()).then_some((depth, column, panel))
    }

    pub(super) fn source(
        &self,
        depth: Range<usize>,
        column: usize,
        panel: Panel,
    ) -> PanelSource<'_> {
        let (data, layout) = self.factors[1];
        let start = depth.start * layout.row + (column + panel.start * LANES) * layout.column;
        PanelSource { data: &data[start..], layout, panel, depth: depth.len() }
    }

    /// A block of the first factor: where it lies, or copied, with its columns one behind the other.
    fn read_first_factor<'b>(
        &'b self,
        down: Range<usize>,
        depth: Range<usize>,
        to: &'b mut [f32],
    ) -> (&'b [f32], Layout) {
        let (data, layout) = self.factors[0];
        let start = down.start * layout.row + depth.start * layout.column;
        if layout.column <= NEAR {
            return (&data[start..], layout);
        }
        let width = down.len().next_multiple_of(LANES);
        // SAFETY: the processor has AVX-512: `is_fast` was asked.
        unsafe {
            let to = &mut to[..width * depth.len()];
            copy_rows(&data[start..], layout.column, down.len(), AHEAD, to);
        }
        (to, Layout { row: 1, column: width })
    }

    /// Multiplies a block of rows with a panel, while that of the next comes nearer. The result begins at a place of its memory.
    pub(super) fn multiply_block(
        &self,
        (down, depth): (usize, Range<usize>),
        (to, panel): (usize, Panel),
        (first, layout): (&[f32], Layout),
        packed: &[f32],
        next: &[PrefetchLines],
    ) {
        let strip = VectorStrip {
            from: first,
            to: self.to,
            rows: RowStarts::Even { count: down, to, apart: (layout.row, self.stride) },
            taps: &[Tap { ahead: 0, slot: 0 }],
            channels: depth.len(),
            step: layout.column,
            panel: packed,
            stride: panel.vectors * LANES,
            vectors: panel.vectors,
            last: panel.last,
            scale: self.scale,
            add: self.add || depth.start > 0,
            next,
        };
        // SAFETY: the processor has AVX-512, and the result is this call's alone.
        unsafe { multiply_strip(&strip) };
    }
}

impl<'a> PanelSource<'a> {
    /// Packs the panel as `[place][column]`.
    pub(super) fn pack(&self, to: &mut [f32]) {
        // SAFETY: the processor has AVX-512: `is_fast` was asked.
        unsafe {
            match self.layout.column {
                1 => self.pack_rows(to),
                _ => self.pack_columns(to),
            }
        }
    }

    /// The lines that are read of it.
    fn lines(&self) -> PrefetchLines {
        let (of_lanes, of_places) = (self.panel.vectors, self.depth.div_ceil(LANES));
        let (stride, each, rows) = match self.layout.column {
            1 => (self.layout.row, of_lanes, self.depth),
            _ => (self.layout.column, of_places, of_lanes * LANES),
        };
        PrefetchLines { first: self.data.as_ptr(), stride, each, count: rows * each }
    }

    /// Packs a matrix whose rows are contiguous.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn pack_rows(&self, to: &mut [f32]) {
        let (vectors, last) = (self.panel.vectors, self.panel.last.count_ones() as usize);
        let count = (vectors - 1) * LANES + last;
        let to = &mut to[..self.depth * vectors * LANES];
        copy_rows(self.data, self.layout.row, count, AHEAD, to);
    }

    /// Packs a matrix whose columns are contiguous.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn pack_columns(&self, to: &mut [f32]) {
        let (stride, vectors) = (self.layout.column, self.panel.vectors);
        for vector in 0..vectors {
            let lanes = self.panel.lanes(vector);
            for place in (0..self.depth).step_by(LANES) {
                let count = LANES.min(self.depth - place);
                let start = vector * LANES * stride + place;
                let rows = transposed(load_rows(self.data, start, stride, [lanes, count]));
                let at = (place * vectors + vector) * LANES;
                store_rows(to, at, vectors * LANES, (&rows[..count], LANES));
            }
        }
    }
}
