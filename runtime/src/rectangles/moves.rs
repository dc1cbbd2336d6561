//! Copies of a rectangle between the memory of two shards that hold it.

use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, row_major_strides};
use graphc_kernels::widen_halves;

use super::reduce::combine_elements;
use super::wide::join_wide;

/// A copy of one rectangle from one shard's row-major memory to another's, as runs of consecutive bytes. Worked out
/// once, executed often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    dtype: DType,
    /// Bytes of one run, consecutive in both shards.
    run: usize,
    /// Repetitions of runs, outermost first.
    loops: Vec<Loop>,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    count: usize,
    from_stride: usize,
    to_stride: usize,
}

impl Move {
    /// Makes the copy of `part`, which lies in both `from` and `to`; all three in the whole tensor's coordinates.
    pub(crate) fn new(dtype: DType, part: &Rect, from: &Rect, to: &Rect) -> Self {
        let size = dtype.size();
        let (from_strides, to_strides) =
            (row_major_strides(&from.extent), row_major_strides(&to.extent));
        let mut result = Self { dtype, run: size, loops: Vec::new(), from: 0, to: 0 };
        for dim in (0..part.extent.len()).rev() {
            let (from_stride, to_stride) = (from_strides[dim] * size, to_strides[dim] * size);
            result.from += (part.origin[dim] - from.origin[dim]) * from_stride;
            result.to += (part.origin[dim] - to.origin[dim]) * to_stride;
            let count = part.extent[dim];
            if count == 1 {
                continue;
            }
            if result.loops.is_empty() && from_stride == result.run && to_stride == result.run {
                result.run *= count;
            } else {
                result.loops.insert(0, Loop { count, from_stride, to_stride });
            }
        }
        result
    }

    /// Returns where it begins on both sides and how many bytes it copies, where they are contiguous on both.
    pub(crate) fn as_run(&self) -> Option<(usize, usize, usize)> {
        self.loops.is_empty().then_some((self.from, self.to, self.run))
    }

    /// Makes the copy of this many bytes from beginning to beginning.
    pub(crate) fn contiguous(dtype: DType, bytes: usize) -> Self {
        Self { dtype, run: bytes, loops: Vec::new(), from: 0, to: 0 }
    }

    /// Makes the copy of `part` out of `from` to memory that holds nothing else, at this offset.
    pub(crate) fn new_pack(dtype: DType, part: &Rect, from: &Rect, offset: usize) -> Self {
        let mut result = Self::new(dtype, part, from, part);
        result.to += offset;
        result
    }

    /// Makes the copy of `part` into `to` from memory that holds nothing else, at this offset.
    pub(crate) fn new_unpack(dtype: DType, part: &Rect, to: &Rect, offset: usize) -> Self {
        let mut result = Self::new(dtype, part, part, to);
        result.from += offset;
        result
    }

    /// Copies the bytes.
    pub(crate) fn copy(&self, from: &[u8], to: &mut [u8]) {
        self.visit_runs(&mut |source, target, run| {
            to[target..target + run].copy_from_slice(&from[source..source + run]);
        });
    }

    /// Combines the elements of the target with those of the source.
    pub(crate) fn combine(&self, kind: ReduceKind, from: &[u8], to: &mut [u8]) {
        self.visit_runs(&mut |source, target, run| {
            combine_elements(
                self.dtype,
                kind,
                &mut to[target..target + run],
                &from[source..source + run],
            );
        });
    }

    /// Copies the bytes, or combines them where `kind` is given.
    pub(crate) fn apply(&self, kind: Option<ReduceKind>, from: &[u8], to: &mut [u8]) {
        match kind {
            None => self.copy(from, to),
            Some(kind) => self.combine(kind, from, to),
        }
    }

    /// Writes, or adds, 16-bit numbers to `f32` that stand for the elements of the target.
    pub(crate) fn sum_wide(&self, add: bool, from: &[u8], to: &mut [f32]) {
        self.visit_runs(&mut |source, target, run| {
            let (from, to) = (&from[source..source + run], &mut to[target / 2..(target + run) / 2]);
            match add {
                true => join_wide(self.dtype, from, to, |a, b| a + b),
                false => widen_halves(self.dtype, from, to),
            }
        });
    }

    fn visit_runs(&self, each: &mut impl FnMut(usize, usize, usize)) {
        walk_loops(&self.loops, self.from, self.to, self.run, each);
    }
}

fn walk_loops(
    loops: &[Loop],
    from: usize,
    to: usize,
    run: usize,
    each: &mut impl FnMut(usize, usize, usize),
) {
    let Some((outer, inner)) = loops.split_first() else { return each(from, to, run) };
    for index in 0..outer.count {
        walk_loops(
            inner,
            from + index * outer.from_stride,
            to + index * outer.to_stride,
            run,
            each,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rect(origin: &[usize], extent: &[usize]) -> Rect {
        Rect { origin: origin.to_vec(), extent: extent.to_vec() }
    }

    #[test]
    fn rows_that_follow_each_other_are_one_run() {
        let whole = rect(&[0, 0, 0], &[4, 3, 2]);
        let part = rect(&[1, 0, 0], &[2, 3, 2]);
        let copy = Move::new(DType::U8, &part, &whole, &part);
        assert_eq!((copy.run, copy.loops.len(), copy.from, copy.to), (12, 0, 6, 0));
    }

    #[test]
    fn columns_go_where_they_belong() {
        let (from, to) = (rect(&[0, 0], &[2, 4]), rect(&[1, 2], &[2, 3]));
        let part = from.intersect(&to).expect("they overlap");
        let source: Vec<u8> = (0..8).collect();
        let mut target = vec![9; 6];
        Move::new(DType::U8, &part, &from, &to).copy(&source, &mut target);
        assert_eq!(target, [6, 7, 9, 9, 9, 9]);
    }

    #[test]
    fn nothing_and_scalars_move() {
        let empty = rect(&[0, 0], &[0, 4]);
        Move::new(DType::F32, &empty, &empty, &empty).copy(&[], &mut []);
        let scalar = rect(&[], &[]);
        let mut target = [0];
        Move::new(DType::U8, &scalar, &scalar, &scalar).copy(&[7], &mut target);
        assert_eq!(target, [7]);
    }
}
