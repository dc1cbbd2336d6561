//! Products of up to 96 rows with a matrix whose columns are contiguous, as the weights of a linear layer are.
//!
//! To pack these weights would take about as long as to multiply. So the transposed product is computed: its first factor are the
//! weights as they lie, and its second one is small. Parts of the result are turned while the cache has them. A convolution of 1
//! x 1 on images of one place is such a product.

use std::ops::Range;

use graphc_ir::shard::split_range;

use super::dense::{DEPTH, DenseProduct, ROWS, ROWS_TOGETHER, Rooms, SHARES, cut_steps};
use super::{Hands, Layout, Write};
use crate::panels::{Panel, cut_panels, load_rows};
use crate::parallel;
use crate::product::transposed;
use crate::threads::ThreadPool;
use crate::vectors::{LANES, VectorTarget};

/// Rows at most: of more, packing is worth it.
const MOST_ROWS: usize = 96;
/// The number of columns below which there is little to pack.
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
    let is_given = hands.room.len() >= scratch_len(extents, count_threads(hands));
    lie_well && is_small(extents) && write == Write::Replace && is_given
}

fn count_threads(hands: &Hands<'_>) -> usize {
    if hands.pool.is_some() { hands.threads.max(1) } else { 1 }
}

fn is_small([rows, inner, columns]: [usize; 3]) -> bool {
    rows <= MOST_ROWS && inner <= LONGEST && columns >= FEW_COLUMNS
}

/// Numbers that so many threads work in: the packed factor, which they share, and an area for each.
pub(super) fn scratch_len([rows, inner, columns]: [usize; 3], threads: usize) -> usize {
    let width = rows.next_multiple_of(LANES);
    if is_small([rows, inner, columns]) { (inner + threads.max(1) * ROWS) * width } else { 0 }
}

/// Writes a product for which [`is_faster`], each element summed in the order in which it is in all others. The processor has AVX-512.
pub(super) fn multiply_turned(
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    [(a, by_row), (b, layout)]: [(&[f32], Layout); 2],
    (out, to): (&mut [f32], Layout),
    hands: Hands<'_>,
) {
    let threads = count_threads(&hands);
    let width = rows.next_multiple_of(LANES);
    let (packed, areas) = hands.room.split_at_mut(inner * width);
    let factors = [(b, layout.t()), (a, by_row.t())];
    let extents = [columns, inner, rows];
    let to = (VectorTarget::new(out), to.row);
    let whole = DenseProduct { extents, scale, factors, to: to.0, at: 0, stride: to.1, add: false };
    pack_small_factor(&whole, hands.pool, &mut *packed);
    let (packed, rooms) = (&*packed, Rooms::new(areas, ROWS * width, threads));
    let units = columns.div_ceil(ROWS_TOGETHER);
    let parts = if threads == 1 { 1 } else { (threads * SHARES).min(units) };
    let part = |part| {
        let units = split_range(units, parts, part);
        units.start * ROWS_TOGETHER..(units.end * ROWS_TOGETHER).min(columns)
    };
    let shared = parallel::run_parts(hands.pool, (0..parts).map(part).collect(), &|part| {
        rooms.with_free(|area| multiply_rows(&whole, part, packed, area));
        Ok(())
    });
    debug_assert!(shared.is_ok(), "parts give no errors");
}

/// Returns the range of a panel of the packed small factor, at places along the inner extent that are summed in one go.
fn panel_range(depth: &Range<usize>, panel: Panel, width: usize) -> Range<usize> {
    let start = depth.start * width + panel.start * LANES * depth.len();
    start..start + panel.vectors * LANES * depth.len()
}

/// Packs the small factor, a few places along the inner extent at a time.
fn pack_small_factor(whole: &DenseProduct<'_>, pool: Option<&ThreadPool>, mut room: &mut [f32]) {
    let [_, inner, columns] = whole.extents;
    let mut pieces = Vec::new();
    for depth in cut_steps(inner, DEPTH) {
        for panel in cut_panels(columns) {
            for few in cut_steps(depth.len(), PACKED) {
                let few = depth.start + few.start..depth.start + few.end;
                let own = room.split_off_mut(..few.len() * panel.vectors * LANES);
                pieces.push((whole.source(few, 0, panel), own.unwrap_or_default()));
            }
        }
    }
    let packed = parallel::run_parts(pool, pieces, &|(source, to)| {
        source.pack(to);
        Ok(())
    });
    debug_assert!(packed.is_ok(), "packing gives no errors");
}

/// Computes some rows of the transposed result, as many at a time as an area holds, and turns them.
fn multiply_rows(whole: &DenseProduct<'_>, part: Range<usize>, packed: &[f32], area: &mut [f32]) {
    let [_, inner, columns] = whole.extents;
    let width = columns.next_multiple_of(LANES);
    let (data, layout) = whole.factors[0];
    for down in cut_steps(part.len(), ROWS) {
        let down = part.start + down.start..part.start + down.end;
        let of_area = DenseProduct { to: VectorTarget::new(area), at: 0, stride: width, ..*whole };
        for depth in cut_steps(inner, DEPTH) {
            let first = &data[down.start * layout.row + depth.start..];
            for panel in cut_panels(columns) {
                let packed = &packed[panel_range(&depth, panel, width)];
                let to = (panel.start * LANES, panel);
                of_area.multiply_block(
                    (down.len(), depth.clone()),
                    to,
                    (first, layout),
                    packed,
                    &[],
                );
            }
        }
        let to = (whole.to, down.start, whole.stride);
        // SAFETY: the processor has AVX-512, and these columns of the result are this call's alone.
        unsafe { write_turned(area, [down.len(), columns], width, to) };
    }
}

/// Writes rows of an area, `width` numbers apart, as columns.
///
/// # Safety
/// The processor has AVX-512 F, and nobody else reaches these columns.
#[target_feature(enable = "avx512f")]
unsafe fn write_turned(
    area: &[f32],
    [rows, columns]: [usize; 2],
    width: usize,
    (to, at, stride): (VectorTarget<'_>, usize, usize),
) {
    for row in (0..rows).step_by(LANES) {
        let down = LANES.min(rows - row);
        for column in (0..columns).step_by(LANES) {
            let across = LANES.min(columns - column);
            let turned = transposed(load_rows(area, row * width + column, width, [down, across]));
            for (index, &turned) in turned[..across].iter().enumerate() {
                // SAFETY: as the caller says.
                unsafe { to.write(at + (column + index) * stride + row, down, turned) };
            }
        }
    }
}
