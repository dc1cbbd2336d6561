//! Products of up to 96 rows with a matrix whose columns are contiguous, as the weights of a linear layer are.
//!
//! To pack these weights would take about as long as to multiply. So the transposed product is computed: its first factor are the
//! weights as they lie, and its second one is small. Parts of the result are turned while the cache has them. A convolution of 1
//! x 1 on images of one place is such a product.

use std::ops::Range;

use graphc_ir::shard::split_range;

use super::dense::{DEPTH, Product, ROWS, ROWS_TOGETHER, Rooms, SHARES, steps};
use super::{Hands, Layout, Write};
use crate::panels::{Panel, load, panels};
use crate::parallel;
use crate::product::transposed;
use crate::threads::ThreadPool;
use crate::vectors::{LANES, Target};

/// Rows at most: of more, packing is worth it.
const MOST_ROWS: usize = 96;
/// Of fewer columns there is little to pack.
const FEW_COLUMNS: usize = 64;
/// Places along the inner extent at most, so that all of the small factor stays in the second cache.
const LONGEST: usize = 2048;
/// Places along the inner extent that are packed at a time.
const PACKED: usize = 128;

/// Whether a product for which [`super::dense::is_fast`] is computed here. Who multiplies parts of various extents may have given less memory than
/// this way needs; the bits are the same.
pub(super) fn is_faster(
    extents: [usize; 3],
    [a, b]: [Layout; 2],
    to: Layout,
    write: Write,
    hands: &Hands<'_>,
) -> bool {
    let lie_well = a.column == 1 && b.row == 1 && b.column != 1 && to.column == 1;
    let is_given = hands.room.len() >= room(extents, threads(hands));
    lie_well && is_small(extents) && write == Write::Replace && is_given
}

fn threads(hands: &Hands<'_>) -> usize {
    if hands.pool.is_some() { hands.threads.max(1) } else { 1 }
}

fn is_small([rows, inner, columns]: [usize; 3]) -> bool {
    rows <= MOST_ROWS && inner <= LONGEST && columns >= FEW_COLUMNS
}

/// Numbers that so many threads work in: the packed factor, which they share, and an area for each.
pub(super) fn room([rows, inner, columns]: [usize; 3], threads: usize) -> usize {
    let width = rows.next_multiple_of(LANES);
    if is_small([rows, inner, columns]) { (inner + threads.max(1) * ROWS) * width } else { 0 }
}

/// Writes a product for which [`is_faster`], each element summed in the order in which it is in all others. The processor has AVX-512.
pub(super) fn product(
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    [(a, by_row), (b, layout)]: [(&[f32], Layout); 2],
    (out, to): (&mut [f32], Layout),
    hands: Hands<'_>,
) {
    let threads = threads(&hands);
    let width = rows.next_multiple_of(LANES);
    let (packed, areas) = hands.room.split_at_mut(inner * width);
    let factors = [(b, layout.t()), (a, by_row.t())];
    let extents = [columns, inner, rows];
    let to = (Target::new(out), to.row);
    let whole = Product { extents, scale, factors, to: to.0, at: 0, stride: to.1, add: false };
    pack(&whole, hands.pool, &mut *packed);
    let (packed, rooms) = (&*packed, Rooms::new(areas, ROWS * width, threads));
    let units = columns.div_ceil(ROWS_TOGETHER);
    let parts = if threads == 1 { 1 } else { (threads * SHARES).min(units) };
    let part = |part| {
        let units = split_range(units, parts, part);
        units.start * ROWS_TOGETHER..(units.end * ROWS_TOGETHER).min(columns)
    };
    let shared = parallel::run(hands.pool, (0..parts).map(part).collect(), &|part| {
        rooms.with(|area| turned(&whole, part, packed, area));
        Ok(())
    });
    debug_assert!(shared.is_ok(), "parts give no errors");
}

/// Where a panel of the small factor lies, at places along the inner extent that are summed in one go.
fn place(depth: &Range<usize>, panel: Panel, width: usize) -> Range<usize> {
    let start = depth.start * width + panel.start * LANES * depth.len();
    start..start + panel.vectors * LANES * depth.len()
}

/// Packs the small factor, a few places along the inner extent at a time.
fn pack(whole: &Product<'_>, pool: Option<&ThreadPool>, mut room: &mut [f32]) {
    let [_, inner, columns] = whole.extents;
    let mut pieces = Vec::new();
    for depth in steps(inner, DEPTH) {
        for panel in panels(columns) {
            for few in steps(depth.len(), PACKED) {
                let few = depth.start + few.start..depth.start + few.end;
                let own = room.split_off_mut(..few.len() * panel.vectors * LANES);
                pieces.push((whole.source(few, 0, panel), own.unwrap_or_default()));
            }
        }
    }
    let packed = parallel::run(pool, pieces, &|(source, to)| {
        source.pack(to);
        Ok(())
    });
    debug_assert!(packed.is_ok(), "packing gives no errors");
}

/// Computes some rows of the transposed result, as many at a time as an area holds, and turns them.
fn turned(whole: &Product<'_>, part: Range<usize>, packed: &[f32], area: &mut [f32]) {
    let [_, inner, columns] = whole.extents;
    let width = columns.next_multiple_of(LANES);
    let (data, layout) = whole.factors[0];
    for down in steps(part.len(), ROWS) {
        let down = part.start + down.start..part.start + down.end;
        let of_area = Product { to: Target::new(area), at: 0, stride: width, ..*whole };
        for depth in steps(inner, DEPTH) {
            let first = &data[down.start * layout.row + depth.start..];
            for panel in panels(columns) {
                let packed = &packed[place(&depth, panel, width)];
                let to = (panel.start * LANES, panel);
                of_area.block((down.len(), depth.clone()), to, (first, layout), packed, &[]);
            }
        }
        let to = (whole.to, down.start, whole.stride);
        // SAFETY: the processor has AVX-512, and these columns of the result are this call's alone.
        unsafe { turn(area, [down.len(), columns], width, to) };
    }
}

/// Writes rows of an area, `width` numbers apart, as columns.
///
/// # Safety
/// The processor has AVX-512 F, and nobody else reaches these columns.
#[target_feature(enable = "avx512f")]
unsafe fn turn(
    area: &[f32],
    [rows, columns]: [usize; 2],
    width: usize,
    (to, at, stride): (Target<'_>, usize, usize),
) {
    for row in (0..rows).step_by(LANES) {
        let down = LANES.min(rows - row);
        for column in (0..columns).step_by(LANES) {
            let across = LANES.min(columns - column);
            let turned = transposed(load(area, row * width + column, width, [down, across]));
            for (index, &turned) in turned[..across].iter().enumerate() {
                // SAFETY: as the caller says.
                unsafe { to.write(at + (column + index) * stride + row, down, turned) };
            }
        }
    }
}
