//! Reductions. Dims are merged into alternating groups, kept and reduced; rows and columns have fast loops. What is
//! added to what depends on the shape alone: chunks of rows and blocks of columns have fixed sizes.

use graphc_ir::op::Op;
use graphc_ir::ops::ReduceFunction;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::parallel;
use crate::rows;
use crate::simd::vectorized;
use crate::view::{Element, View, ViewMut};

/// Elements of a row that are folded in `f32` lanes; the chunks are joined in `f64`.
const CHUNK: usize = 1 << 12;
/// Columns that are folded together.
const TILE: usize = 1024;
/// Rows that are folded into one accumulator before it joins the total, against rounding.
const BLOCK: usize = 256;

/// A run of dims that are all kept or all reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Group {
    extent: usize,
    reduced: bool,
}

fn groups(shape: &[usize], axes: &[usize]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (dim, &extent) in shape.iter().enumerate().filter(|&(_, &extent)| extent != 1) {
        let reduced = axes.contains(&dim);
        match groups.last_mut() {
            Some(last) if last.reduced == reduced => last.extent *= extent,
            _ => groups.push(Group { extent, reduced }),
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
        return Err(KernelError::call("reduce", "takes one operand and gives one result"));
    };
    let groups = groups(x.shape, &op.axes);
    let kept: usize =
        groups.iter().filter(|group| !group.reduced).map(|group| group.extent).product();
    if kept != out.len() || op.axes.iter().any(|&axis| axis >= x.shape.len()) {
        let reason = format!("{:?} over {:?} into {:?}", x.shape, op.axes, out.shape);
        return Err(KernelError::call("reduce", reason));
    }
    let count = op.count(x.global);
    match out.dtype {
        DType::F32 => {
            let divisor = (op.function == ReduceFunction::Mean).then_some(count as f64);
            let kind = op.function.kind();
            floats(kind, &groups, x.as_slice()?, out.as_mut_slice()?, divisor, cx)
        }
        DType::I64 => integers::<i64>(op.function, &groups, count, x, out),
        DType::I32 => integers::<i32>(op.function, &groups, count, x, out),
        DType::U8 => integers::<u8>(op.function, &groups, count, x, out),
        DType::Bool => truths(op.function, &groups, x, out),
        dtype @ (DType::F16 | DType::BF16) => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

fn floats(
    kind: ReduceKind,
    groups: &[Group],
    x: &[f32],
    out: &mut [f32],
    divisor: Option<f64>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let extents = |index: usize| groups.get(index).map_or(1, |group| group.extent);
    let reduced: Vec<bool> = groups.iter().map(|group| group.reduced).collect();
    if x.is_empty() {
        out.fill(kind.identity() as f32);
    } else {
        match reduced.as_slice() {
            [] | [false] => out.copy_from_slice(x),
            [true] => fold_rows(kind, x, extents(0), out, divisor, cx)?,
            [false, true] => fold_rows(kind, x, extents(1), out, divisor, cx)?,
            [true, false] => fold_columns(kind, x, extents(0), extents(1), out, cx)?,
            [false, true, false] => fold_columns(kind, x, extents(1), extents(2), out, cx)?,
            _ => fold_general(groups, x, out, kind.identity() as f32, |a, b| join(kind, a, b)),
        }
    }
    if let (Some(divisor), false) =
        (divisor, matches!(reduced.as_slice(), [true] | [false, true]) && !x.is_empty())
    {
        out.iter_mut().for_each(|value| *value = (f64::from(*value) / divisor) as f32);
    }
    Ok(())
}

/// Both values as one; a NaN stays a NaN.
#[inline(always)]
fn join(kind: ReduceKind, a: f32, b: f32) -> f32 {
    match kind {
        ReduceKind::Sum => a + b,
        ReduceKind::Max => greater(a, b),
        ReduceKind::Min => lesser(a, b),
    }
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn lesser(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

vectorized! {
    fn fold_chunk(kind: ReduceKind, x: &[f32]) -> f32 {
        let identity = kind.identity() as f32;
        match kind {
            ReduceKind::Sum => rows::sum(x),
            ReduceKind::Max => rows::fold([x], identity, |a, [x]| greater(a, x), greater),
            ReduceKind::Min => rows::fold([x], identity, |a, [x]| lesser(a, x), lesser),
        }
    }
}

/// Joins the chunks of a row.
fn finish(kind: ReduceKind, chunks: impl Iterator<Item = f32>, divisor: Option<f64>) -> f32 {
    let total = chunks.fold(kind.identity(), |a, b| kind.combine(a, f64::from(b)));
    (total / divisor.unwrap_or(1.0)) as f32
}

/// Each row of `extent` elements to one.
fn fold_rows(
    kind: ReduceKind,
    x: &[f32],
    extent: usize,
    out: &mut [f32],
    divisor: Option<f64>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if let [out] = out {
        // One long row: its chunks are shared among the threads.
        let chunks = extent.div_ceil(CHUNK);
        let pool = cx.pool;
        let parts = parallel::parts(cx, extent).min(chunks);
        let partial = cx.scratch.take::<f32>(chunks);
        let each = chunks.div_ceil(parts);
        let pieces = partial.chunks_mut(each).zip(x.chunks(each * CHUNK)).collect();
        parallel::run(pool, pieces, |(partial, x)| {
            for (partial, x) in partial.iter_mut().zip(x.chunks(CHUNK)) {
                *partial = fold_chunk(kind, x);
            }
            Ok(())
        })?;
        *out = finish(kind, partial.iter().copied(), divisor);
        return Ok(());
    }
    let rows = out.len();
    parallel::over_rows(cx, rows, extent, [out], [1], |range, [out]| {
        for (row, out) in range.zip(out) {
            let x = &x[row * extent..(row + 1) * extent];
            *out = finish(kind, x.chunks(CHUNK).map(|x| fold_chunk(kind, x)), divisor);
        }
        Ok(())
    })
}

/// Each column of matrices of `rows` rows and `columns` columns to one.
fn fold_columns(
    kind: ReduceKind,
    x: &[f32],
    rows: usize,
    columns: usize,
    out: &mut [f32],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let parts = parallel::parts(cx, x.len());
    // Threads share matrices, or where there is one, its columns.
    let width = if out.len() > columns { columns } else { columns.div_ceil(parts).max(16) };
    let each = (out.len() / columns).div_ceil(parts);
    let pieces: Vec<(usize, &mut [f32])> = if out.len() > columns {
        out.chunks_mut(each * columns)
            .enumerate()
            .map(|(i, out)| (i * each * columns, out))
            .collect()
    } else {
        out.chunks_mut(width).enumerate().map(|(i, out)| (i * width, out)).collect()
    };
    parallel::run(cx.pool, pieces, |(start, out)| {
        let mut at = start;
        for out in out.chunks_mut(width) {
            let (matrix, first) = (at / columns, at % columns);
            at += out.len();
            let x = &x[matrix * rows * columns..(matrix + 1) * rows * columns];
            for (index, out) in out.chunks_mut(TILE).enumerate() {
                fold_tile(kind, &x[first + index * TILE..], columns, rows, out);
            }
        }
        Ok(())
    })
}

vectorized! {
    /// Folds `rows` rows, `stride` apart, of a tile as wide as `out`.
    fn fold_tile(kind: ReduceKind, x: &[f32], stride: usize, rows: usize, out: &mut [f32]) {
        match kind {
            ReduceKind::Sum => tile(x, stride, rows, out, 0.0, |a, b| a + b),
            ReduceKind::Max => tile(x, stride, rows, out, f32::NEG_INFINITY, greater),
            ReduceKind::Min => tile(x, stride, rows, out, f32::INFINITY, lesser),
        }
    }
}

#[inline(always)]
fn tile(
    x: &[f32],
    stride: usize,
    rows: usize,
    out: &mut [f32],
    identity: f32,
    both: impl Fn(f32, f32) -> f32,
) {
    let width = out.len();
    let row = |index: usize| &x[index * stride..index * stride + width];
    let mut block = [identity; TILE];
    let block = &mut block[..width];
    out.fill(identity);
    for start in (0..rows).step_by(BLOCK) {
        let end = rows.min(start + BLOCK);
        block.fill(identity);
        let mut at = start;
        while at + 4 <= end {
            let (a, b, c, d) = (row(at), row(at + 1), row(at + 2), row(at + 3));
            for i in 0..width {
                block[i] = both(block[i], both(both(a[i], b[i]), both(c[i], d[i])));
            }
            at += 4;
        }
        for at in at..end {
            block.iter_mut().zip(row(at)).for_each(|(block, &x)| *block = both(*block, x));
        }
        out.iter_mut().zip(&*block).for_each(|(out, &block)| *out = both(*out, block));
    }
}

/// Any pattern of groups: every element in order into its result.
fn fold_general<T: Element>(
    groups: &[Group],
    x: &[T],
    out: &mut [T],
    identity: T,
    both: impl Fn(T, T) -> T,
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

fn integers<T: Integer>(
    function: ReduceFunction,
    groups: &[Group],
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
        ReduceFunction::Max => fold_general(groups, x, out, identity, T::max),
        ReduceFunction::Min => fold_general(groups, x, out, identity, T::min),
    }
    if function == ReduceFunction::Mean {
        let divisor = (count as i64).max(1);
        out.iter_mut().for_each(|value| *value = T::wrap((*value).into() / divisor));
    }
    Ok(())
}

/// Of truth values: any, all.
fn truths(
    function: ReduceFunction,
    groups: &[Group],
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
        return Err(KernelError::call("argmax", "takes one operand and gives one result"));
    };
    let shape = x.shape;
    let inner: usize = shape.iter().skip(op.axis + 1).product();
    let outer: usize = shape.iter().take(op.axis).product();
    let out = out.as_mut_slice::<i64>()?;
    if op.axis >= shape.len() || out.len() != outer * inner {
        return Err(KernelError::call("argmax", format!("dim {} of {shape:?}", op.axis)));
    }
    let extent = shape[op.axis];
    match x.dtype {
        DType::F32 => greatest_of::<f32>(x.as_slice()?, extent, inner, out),
        DType::I64 => greatest_of::<i64>(x.as_slice()?, extent, inner, out),
        DType::I32 => greatest_of::<i32>(x.as_slice()?, extent, inner, out),
        DType::U8 | DType::Bool => greatest_of::<u8>(x.as_slice()?, extent, inner, out),
        dtype @ (DType::F16 | DType::BF16) => return Err(KernelError::wrong_dtype::<f32>(dtype)),
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
