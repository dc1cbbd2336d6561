//! An operand's broadcast to the shape of the result, and its elements for a block.

use std::ops::Range;

use graphc_ir::float8::{E4M3, E5M2, Float8Format};
use graphc_ir::types::{DType, row_major_strides};

use half::{bf16, f16};

use super::BLOCK;
use crate::error::KernelError;
use crate::precision::{Float, widen_float8};
use crate::view::{Element, Flat, View};

/// The way in which the elements of an operand repeat over the result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BroadcastPattern {
    /// One operand element for each of the result.
    Same,
    /// One element for all.
    Scalar,
    /// The operand again and again: its shape is that of the last dims. The number of its elements.
    Row(usize),
    /// Anything else: dims of the result, merged where possible, as (extent, stride in the operand).
    Strided(Vec<(usize, usize)>),
}

impl BroadcastPattern {
    /// The pattern of an operand of `shape` in a result of shape `to`.
    pub(super) fn from_shapes(shape: &[usize], to: &[usize]) -> Result<Self, KernelError> {
        let misfit = || {
            KernelError::bad_call("elementwise", format!("{shape:?} does not broadcast to {to:?}"))
        };
        let skip = to.len().checked_sub(shape.len()).ok_or_else(misfit)?;
        if shape.iter().zip(&to[skip..]).any(|(&from, &to)| from != to && from != 1) {
            return Err(misfit());
        }
        if shape == &to[skip..] && to[..skip].iter().all(|&extent| extent == 1) {
            return Ok(Self::Same);
        }
        let own = row_major_strides(shape);
        let stride = |dim: usize| match dim.checked_sub(skip) {
            Some(dim) if shape[dim] != 1 => own[dim],
            _ => 0,
        };
        let dims = merge_dims(to.iter().enumerate().map(|(dim, &extent)| (extent, stride(dim))));
        Ok(match dims.as_slice() {
            [] | [(_, 1)] => Self::Same,
            [(_, 0)] => Self::Scalar,
            [(_, 0), (extent, 1)] => Self::Row(*extent),
            _ => Self::Strided(dims),
        })
    }

    /// Whether every block of `block` elements has the same content.
    pub(super) fn repeats(&self, block: usize) -> bool {
        match self {
            Self::Scalar => true,
            Self::Row(extent) => block.is_multiple_of(*extent),
            Self::Same | Self::Strided(_) => false,
        }
    }

    /// Writes the elements `range` of the broadcast operand at the beginning of `buffer`: floating-point numbers as `f32`.
    pub(super) fn gather(
        &self,
        operand: &View<'_>,
        range: Range<usize>,
        buffer: &mut Flat<'_>,
    ) -> Result<(), KernelError> {
        match operand.dtype {
            DType::F32 => self.copy_range::<f32>(operand, range, buffer),
            DType::I64 => self.copy_range::<i64>(operand, range, buffer),
            DType::I32 => self.copy_range::<i32>(operand, range, buffer),
            DType::U8 | DType::Bool => self.copy_range::<u8>(operand, range, buffer),
            DType::F16 => self.gather_as(operand, range, buffer, f16::widen, f16::value),
            DType::BF16 => self.gather_as(operand, range, buffer, bf16::widen, bf16::value),
            DType::F8E4M3 => self.gather_float8(E4M3, operand, range, buffer),
            DType::F8E5M2 => self.gather_float8(E5M2, operand, range, buffer),
        }
    }

    fn gather_float8(
        &self,
        format: Float8Format,
        operand: &View<'_>,
        range: Range<usize>,
        buffer: &mut Flat<'_>,
    ) -> Result<(), KernelError> {
        let widen = |from: &[u8], to: &mut [f32]| widen_float8(format, from, to);
        self.gather_as(operand, range, buffer, widen, |bits: u8| format.decode(bits))
    }

    fn copy_range<T: Element>(
        &self,
        operand: &View<'_>,
        range: Range<usize>,
        buffer: &mut Flat<'_>,
    ) -> Result<(), KernelError> {
        let copy = |from: &[T], to: &mut [T]| to.copy_from_slice(from);
        self.gather_as(operand, range, buffer, copy, |value| value)
    }

    fn gather_as<T: Element, U: Element>(
        &self,
        operand: &View<'_>,
        range: Range<usize>,
        buffer: &mut Flat<'_>,
        copy: impl Fn(&[T], &mut [U]),
        value: impl Fn(T) -> U,
    ) -> Result<(), KernelError> {
        let to = buffer.block::<U>(0..range.len())?;
        if to.is_empty() {
            return Ok(());
        }
        match self {
            Self::Same => copy(operand.block(range)?, to),
            Self::Scalar => to.fill(value(operand.as_slice::<T>()?[0])),
            Self::Row(extent) => {
                let dims = [(usize::MAX / extent, 0), (*extent, 1)];
                gather_runs(operand.as_slice()?, &dims, range.start, to, copy, value);
            }
            Self::Strided(dims) => {
                gather_runs(operand.as_slice()?, dims, range.start, to, copy, value);
            }
        }
        Ok(())
    }
}

/// Merges neighbouring dims over which an operand is walked evenly; dims of extent 1 vanish.
fn merge_dims(dims: impl DoubleEndedIterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    let mut merged: Vec<(usize, usize)> = Vec::new(); // innermost first
    for (extent, stride) in dims.rev().filter(|dim| dim.0 != 1) {
        match merged.last_mut() {
            Some((inner, step)) if stride == *step * *inner => *inner *= extent,
            _ => merged.push((extent, stride)),
        }
    }
    merged.reverse();
    merged
}

/// Fills `to` with the elements from the flat position `start` on, a run along the innermost dim at a time.
fn gather_runs<T: Element, U: Element>(
    from: &[T],
    dims: &[(usize, usize)],
    start: usize,
    to: &mut [U],
    copy: impl Fn(&[T], &mut [U]),
    value: impl Fn(T) -> U,
) {
    let Some((&(extent, stride), outer)) = dims.split_last() else { return };
    let mut done = 0;
    while done < to.len() {
        let mut rest = (start + done) / extent;
        let first = (start + done) % extent;
        let mut offset = first * stride;
        for &(extent, stride) in outer.iter().rev() {
            offset += rest % extent * stride;
            rest /= extent;
        }
        let count = (extent - first).min(to.len() - done);
        let run = &mut to[done..done + count];
        match stride {
            0 => run.fill(value(from[offset])),
            1 => copy(&from[offset..offset + count], run),
            _ => {
                let places = run.iter_mut().enumerate();
                places.for_each(|(i, to)| *to = value(from[offset + i * stride]));
            }
        }
        done += count;
    }
}

/// Elements in a block: a multiple of the length of the first short row, so that it is gathered only once.
pub(super) fn block_of(patterns: &[BroadcastPattern]) -> usize {
    let row = patterns.iter().find_map(|pattern| match pattern {
        BroadcastPattern::Row(extent) if (1..=BLOCK).contains(extent) => Some(*extent),
        _ => None,
    });
    row.map_or(BLOCK, |extent| BLOCK / extent * extent)
}

/// The length of the rows where those of all operands have one that is longer than a block: blocks end where rows do, so that
/// such an operand is read where it lies.
pub(super) fn long_row(patterns: &[BroadcastPattern]) -> Option<usize> {
    let mut rows = patterns.iter().filter_map(|pattern| match pattern {
        BroadcastPattern::Row(extent) => Some(*extent),
        _ => None,
    });
    let first = rows.next().filter(|&extent| extent > BLOCK)?;
    rows.all(|extent| extent == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_as_simple_as_they_can_be() {
        let of = |shape: &[usize], to: &[usize]| BroadcastPattern::from_shapes(shape, to).unwrap();
        assert_eq!(of(&[2, 3], &[2, 3]), BroadcastPattern::Same);
        assert_eq!(of(&[3], &[1, 3]), BroadcastPattern::Same);
        assert_eq!(of(&[1, 1], &[2, 3]), BroadcastPattern::Scalar);
        assert_eq!(of(&[], &[2, 3]), BroadcastPattern::Scalar);
        assert_eq!(of(&[4], &[2, 3, 4]), BroadcastPattern::Row(4));
        assert_eq!(of(&[1, 3, 4], &[2, 3, 4]), BroadcastPattern::Row(12));
        assert_eq!(of(&[2, 3, 1], &[2, 3, 4]), BroadcastPattern::Strided(vec![(6, 1), (4, 0)]));
        assert_eq!(
            of(&[2, 1, 4], &[2, 3, 4]),
            BroadcastPattern::Strided(vec![(2, 4), (3, 0), (4, 1)])
        );
        assert!(BroadcastPattern::from_shapes(&[2], &[3]).is_err());
    }
}
