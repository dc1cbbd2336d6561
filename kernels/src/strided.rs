//! Strided copies: rows at a time where rows are contiguous, tiles where a copy transposes.

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::view::{View, ViewMut};

/// Edge of a tile of a transposing copy.
const TILE: usize = 16;

/// A dim of a copy; strides in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StridedDim {
    pub(crate) extent: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// A copy: where it starts in both tensors and its dims, outermost of the target first.
#[derive(Clone, Debug, Default)]
pub(crate) struct StridedWalk {
    pub(crate) dims: Vec<StridedDim>,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl StridedWalk {
    /// A copy of a box between tensors of these strides.
    pub(crate) fn row_major(
        extents: &[usize],
        from_strides: &[usize],
        to_strides: &[usize],
        from: usize,
        to: usize,
    ) -> Self {
        let strides = from_strides.iter().zip(to_strides);
        let dims = extents.iter().zip(strides);
        let dims = dims.map(|(&extent, (&from, &to))| StridedDim { extent, from, to }).collect();
        Self { dims, from, to }
    }

    /// Merges neighbouring dims that are walked evenly; dims of extent 1 vanish.
    fn merge(&mut self) {
        let mut merged: Vec<StridedDim> = Vec::with_capacity(self.dims.len()); // innermost first
        for &dim in self.dims.iter().rev().filter(|dim| dim.extent != 1) {
            match merged.last_mut() {
                Some(inner)
                    if dim.from == inner.from * inner.extent
                        && dim.to == inner.to * inner.extent =>
                {
                    inner.extent *= dim.extent;
                }
                _ => merged.push(dim),
            }
        }
        merged.reverse();
        self.dims = merged;
    }

    fn elements(&self) -> usize {
        self.dims.iter().map(|dim| dim.extent).product()
    }

    /// The last element that the copy touches: (source, target).
    fn last(&self) -> (usize, usize) {
        self.dims.iter().fold((self.from, self.to), |(from, to), dim| {
            (from + (dim.extent - 1) * dim.from, to + (dim.extent - 1) * dim.to)
        })
    }
}

/// Copies elements of any type. The dims of the target do not overlap.
pub(crate) fn copy_strided(
    op: &'static str,
    walk: &StridedWalk,
    from: &View<'_>,
    to: &mut ViewMut<'_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    if from.dtype != to.dtype {
        return Err(KernelError::bad_call(op, format!("{} into {}", from.dtype, to.dtype)));
    }
    if walk.dims.iter().any(|dim| dim.extent == 0) {
        return Ok(());
    }
    let (last_from, last_to) = walk.last();
    if last_from >= from.len() || last_to >= to.len() {
        return Err(KernelError::bad_call(op, format!("{:?} into {:?}", from.shape, to.shape)));
    }
    let size = from.dtype.size();
    let (from, to) = (from.bytes(), to.bytes_mut());
    match size {
        1 => share_copy::<1>(walk, from, to, cx),
        2 => share_copy::<2>(walk, from, to, cx),
        4 => share_copy::<4>(walk, from, to, cx),
        _ => share_copy::<8>(walk, from, to, cx),
    }
}

/// Shares the outermost dim among threads.
fn share_copy<const N: usize>(
    walk: &StridedWalk,
    from: &[u8],
    to: &mut [u8],
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let (from, mut to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    let mut walk = walk.clone();
    walk.merge();
    let parts = parallel::count_parts(cx, walk.elements());
    let Some(&outer) = walk.dims.first().filter(|dim| parts > 1 && dim.extent >= parts) else {
        run_copy(&walk, from, to);
        return Ok(());
    };
    to = &mut to[walk.to..];
    let mut pieces = Vec::with_capacity(parts);
    for part in 0..parts {
        let range = graphc_ir::shard::split_range(outer.extent, parts, part);
        let end = if part + 1 == parts { to.len() } else { range.len() * outer.to };
        let (own, rest) = to.split_at_mut(end);
        to = rest;
        let mut walk =
            StridedWalk { from: walk.from + range.start * outer.from, to: 0, ..walk.clone() };
        walk.dims[0].extent = range.len();
        pieces.push((walk, own));
    }
    parallel::run_parts(cx.pool, pieces, &|(walk, to)| {
        run_copy(&walk, from, to);
        Ok(())
    })
}

/// Copies on one thread; the dims are merged and not empty.
fn run_copy<const N: usize>(walk: &StridedWalk, from: &[[u8; N]], to: &mut [[u8; N]]) {
    let Some((&inner, outer)) = walk.dims.split_last() else {
        to[walk.to] = from[walk.from];
        return;
    };
    let other = outer.iter().position(|dim| dim.from == 1 && inner.from != 1 && inner.to == 1);
    if let (Some(other), false) = (other, inner.from == 0) {
        let mut rest = outer.to_vec();
        let across = rest.remove(other);
        for_each_index(&rest, walk, |at, out| {
            transpose_matrix(across, inner, &from[at..], &mut to[out..])
        });
        return;
    }
    let count = inner.extent;
    match (inner.from, inner.to) {
        (1, 1) => for_each_index(outer, walk, |at, out| {
            to[out..out + count].copy_from_slice(&from[at..at + count]);
        }),
        (0, 1) => for_each_index(outer, walk, |at, out| to[out..out + count].fill(from[at])),
        _ => for_each_index(outer, walk, |at, out| {
            for i in 0..count {
                to[out + i * inner.to] = from[at + i * inner.from];
            }
        }),
    }
}

/// Calls `work(source, target)` at each index of the dims.
fn for_each_index(dims: &[StridedDim], walk: &StridedWalk, mut work: impl FnMut(usize, usize)) {
    let mut index = vec![0; dims.len()];
    let (mut from, mut to) = (walk.from, walk.to);
    loop {
        work(from, to);
        let mut place = dims.len();
        loop {
            let Some(dim) = place.checked_sub(1) else { return };
            place = dim;
            index[dim] += 1;
            from += dims[dim].from;
            to += dims[dim].to;
            if index[dim] < dims[dim].extent {
                break;
            }
            from -= dims[dim].extent * dims[dim].from;
            to -= dims[dim].extent * dims[dim].to;
            index[dim] = 0;
        }
    }
}

/// Copies a matrix of `[rows, columns]` to its transpose, of which `to` is some rows from the `first` on.
pub(crate) fn transpose_rows<T: Copy>(
    from: &[T],
    to: &mut [T],
    [rows, columns]: [usize; 2],
    first: usize,
) {
    let across = StridedDim { extent: to.len() / rows, from: 1, to: rows };
    transpose_matrix(across, StridedDim { extent: rows, from: columns, to: 1 }, &from[first..], to);
}

/// Copies a matrix of `[rows, columns]` to its transpose, like [`transpose_rows`]. Here the rows of `to` are parts of longer rows, which
/// begin `stride` elements apart.
pub(crate) fn transpose_part<T: Copy>(
    from: &[T],
    (to, stride): (&mut [T], usize),
    [rows, columns]: [usize; 2],
    first: usize,
) {
    let across = StridedDim { extent: to.len().div_ceil(stride), from: 1, to: stride };
    transpose_matrix(across, StridedDim { extent: rows, from: columns, to: 1 }, &from[first..], to);
}

/// Copies a matrix whose rows are contiguous in the target and whose columns are contiguous in the source.
fn transpose_matrix<T: Copy>(across: StridedDim, inner: StridedDim, from: &[T], to: &mut [T]) {
    match inner.extent {
        extent if across.to != extent => {}
        2 => return interleave_columns::<2, T>(across.extent, from, inner.from, to),
        3 => return interleave_columns::<3, T>(across.extent, from, inner.from, to),
        4 => return interleave_columns::<4, T>(across.extent, from, inner.from, to),
        _ => {}
    }
    for row in (0..across.extent).step_by(TILE) {
        let rows = row..across.extent.min(row + TILE);
        for column in (0..inner.extent).step_by(TILE) {
            let columns = column..inner.extent.min(column + TILE);
            if rows.len() == TILE && columns.len() == TILE {
                let at = row + column * inner.from;
                let out = row * across.to + column;
                whole_tile(&from[at..], inner.from, &mut to[out..], across.to);
                continue;
            }
            for row in rows.clone() {
                for column in columns.clone() {
                    to[row * across.to + column] = from[row + column * inner.from];
                }
            }
        }
    }
}

/// Copies a matrix like [`transpose_matrix`], for targets of few columns without gaps between rows. The colours of images are such columns.
fn interleave_columns<const N: usize, T: Copy>(
    rows: usize,
    from: &[T],
    stride: usize,
    to: &mut [T],
) {
    let columns: [&[T]; N] = std::array::from_fn(|column| &from[column * stride..][..rows]);
    for (row, to) in to.as_chunks_mut::<N>().0[..rows].iter_mut().enumerate() {
        *to = columns.map(|column| column[row]);
    }
}

/// Copies a tile through the stack: each cache line is read and written once, even where strides of a power of two
/// would drive lines out of the cache.
fn whole_tile<T: Copy>(from: &[T], from_stride: usize, to: &mut [T], to_stride: usize) {
    let mut tile = [[from[0]; TILE]; TILE];
    for (column, tile) in tile.iter_mut().enumerate() {
        tile.copy_from_slice(&from[column * from_stride..][..TILE]);
    }
    for row in 0..TILE {
        let to: &mut [T] = &mut to[row * to_stride..][..TILE];
        for (to, tile) in to.iter_mut().zip(&tile) {
            *to = tile[row];
        }
    }
}
