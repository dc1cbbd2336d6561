//! Blocks of half precision widened to `f32`, multiplied by `gemm`.

use super::task::{Pointer, ProductBlock, ProductTask};
use super::{Data, DataMut, Hands, Layout, Write, single};
use crate::precision::Float;

/// Rows and columns of a block, at most: what a block works in is then a MiB and a quarter.
pub(super) const SIDE: usize = 256;
/// Places along the inner extent that are widened at a time.
const INNER: usize = 512;

/// The `f32` of a block's factors and sums.
pub(super) fn scratch_len([rows, columns]: [usize; 2], inner: usize) -> usize {
    (rows + columns) * inner.min(INNER) + rows * columns
}

/// Computes a block of a product.
pub(super) fn compute_block(task: &ProductTask<'_>, block: ProductBlock, room: &mut [f32]) {
    let [rows, columns] = block.extents;
    let place = task.place(block);
    let (sums, room) = room.split_at_mut(rows * columns);
    if let (Pointer::Single(to), [true, true]) = (place.pointer, spans_whole(task, block)) {
        // SAFETY: the block is the whole product, which `multiply` has measured and has alone.
        let out =
            unsafe { std::slice::from_raw_parts_mut(to, (rows - 1) * place.stride + columns) };
        let write = if task.add { Write::Add } else { Write::Replace };
        return sum_block(task, block, room, (out, place.stride), write);
    }
    sum_block(task, block, room, (sums, columns), Write::Replace);
    // SAFETY: blocks of a task do not meet.
    unsafe {
        place
            .for_each_row(|row, to| write_rounded(&sums[row * columns..][..columns], task.add, to));
    }
}

fn spans_whole(task: &ProductTask<'_>, block: ProductBlock) -> [bool; 2] {
    [block.extents[0] == task.extents[0], block.extents[1] == task.extents[2]]
}

/// Writes or adds the scaled product of the block's rows and columns.
fn sum_block(
    task: &ProductTask<'_>,
    block: ProductBlock,
    room: &mut [f32],
    (out, stride): (&mut [f32], usize),
    mut write: Write,
) {
    let [(a, by_row), (b, by_column)] = task.factors;
    let [rows, columns] = block.extents;
    let inner = task.extents[1];
    let (a_room, b_room) = room.split_at_mut(rows * inner.min(INNER));
    for start in (0..inner).step_by(INNER) {
        let depth = INNER.min(inner - start);
        let a = widen_block((a, by_row), [block.start[0], start], [rows, depth], a_room);
        let (b, turned) =
            widen_block((b, by_column.t()), [block.start[1], start], [columns, depth], b_room);
        let to = (&mut *out, Layout::rows(stride));
        let extents = [rows, depth, columns];
        let factors = [a, (b, turned.t())];
        single::multiply_single(extents, task.scale, factors, to, write, &Hands::own(&mut []));
        write = Write::Add;
    }
}

/// A block of a matrix as `f32`, where it lies or in `room`: neighbours stay neighbours.
fn widen_block<'a>(
    (data, layout): (Data<'a>, Layout),
    [row, column]: [usize; 2],
    [rows, columns]: [usize; 2],
    room: &'a mut [f32],
) -> (&'a [f32], Layout) {
    let start = row * layout.row + column * layout.column;
    let room = &mut room[..rows * columns];
    match data {
        Data::Single(all) => return (&all[start..], layout),
        Data::Brain(all) => gather_widened(&all[start..], layout, [rows, columns], room),
        Data::Half(all) => gather_widened(&all[start..], layout, [rows, columns], room),
    }
    let turned = layout.row == 1 && layout.column != 1;
    (room, if turned { Layout::rows(rows).t() } else { Layout::rows(columns) })
}

fn gather_widened<T: Float>(
    from: &[T],
    layout: Layout,
    [rows, columns]: [usize; 2],
    room: &mut [f32],
) {
    if layout.row == 1 && layout.column != 1 {
        return gather_widened(from, layout.t(), [columns, rows], room);
    }
    if layout.column == 1 && layout.row == columns {
        return T::widen(&from[..rows * columns], room);
    }
    for (row, room) in room.chunks_exact_mut(columns).enumerate() {
        let from = &from[row * layout.row..];
        if layout.column == 1 {
            T::widen(&from[..columns], room);
        } else {
            for (to, from) in room.iter_mut().zip(from.iter().step_by(layout.column.max(1))) {
                *to = from.value();
            }
        }
    }
}

/// Writes a row of sums, rounded.
fn write_rounded(sums: &[f32], add: bool, to: DataMut<'_>) {
    match to {
        DataMut::Single(to) if add => {
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
        }
        DataMut::Single(to) => to.copy_from_slice(sums),
        DataMut::Brain(to) => Float::narrow(sums, to),
        DataMut::Half(to) => Float::narrow(sums, to),
    }
}
