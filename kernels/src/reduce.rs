//! Reductions. Dims are merged into alternating groups, kept and reduced; rows and columns have fast loops. What is
//! added to what depends on the shape alone: chunks of rows and blocks of columns have fixed sizes.

use graphc_ir::op::Op;
use graphc_ir::ops::ReduceFunction;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::parallel::{self, RowOutput, over_rows, with_rooms};
use crate::precision::{Float, parts_of};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{Element, View, ViewMut};

/// Elements of a row that are folded in `f32` lanes; the chunks are joined in `f64`.
const CHUNK: usize = 1 << 12;
/// Columns that are folded together.
const TILE: usize = 1024;
/// Rows that are folded into one accumulator before it joins the total, against rounding.
const BLOCK: usize = 256;
/// Rows that are read at once.
const AT_ONCE: usize = 4;

/// A run of dims that are all kept or all reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DimGroup {
    extent: usize,
    reduced: bool,
}

fn group_dims(shape: &[usize], axes: &[usize]) -> Vec<DimGroup> {
    let mut groups: Vec<DimGroup> = Vec::new();
    for (dim, &extent) in shape.iter().enumerate().filter(|&(_, &extent)| extent != 1) {
        let reduced = axes.contains(&dim);
        match groups.last_mut() {
            Some(last) if last.reduced == reduced => last.extent *= extent,
            _ => groups.push(DimGroup { extent, reduced }),
        }
    }
    groups
}

/// The kernel of [`Op::Reduce`].
pub(crate) fn reduce(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Reduce(op), [x], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("reduce", "takes one operand and gives one result"));
    };
    let groups = group_dims(x.shape, &op.axes);
    let kept: usize =
        groups.iter().filter(|group| !group.reduced).map(|group| group.extent).product();
    if kept != out.len() || op.axes.iter().any(|&axis| axis >= x.shape.len()) {
        let reason = format!("{:?} over {:?} into {:?}", x.shape, op.axes, out.shape);
        return Err(KernelError::bad_call("reduce", reason));
    }
    let count = op.count_elements(x.global);
    let fold = FloatFold {
        function: op.function,
        divisor: (op.function == ReduceFunction::Mean).then_some(count as f64),
    };
    match out.dtype {
        DType::F32 => fold.reduce_floats::<f32>(&groups, x.as_slice()?, out.as_mut_slice()?, cx),
        DType::F16 => fold.reduce_floats::<f16>(&groups, x.as_slice()?, out.as_mut_slice()?, cx),
        DType::BF16 => fold.reduce_floats::<bf16>(&groups, x.as_slice()?, out.as_mut_slice()?, cx),
        DType::I64 => reduce_integers::<i64>(op.function, &groups, count, x, out),
        DType::I32 => reduce_integers::<i32>(op.function, &groups, count, x, out),
        DType::U8 => reduce_integers::<u8>(op.function, &groups, count, x, out),
        DType::Bool => reduce_truths(op.function, &groups, x, out),
        dtype @ (DType::F8E4M3 | DType::F8E5M2) => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

/// A reduction of floating-point numbers. Whatever their type, what is joined is `f32` until the result is rounded.
#[derive(Clone, Copy)]
struct FloatFold {
    function: ReduceFunction,
    /// The number that a mean divides by; `None` for other reductions.
    divisor: Option<f64>,
}

impl FloatFold {
    fn reduce_floats<T: Float>(
        self,
        groups: &[DimGroup],
        x: &[T],
        out: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let extents = |index: usize| groups.get(index).map_or(1, |group| group.extent);
        let reduced: Vec<bool> = groups.iter().map(|group| group.reduced).collect();
        match reduced.as_slice() {
            _ if x.is_empty() => {
                T::write_values(out, cx.scratch.take(T::scratch_len(out.len())), |out| {
                    out.fill(self.identity());
                    self.divide(out);
                });
                Ok(())
            }
            [] | [false] if self.keeps_values() => {
                out.copy_from_slice(x);
                Ok(())
            }
            [true] => self.reduce_row(x, out, cx),
            [false, true] => self.reduce_rows(x, extents(1), out, cx),
            [true, false] => self.reduce_columns(x, extents(0), extents(1), out, cx),
            [false, true, false] => self.reduce_columns(x, extents(1), extents(2), out, cx),
            _ => {
                T::write_values(out, cx.scratch.take(T::scratch_len(out.len())), |out| {
                    let identity = self.identity();
                    fold_general(groups, x, out, identity, |a, b| {
                        join_values(self.function, a, b.value())
                    });
                    self.divide(out);
                });
                Ok(())
            }
        }
    }

    /// Returns the result over no elements.
    fn identity(self) -> f32 {
        self.function.identity(DType::F32) as f32
    }

    /// Whether a single element is its own reduction.
    fn keeps_values(self) -> bool {
        self.divisor.is_none() && self.function != ReduceFunction::MaxAbs
    }

    /// Divides sums by the divisor of a mean, if it is one.
    fn divide(self, sums: &mut [f32]) {
        if let Some(divisor) = self.divisor {
            sums.iter_mut().for_each(|sum| *sum = (f64::from(*sum) / divisor) as f32);
        }
    }

    /// Joins the chunks of a row.
    fn finish(self, chunks: impl Iterator<Item = f32>) -> f32 {
        let kind = self.function.kind();
        let total = chunks.fold(f64::from(self.identity()), |a, b| kind.combine(a, f64::from(b)));
        (total / self.divisor.unwrap_or(1.0)) as f32
    }

    /// Reduces one long row to one element: its chunks are shared among the threads.
    fn reduce_row<T: Float>(
        self,
        x: &[T],
        out: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let chunks = x.len().div_ceil(CHUNK);
        let pool = cx.pool;
        let parts = parallel::count_parts(cx, x.len()).min(chunks);
        let room = T::scratch_len(CHUNK);
        let (partial, rooms) = cx.scratch.take_both::<f32, f32>([chunks, parts * room]);
        let each = chunks.div_ceil(parts);
        let pieces =
            parallel::with_rooms(partial.chunks_mut(each).zip(x.chunks(each * CHUNK)), rooms, room);
        parallel::run_parts(pool, pieces, &|((partial, x), room)| {
            for (partial, x) in partial.iter_mut().zip(x.chunks(CHUNK)) {
                *partial = fold_chunk(self.function, T::read_values(x, room));
            }
            Ok(())
        })?;
        out[0] = T::round_from(self.finish(partial.iter().copied()));
        Ok(())
    }

    /// Reduces each row of `extent` elements to one.
    fn reduce_rows<T: Float>(
        self,
        x: &[T],
        extent: usize,
        out: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let (count, room) = (out.len(), T::scratch_len(CHUNK.min(extent)));
        over_rows(cx, [count, extent], room, RowOutput::new(out, 1), &|range, mut out, room| {
            for (index, row) in range.enumerate() {
                let x = &x[row * extent..(row + 1) * extent];
                let chunks =
                    x.chunks(CHUNK).map(|x| fold_chunk(self.function, T::read_values(x, room)));
                out.row(index)[0] = T::round_from(self.finish(chunks));
            }
            Ok(())
        })
    }

    /// Reduces each column of matrices of `rows` rows and `columns` columns to one.
    fn reduce_columns<T: Float>(
        self,
        x: &[T],
        rows: usize,
        columns: usize,
        out: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let parts = parallel::count_parts(cx, x.len());
        // Threads share matrices, or where there is one, its rows or its columns.
        let several = out.len() > columns;
        if !several && parts > 1 && rows >= parts * BLOCK && columns <= TILE {
            return self.reduce_blocks(x, columns, out, cx);
        }
        let width = if several { columns } else { columns.div_ceil(parts).max(16) };
        let each = if several { (out.len() / columns).div_ceil(parts) * columns } else { width };
        let room = T::scratch_len((AT_ONCE + 1) * TILE);
        let rooms = cx.scratch.take::<f32>(out.len().div_ceil(each) * room);
        let pieces = with_rooms(out.chunks_mut(each).enumerate(), rooms, room);
        parallel::run_parts(cx.pool, pieces, &|((piece, out), room)| {
            let (of_out, room) = room.split_at_mut(T::scratch_len(TILE));
            let mut at = piece * each;
            for out in out.chunks_mut(width) {
                let (matrix, first) = (at / columns, at % columns);
                at += out.len();
                let x = &x[matrix * rows * columns..(matrix + 1) * rows * columns];
                for (index, out) in out.chunks_mut(TILE).enumerate() {
                    let x = &x[first + index * TILE..];
                    T::write_values(out, of_out, |out| {
                        fold_tile(self.function, x, columns, rows, out, room);
                        self.divide(out);
                    });
                }
            }
            Ok(())
        })
    }

    /// Reduces each column of one matrix of many rows to one. Threads share blocks of rows, which are joined in their order.
    fn reduce_blocks<T: Float>(
        self,
        x: &[T],
        columns: usize,
        out: &mut [T],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let count = (x.len() / columns).div_ceil(BLOCK);
        let each = count.div_ceil(parallel::count_parts(cx, x.len()));
        let (of_out, own) = (T::scratch_len(columns), T::scratch_len(AT_ONCE * TILE));
        let room = cx.scratch.take(of_out + count * columns + count.div_ceil(each) * own);
        let (of_out, room) = room.split_at_mut(of_out);
        let (folded, rooms) = room.split_at_mut(count * columns);
        let pieces = folded.chunks_mut(each * columns).zip(x.chunks(each * BLOCK * columns));
        parallel::run_parts(cx.pool, with_rooms(pieces, rooms, own), &|((folded, x), room)| {
            let blocks = folded.chunks_exact_mut(columns).zip(x.chunks(BLOCK * columns));
            for (folded, x) in blocks {
                fold_tile(self.function, x, columns, x.len() / columns, folded, room);
            }
            Ok(())
        })?;
        T::write_values(out, of_out, |out| {
            out.fill(self.identity());
            for folded in folded.chunks_exact(columns) {
                let pairs = out.iter_mut().zip(folded);
                pairs.for_each(|(out, &folded)| *out = join_values(self.function, *out, folded));
            }
            self.divide(out);
        });
        Ok(())
    }
}

/// Joins two values; a NaN stays a NaN.
#[inline(always)]
fn join_values(function: ReduceFunction, a: f32, b: f32) -> f32 {
    match function {
        ReduceFunction::Sum | ReduceFunction::Mean => a + b,
        ReduceFunction::Max => greater_of(a, b),
        ReduceFunction::Min => lesser_of(a, b),
        ReduceFunction::MaxAbs => greater_size(a, b),
    }
}

#[inline(always)]
fn greater_of(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The greater of the sizes of two values.
#[inline(always)]
fn greater_size(a: f32, b: f32) -> f32 {
    greater_of(a.abs(), b.abs())
}

#[inline(always)]
fn lesser_of(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

vectorized! {
    fn fold_chunk(function: ReduceFunction, x: &[f32]) -> f32 {
        let identity = function.identity(DType::F32) as f32;
        match function {
            ReduceFunction::Sum | ReduceFunction::Mean => rows::sum_row(x),
            ReduceFunction::Max => rows::fold_row([x], identity, |a, [x]| greater_of(a, x), greater_of),
            ReduceFunction::Min => rows::fold_row([x], identity, |a, [x]| lesser_of(a, x), lesser_of),
            ReduceFunction::MaxAbs => rows::fold_row([x], identity, |a, [x]| greater_size(a, x), greater_of),
        }
    }
}

vectorized! {
    /// Folds `rows` rows, `stride` apart, of a tile as wide as `out`.
    fn fold_tile<T: Float>(function: ReduceFunction, x: &[T], stride: usize, rows: usize, out: &mut [f32], room: &mut [f32]) {
        match function {
            ReduceFunction::Sum | ReduceFunction::Mean => reduce_tile([stride, rows], x, out, room, 0.0, |a, b| a + b),
            ReduceFunction::Max => reduce_tile([stride, rows], x, out, room, f32::NEG_INFINITY, greater_of),
            ReduceFunction::Min => reduce_tile([stride, rows], x, out, room, f32::INFINITY, lesser_of),
            ReduceFunction::MaxAbs => reduce_tile([stride, rows], x, out, room, 0.0, greater_size),
        }
    }
}

#[inline(always)]
fn reduce_tile<T: Float>(
    [stride, rows]: [usize; 2],
    x: &[T],
    out: &mut [f32],
    room: &mut [f32],
    identity: f32,
    both: impl Fn(f32, f32) -> f32,
) {
    let width = out.len();
    let row = |index: usize| &x[index * stride..index * stride + width];
    let mut block = [identity; TILE];
    let block = &mut block[..width];
    let [of_a, of_b, of_c, of_d] = parts_of::<AT_ONCE>(room);
    out.fill(identity);
    for start in (0..rows).step_by(BLOCK) {
        let end = rows.min(start + BLOCK);
        block.fill(identity);
        let mut at = start;
        while at + AT_ONCE <= end {
            let (a, b) = (T::read_values(row(at), of_a), T::read_values(row(at + 1), of_b));
            let (c, d) = (T::read_values(row(at + 2), of_c), T::read_values(row(at + 3), of_d));
            for i in 0..width {
                block[i] = both(block[i], both(both(a[i], b[i]), both(c[i], d[i])));
            }
            at += AT_ONCE;
        }
        for at in at..end {
            let x = T::read_values(row(at), of_a);
            block.iter_mut().zip(x).for_each(|(block, &x)| *block = both(*block, x));
        }
        out.iter_mut().zip(&*block).for_each(|(out, &block)| *out = both(*out, block));
    }
}

/// Reduces by any pattern of groups: every element is joined to its result, in order.
fn fold_general<T: Copy, U: Copy>(
    groups: &[DimGroup],
    x: &[T],
    out: &mut [U],
    identity: U,
    both: impl Fn(U, T) -> U,
) {
    out.fill(identity);
    let Some((inner, outer)) = groups.split_last() else {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = both(*out, x));
        return;
    };
    let width = if inner.reduced { 1 } else { inner.extent };
    for (index, x) in x.chunks_exact(inner.extent.max(1)).enumerate() {
        let (mut rest, mut stride, mut start) = (index, width, 0);
        for group in outer.iter().rev() {
            if !group.reduced {
                start += rest % group.extent * stride;
                stride *= group.extent;
            }
            rest /= group.extent;
        }
        if inner.reduced {
            out[start] = x.iter().fold(out[start], |a, &b| both(a, b));
        } else {
            let out = &mut out[start..start + width];
            out.iter_mut().zip(x).for_each(|(out, &x)| *out = both(*out, x));
        }
    }
}

fn reduce_integers<T: Integer>(
    function: ReduceFunction,
    groups: &[DimGroup],
    count: usize,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<(), KernelError> {
    let identity = T::identity(function.kind());
    let (x, out) = (x.as_slice::<T>()?, out.as_mut_slice::<T>()?);
    match function {
        ReduceFunction::Sum | ReduceFunction::Mean => {
            let add = |a: T, b: T| {
                let (a, b): (i64, i64) = (a.into(), b.into());
                T::wrap(a.wrapping_add(b))
            };
            fold_general(groups, x, out, identity, add);
        }
        // Floating-point numbers alone have a greatest size.
        ReduceFunction::Max | ReduceFunction::MaxAbs => {
            fold_general(groups, x, out, identity, T::max);
        }
        ReduceFunction::Min => fold_general(groups, x, out, identity, T::min),
    }
    if function == ReduceFunction::Mean {
        let divisor = (count as i64).max(1);
        out.iter_mut().for_each(|value| *value = T::wrap((*value).into() / divisor));
    }
    Ok(())
}

/// Reduces truth values: any, all.
fn reduce_truths(
    function: ReduceFunction,
    groups: &[DimGroup],
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<(), KernelError> {
    let (x, out) = (x.as_slice::<u8>()?, out.as_mut_slice::<u8>()?);
    match function {
        ReduceFunction::Min => fold_general(groups, x, out, 1, u8::min),
        _ => fold_general(groups, x, out, 0, u8::max),
    }
    Ok(())
}

/// The kernel of [`Op::ArgMax`].
pub(crate) fn argmax(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ArgMax(op), [x], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("argmax", "takes one operand and gives one result"));
    };
    let shape = x.shape;
    let inner: usize = shape.iter().skip(op.axis + 1).product();
    let outer: usize = shape.iter().take(op.axis).product();
    let out = out.as_mut_slice::<i64>()?;
    if op.axis >= shape.len() || out.len() != outer * inner {
        return Err(KernelError::bad_call("argmax", format!("dim {} of {shape:?}", op.axis)));
    }
    let extent = shape[op.axis];
    match x.dtype {
        DType::F32 => greatest_of::<f32>(x.as_slice()?, extent, inner, out),
        DType::I64 => greatest_of::<i64>(x.as_slice()?, extent, inner, out),
        DType::I32 => greatest_of::<i32>(x.as_slice()?, extent, inner, out),
        DType::U8 | DType::Bool => greatest_of::<u8>(x.as_slice()?, extent, inner, out),
        DType::F16 => greatest_of::<f16>(x.as_slice()?, extent, inner, out),
        DType::BF16 => greatest_of::<bf16>(x.as_slice()?, extent, inner, out),
        dtype @ (DType::F8E4M3 | DType::F8E5M2) => {
            return Err(KernelError::wrong_dtype::<f32>(dtype));
        }
    }
    Ok(())
}

/// The index of the first greatest of each lane; a NaN is greater than all numbers.
#[allow(clippy::eq_op, reason = "what is not equal to itself is a NaN")]
fn greatest_of<T: Element>(x: &[T], extent: usize, inner: usize, out: &mut [i64]) {
    for (lane, out) in out.iter_mut().enumerate() {
        let start = lane / inner * extent * inner + lane % inner;
        *out = 0;
        let Some(&(mut best)) = x.get(start) else { continue };
        for i in 1..extent {
            let value = x[start + i * inner];
            if value > best || value != value && best == best {
                (best, *out) = (value, i as i64);
            }
        }
    }
}
