//! Reductions at the end of a chain: sums of what its steps give, block by block, while that is in the first-level cache.
//!
//! The elements are cut into pieces of a size that follows from the shape. A piece has accumulators of its own, `f32`, and those
//! of all pieces are joined in their order in `f64`. So the bits of a result do not depend on who sums which piece.

use graphc_ir::ops::{Reduce, ReduceFunction};
use graphc_ir::types::{DType, TensorType};
use half::{bf16, f16};

use super::BLOCK;
use crate::error::KernelError;
use crate::precision::Float;
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// Elements in a piece, about.
const PIECE: usize = 1 << 14;
/// Accumulators that fill vectors.
const LANES: usize = 16;
/// The number of accumulators that makes rows worth a loop.
const WORTHWHILE: usize = 64;
/// Rows that are read at once.
const AT_ONCE: usize = 4;

/// A sum or mean of a step's value.
#[derive(Debug)]
pub(super) struct StepFold {
    /// The chain's result.
    pub(super) output: usize,
    /// The position of its first accumulator among those of a piece.
    pub(super) offset: usize,
    /// The number of its accumulators: one for each element of the result, or several.
    pub(super) width: usize,
    kept: usize,
    after: usize,
    /// The dims that a mean divides by.
    divides: Vec<usize>,
}

impl StepFold {
    /// The reduction of a value of type `operand`; `None` where chains do not end in it.
    pub(super) fn from_reduce(op: &Reduce, operand: &TensorType, output: usize) -> Option<Self> {
        let [_, kept, after] = op.run_extents(operand)?;
        let mean = op.function == ReduceFunction::Mean;
        let divides = if mean { op.axes.clone() } else { Vec::new() };
        let width = if after == 1 { count_accumulators(kept) } else { kept };
        Some(Self { output, offset: 0, width, kept, after, divides })
    }

    /// Adds the elements from the flat position `start` on.
    pub(super) fn add(&self, start: usize, x: &[f32], sums: &mut [f32]) {
        let sums = &mut sums[self.offset..self.offset + self.width];
        match self.after {
            0 => {}
            1 => add_rows(x, start % self.width, sums),
            after => add_runs(x, start, after, sums),
        }
    }

    /// Joins the accumulators of all pieces, each piece's `stride` after those of the one before.
    pub(super) fn join(
        &self,
        partial: &[f32],
        stride: usize,
        rank: usize,
        operands: &[View<'_>],
        result: &mut ViewMut<'_>,
    ) -> Result<(), KernelError> {
        let count = |&dim: &usize| broadcast_extent(dim, rank, operands);
        let divisor = self.divides.iter().map(count).product::<usize>() as f64;
        let total = |first: usize| self.sum_pieces(partial, stride, first).map(|sum| sum / divisor);
        match result.dtype {
            DType::F32 => write_totals::<f32>(result, total),
            DType::F16 => write_totals::<f16>(result, total),
            DType::BF16 => write_totals::<bf16>(result, total),
            dtype => Err(KernelError::wrong_dtype::<f32>(dtype)),
        }
    }

    /// The sums of up to [`LANES`] elements of the result.
    fn sum_pieces(&self, partial: &[f32], stride: usize, first: usize) -> [f64; LANES] {
        let mut totals = [0.0; LANES];
        for piece in partial.chunks(stride) {
            let own = &piece[self.offset..self.offset + self.width];
            for again in own.chunks(self.kept) {
                let lanes = &again[first..self.kept.min(first + LANES)];
                totals.iter_mut().zip(lanes).for_each(|(total, &lane)| *total += f64::from(lane));
            }
        }
        totals
    }
}

/// The number of accumulators for rows of `kept` elements: of short rows several, so that vectors are full.
fn count_accumulators(kept: usize) -> usize {
    let fits = |&again: &usize| (kept * again).is_multiple_of(LANES) && kept * again >= WORTHWHILE;
    match kept {
        0 => 0,
        kept if kept >= WORTHWHILE => kept,
        kept => (1..=WORTHWHILE).find(fits).map_or(kept, |again| kept * again),
    }
}

/// Elements in a piece: a multiple of `block`, and many for each accumulator, so that these are few.
pub(super) fn piece_of(folds: &[StepFold], block: usize) -> usize {
    let most = folds.iter().map(|fold| fold.width).max().unwrap_or(0);
    PIECE.max(8 * most).next_multiple_of(block)
}

/// Elements in a block of a chain with these reductions whose rows do not ask for another size: whole rows of accumulators.
pub(super) fn block_of(folds: &[StepFold]) -> usize {
    let width = folds.iter().map(|fold| fold.width).find(|width| (1..=BLOCK).contains(width));
    width.map_or(BLOCK, |width| BLOCK / width * width)
}

/// The extent of a dim of the whole tensor to whose shape the operands broadcast.
fn broadcast_extent(dim: usize, rank: usize, operands: &[View<'_>]) -> usize {
    let of = |operand: &View<'_>| {
        let dim = dim.checked_sub(rank - operand.global.len())?;
        (operand.global[dim] != 1).then_some(operand.global[dim])
    };
    operands.iter().find_map(of).unwrap_or(1)
}

fn write_totals<T: Float>(
    result: &mut ViewMut<'_>,
    total: impl Fn(usize) -> [f64; LANES],
) -> Result<(), KernelError> {
    for (index, out) in result.as_mut_slice::<T>()?.chunks_mut(LANES).enumerate() {
        for (out, total) in out.iter_mut().zip(total(index * LANES)) {
            *out = T::round_from(total as f32);
        }
    }
    Ok(())
}

vectorized! {
    /// Adds each element to the accumulator of its column, the first to that of column `at`.
    fn add_rows(x: &[f32], at: usize, sums: &mut [f32]) {
        let width = sums.len();
        let (head, x) = x.split_at(x.len().min((width - at) % width));
        add_into(&mut sums[at..], head);
        let mut rows = x.chunks_exact(AT_ONCE * width);
        for four in &mut rows {
            let (ab, cd) = four.split_at(2 * width);
            let ((a, b), (c, d)) = (ab.split_at(width), cd.split_at(width));
            for i in 0..width {
                sums[i] += (a[i] + b[i]) + (c[i] + d[i]);
            }
        }
        rows.remainder().chunks(width).for_each(|row| add_into(sums, row));
    }
}

#[inline(always)]
fn add_into(sums: &mut [f32], x: &[f32]) {
    sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += x);
}

vectorized! {
    /// Adds runs of `after` elements, of which the block may begin and end in one, each to its accumulator.
    fn add_runs(x: &[f32], start: usize, after: usize, sums: &mut [f32]) {
        let mut position = start;
        let mut rest = x;
        while !rest.is_empty() {
            let (run, others) = rest.split_at(rest.len().min(after - position % after));
            sums[position / after % sums.len()] += rows::sum_row(run);
            (position, rest) = (position + run.len(), others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulators_fill_vectors_and_repeat_the_result() {
        assert_eq!([1, 3, 24, 64, 96, 100].map(count_accumulators), [64, 96, 96, 64, 96, 100]);
        for kept in 1..200 {
            assert!(count_accumulators(kept).is_multiple_of(kept));
        }
    }

    #[test]
    fn rows_are_added_from_any_column_on() {
        let x: Vec<f32> = (0..23).map(|i| i as f32).collect();
        let mut sums = [0.0; 5];
        add_rows(&x, 2, &mut sums);
        let mut expected = [0.0; 5];
        x.iter().enumerate().for_each(|(i, x)| expected[(i + 2) % 5] += x);
        assert_eq!(sums, expected);
        let mut sums = [0.0; 2];
        add_runs(&x, 4, 3, &mut sums);
        let mut expected = [0.0; 2];
        x.iter().enumerate().for_each(|(i, x)| expected[(i + 4) / 3 % 2] += x);
        assert_eq!(sums, expected);
    }
}
