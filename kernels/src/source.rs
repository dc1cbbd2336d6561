//! Ops whose elements are functions of their place in the whole tensor: sources, dropout, triangles.

use std::ops::Range;

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::op::Op;
use graphc_ir::ops::{DropoutOp, Init, Triangle};
use graphc_ir::random::{RandomStream, key_of};
use graphc_ir::types::{DType, row_major_strides};
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::movement;
use crate::parallel::{self, RowOutput, over_rows};
use crate::precision::Float;
use crate::simd::vectorized;
use crate::view::{Element, Flat, View, ViewMut};

/// The kernel of [`Op::Full`].
pub(crate) fn fill_with_value(
    op: &Op,
    _operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match (op, results) {
        (Op::Full(op), [out]) => movement::fill_view(out, op.value.0),
        _ => Err(KernelError::bad_call("full", "gives one result")),
    }
}

/// The kernel of sources whose elements differ: constants, iota, random numbers, first contents of variables.
pub(crate) fn generate_source(
    op: &Op,
    _operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let name = op.name();
    let [out] = results else { return Err(KernelError::bad_call(name, "gives one result")) };
    let rank = out.global.len();
    match op {
        Op::Constant(op) if op.data.len() == out.global.iter().product::<usize>() => {
            fill_by(out, cx, |position| op.data[position].0)
        }
        Op::Iota(op) if op.dim < rank => {
            let (stride, extent) = (row_major_strides(out.global)[op.dim], out.global[op.dim]);
            fill_by(out, cx, |position| (position / stride % extent) as f64)
        }
        Op::Random(op) => {
            let stream = RandomStream { seed: cx.seed, key: op.key, step: cx.step };
            fill_by(out, cx, |position| f64::from(op.distribution.draw(&stream, position as u64)))
        }
        Op::Variable(op) => match op.init {
            Init::Weights => Err(KernelError::bad_call(name, "its content is in a file")),
            Init::Table(_) => Err(KernelError::bad_call(name, "its content is in a table")),
            Init::Fill(value) => movement::fill_view(out, value.0),
            Init::Normal { mean, std } => {
                let distribution = graphc_ir::ops::Distribution::Normal { mean, std };
                let stream = RandomStream { seed: cx.seed, key: key_of(&op.name), step: 0 };
                fill_by(out, cx, |position| f64::from(distribution.draw(&stream, position as u64)))
            }
            Init::Uniform { low, high } => {
                let distribution = graphc_ir::ops::Distribution::Uniform { low, high };
                let stream = RandomStream { seed: cx.seed, key: key_of(&op.name), step: 0 };
                fill_by(out, cx, |position| f64::from(distribution.draw(&stream, position as u64)))
            }
        },
        _ => Err(KernelError::bad_call(
            name,
            format!("cannot fill {:?} of {:?}", out.shape, out.global),
        )),
    }
}

/// The rows (along the last dim) of a shard, and where each begins in the whole tensor.
struct ShardRows {
    count: usize,
    extent: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
    first: usize,
}

impl ShardRows {
    fn from_shard(shape: &[usize], origin: &[usize], global: &[usize]) -> Self {
        let mut strides = row_major_strides(global);
        let first = origin.iter().zip(&strides).map(|(origin, stride)| origin * stride).sum();
        let (extent, outer) = shape.split_last().map_or((1, &[][..]), |(&e, outer)| (e, outer));
        strides.truncate(outer.len());
        Self { count: outer.iter().product(), extent, shape: outer.to_vec(), strides, first }
    }

    /// The row-major position in the whole tensor of a row's first element.
    fn position(&self, mut row: usize) -> usize {
        let mut position = self.first;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            position += row % extent * stride;
            row /= extent;
        }
        position
    }
}

fn fill_by(
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
    element: impl Fn(usize) -> f64 + Send + Sync,
) -> Result<(), KernelError> {
    match out.dtype {
        DType::F32 => fill_as::<f32>(out, cx, |at| element(at) as f32),
        DType::I64 => fill_as::<i64>(out, cx, |at| element(at) as i64),
        DType::I32 => fill_as::<i32>(out, cx, |at| element(at) as i64 as i32),
        DType::U8 => fill_as::<u8>(out, cx, |at| element(at) as i64 as u8),
        DType::Bool => fill_as::<u8>(out, cx, |at| u8::from(element(at) != 0.0)),
        DType::F16 => fill_as::<f16>(out, cx, |at| f16::from_f64(element(at))),
        DType::BF16 => fill_as::<bf16>(out, cx, |at| bf16::from_f64(element(at))),
        DType::F8E4M3 => fill_as::<u8>(out, cx, |at| E4M3.encode(element(at) as f32)),
        DType::F8E5M2 => fill_as::<u8>(out, cx, |at| E5M2.encode(element(at) as f32)),
    }
}

fn fill_as<T: Element>(
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
    element: impl Fn(usize) -> T + Send + Sync,
) -> Result<(), KernelError> {
    let rows = ShardRows::from_shard(out.shape, out.origin, out.global);
    let (count, extent) = (rows.count, rows.extent);
    let out = RowOutput::new(out.as_mut_slice::<T>()?, extent);
    over_rows(cx, [count, extent], 0, out, &|range, mut out, _| {
        for (index, row) in range.enumerate() {
            let first = rows.position(row);
            let out = out.row(index).iter_mut();
            out.enumerate().for_each(|(i, out)| *out = element(first + i));
        }
        Ok(())
    })
}

/// The kernel of [`Op::Dropout`]; the result may be the operand's memory.
pub(crate) fn dropout<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Dropout(dropout), [x]) = (op, operands) else {
        return Err(KernelError::bad_call("dropout", "takes one operand"));
    };
    if !dropout.can_drop() {
        return movement::copy_elements(op, operands, results, cx);
    }
    let [out] = results else { return Err(KernelError::bad_call("dropout", "gives one result")) };
    if out.shape != x.shape {
        return Err(KernelError::bad_call(
            "dropout",
            format!("{:?} into {:?}", x.shape, out.shape),
        ));
    }
    let mask = DropoutMask::new(*dropout, cx);
    let rows = ShardRows::from_shard(out.shape, out.origin, out.global);
    let parts = parallel::count_parts(cx, out.len()).min(rows.count.max(1));
    let mut rest = out.flat();
    let mut pieces = Vec::with_capacity(parts);
    for part in 0..parts {
        let range = graphc_ir::shard::split_range(rows.count, parts, part);
        let (own, tail) = rest.split_at(range.len() * rows.extent);
        rest = tail;
        pieces.push((range, own));
    }
    parallel::run_parts(cx.pool, pieces, &|(range, mut out)| {
        let skip = range.start * rows.extent;
        for row in range {
            let elements = row * rows.extent..(row + 1) * rows.extent;
            drop_row::<T>(&mask, rows.position(row) as u64, x, elements, &mut out, skip)?;
        }
        Ok(())
    })
}

/// The choice of the elements that dropout drops.
pub(crate) struct DropoutMask {
    stream: RandomStream,
    /// An element is dropped where the first 24 random bits are less: as `uniform() < probability`, exactly.
    threshold: u32,
    /// The probability of what is kept.
    kept: f32,
}

impl DropoutMask {
    /// Makes the choice of a dropout in the step of a call.
    pub(crate) fn new(op: DropoutOp, cx: &KernelContext<'_>) -> Self {
        Self {
            stream: RandomStream { seed: cx.seed, key: op.key, step: cx.step },
            threshold: (op.probability.0 * 16_777_216.0).ceil() as u32,
            kept: (1.0 - op.probability.0) as f32,
        }
    }

    /// Returns the element x at a position of the whole tensor as dropout leaves it.
    #[inline(always)]
    pub(crate) fn drop_element(&self, position: u64, x: f32) -> f32 {
        let bits = self.stream.words(position)[0] >> 8;
        if bits < self.threshold { 0.0 } else { x / self.kept }
    }
}

/// Drops elements of a row, block by block through the stack; `first` is the row's position in the whole tensor,
/// `skip` elements come before `out`.
fn drop_row<T: Float>(
    mask: &DropoutMask,
    first: u64,
    x: &View<'_>,
    row: Range<usize>,
    out: &mut Flat<'_>,
    skip: usize,
) -> Result<(), KernelError> {
    const BLOCK: usize = 512;
    let (mut buffer, mut room) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    for start in row.clone().step_by(BLOCK) {
        let end = row.end.min(start + BLOCK);
        let buffer = &mut buffer[..end - start];
        let x = T::read_values(x.block(start..end)?, &mut room);
        drop_block(mask, first + (start - row.start) as u64, x, buffer);
        T::narrow(buffer, out.block(start - skip..end - skip)?);
    }
    Ok(())
}

vectorized! {
    fn drop_block(mask: &DropoutMask, first: u64, x: &[f32], out: &mut [f32]) {
        for ((i, out), &x) in out.iter_mut().enumerate().zip(x) {
            *out = mask.drop_element(first + i as u64, x);
        }
    }
}

/// The kernel of [`Op::Triangle`]; of any element type.
pub(crate) fn triangle(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Triangle(op), [x], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("triangle", "takes one operand and gives one result"));
    };
    let ([.., rows, columns], [.., first_row, first_column]) = (x.shape, x.origin) else {
        return Err(KernelError::bad_call("triangle", format!("a matrix of {:?}", x.shape)));
    };
    if out.shape != x.shape || out.dtype != x.dtype {
        return Err(KernelError::bad_call(
            "triangle",
            format!("{:?} into {:?}", x.shape, out.shape),
        ));
    }
    let size = x.dtype.size();
    let bytes = columns * size;
    let count = x.len() / (*columns).max(1);
    let x = x.bytes();
    over_rows(
        cx,
        [count, *columns],
        0,
        RowOutput::new(out.bytes_mut(), bytes),
        &|range, mut out, _| {
            for (index, line) in range.enumerate() {
                let kept = kept_columns(op, first_row + line % rows, *first_column, *columns);
                let kept = kept.start * size..kept.end * size;
                let out = out.row(index);
                out[..kept.start].fill(0);
                out[kept.clone()]
                    .copy_from_slice(&x[line * bytes..(line + 1) * bytes][kept.clone()]);
                out[kept.end..].fill(0);
            }
            Ok(())
        },
    )
}

/// The columns of a shard that are kept in a row of the whole tensor.
fn kept_columns(op: &Triangle, row: usize, first: usize, columns: usize) -> Range<usize> {
    let clamp = |column: i64| column.clamp(0, columns as i64) as usize;
    let diagonal = (row as i64).saturating_add(op.diagonal).saturating_sub(first as i64);
    if op.lower { 0..clamp(diagonal.saturating_add(1)) } else { clamp(diagonal)..columns }
}
