//! Ops that move elements, whatever their type: each is a strided copy between shards.

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::op::Op;
use graphc_ir::ops::{
    Concat, Expand, Pad, Slice, Split, Transpose, Zigzag, ZigzagRun, zigzag_runs,
};
use graphc_ir::types::{DType, row_major_strides};
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::strided::{self, StridedDim, StridedWalk};
use crate::view::{View, ViewMut};

type Views<'a, 'b> = &'a mut [ViewMut<'b>];

/// The kernel of all ops that move elements between dims.
pub(crate) fn move_elements(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let name = op.name();
    let takes = |count: usize| match operands.len() == count {
        true => Ok(()),
        false => Err(KernelError::bad_call(
            name,
            format!("takes {count} operands, not {}", operands.len()),
        )),
    };
    match op {
        Op::Transpose(op) => takes(1).and_then(|()| transpose_view(op, &operands[0], results, cx)),
        Op::Slice(op) => takes(1).and_then(|()| slice_view(op, &operands[0], results, cx)),
        Op::Expand(op) => takes(1).and_then(|()| expand_view(op, &operands[0], results, cx)),
        Op::Pad(op) => takes(1).and_then(|()| pad_view(op, &operands[0], results, cx)),
        Op::Split(op) => takes(1).and_then(|()| split_view(op, &operands[0], results, cx)),
        Op::Zigzag(op) => takes(1).and_then(|()| zigzag_view(*op, &operands[0], results, cx)),
        Op::Concat(op) => concat_views(op, operands, results, cx),
        _ => Err(KernelError::bad_call(name, "moves no elements")),
    }
}

/// The kernel of ops that leave the elements as they are: reshape, `to_global`, accumulate.
pub(crate) fn copy_elements(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([from], [to]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes one operand and gives one result"));
    };
    if from.len() != to.len() || from.dtype != to.dtype {
        let reason = format!("{}{:?} into {}{:?}", from.dtype, from.shape, to.dtype, to.shape);
        return Err(KernelError::bad_call(op.name(), reason));
    }
    if !to.is_same(from) {
        to.bytes_mut().copy_from_slice(from.bytes());
    }
    Ok(())
}

fn only_result<'a, 'b>(
    op: &'static str,
    results: Views<'a, 'b>,
) -> Result<&'a mut ViewMut<'b>, KernelError> {
    match results {
        [result] => Ok(result),
        _ => Err(KernelError::bad_call(op, "gives one result")),
    }
}

fn mismatch_error(op: &'static str, from: &View<'_>, to: &ViewMut<'_>) -> KernelError {
    KernelError::bad_call(op, format!("{:?} into {:?}", from.shape, to.shape))
}

fn transpose_view(
    op: &Transpose,
    from: &View<'_>,
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let to = only_result("transpose", results)?;
    let (own, target) = (row_major_strides(from.shape), row_major_strides(to.shape));
    let fits = op.permutation.len() == to.shape.len()
        && from.shape.len() == to.shape.len()
        && op.permutation.iter().zip(to.shape).all(|(&dim, to)| from.shape.get(dim) == Some(to));
    if !fits {
        return Err(mismatch_error("transpose", from, to));
    }
    let dim = |(to, &dim): (usize, &usize)| StridedDim {
        extent: from.shape[dim],
        from: own[dim],
        to: target[to],
    };
    let dims = op.permutation.iter().enumerate().map(dim).collect();
    strided::copy_strided("transpose", &StridedWalk { dims, from: 0, to: 0 }, from, to, cx)
}

fn slice_view(
    op: &Slice,
    from: &View<'_>,
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let to = only_result("slice", results)?;
    let rank = from.shape.len();
    if to.shape.len() != rank || [&op.starts, &op.ends, &op.steps].iter().any(|v| v.len() != rank) {
        return Err(mismatch_error("slice", from, to));
    }
    let (own, target) = (row_major_strides(from.shape), row_major_strides(to.shape));
    let mut walk = StridedWalk::default();
    for dim in 0..rank {
        let (start, step, extent) = (op.starts[dim], op.steps[dim], to.shape[dim]);
        // A dim taken whole may be split, and then both shards hold the same part.
        if extent > 0 && start + (extent - 1) * step >= from.shape[dim] {
            return Err(mismatch_error("slice", from, to));
        }
        walk.from += start * own[dim];
        walk.dims.push(StridedDim { extent, from: own[dim] * step, to: target[dim] });
    }
    strided::copy_strided("slice", &walk, from, to, cx)
}

fn expand_view(
    _op: &Expand,
    from: &View<'_>,
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let to = only_result("expand", results)?;
    let Some(skip) = to.shape.len().checked_sub(from.shape.len()) else {
        return Err(mismatch_error("expand", from, to));
    };
    let (own, target) = (row_major_strides(from.shape), row_major_strides(to.shape));
    let mut walk = StridedWalk::default();
    for (dim, &extent) in to.shape.iter().enumerate() {
        let stride = match dim.checked_sub(skip).map(|dim| (from.shape[dim], own[dim])) {
            None | Some((1, _)) => 0,
            Some((own, stride)) if own == extent => stride,
            Some(_) => return Err(mismatch_error("expand", from, to)),
        };
        walk.dims.push(StridedDim { extent, from: stride, to: target[dim] });
    }
    strided::copy_strided("expand", &walk, from, to, cx)
}

fn pad_view(
    op: &Pad,
    from: &View<'_>,
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let to = only_result("pad", results)?;
    let rank = from.shape.len();
    if to.shape.len() != rank || [&op.low, &op.high, &op.interior].iter().any(|v| v.len() != rank) {
        return Err(mismatch_error("pad", from, to));
    }
    let (own, target) = (row_major_strides(from.shape), row_major_strides(to.shape));
    let mut walk = StridedWalk::default();
    for dim in 0..rank {
        let (low, step, extent) = (op.low[dim], op.interior[dim] + 1, from.shape[dim]);
        let end = low + extent + extent.saturating_sub(1) * (step - 1) + op.high[dim];
        if end != to.shape[dim] {
            return Err(mismatch_error("pad", from, to));
        }
        walk.to += low * target[dim];
        walk.dims.push(StridedDim { extent, from: own[dim], to: target[dim] * step });
    }
    fill_view(to, op.value.0)?;
    strided::copy_strided("pad", &walk, from, to, cx)
}

fn zigzag_view(
    op: Zigzag,
    from: &View<'_>,
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let to = only_result("zigzag", results)?;
    let Some(&extent) = from.shape.get(op.dim).filter(|_| from.shape == to.shape) else {
        return Err(mismatch_error("zigzag", from, to));
    };
    let strides = row_major_strides(from.shape);
    let apart = strides[op.dim];
    for ZigzagRun { position, index, count } in zigzag_runs(extent, op.pairs) {
        let (source, target) = if op.inverse { (index, position) } else { (position, index) };
        let mut shape = from.shape.to_vec();
        shape[op.dim] = count;
        let walk =
            StridedWalk::row_major(&shape, &strides, &strides, source * apart, target * apart);
        strided::copy_strided("zigzag", &walk, from, to, cx)?;
    }
    Ok(())
}

fn concat_views(
    op: &Concat,
    operands: &[View<'_>],
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let to = only_result("concat", results)?;
    let target = row_major_strides(to.shape);
    let mut place = 0;
    for from in operands {
        check_part("concat", op.axis, from.shape, to.shape, place)?;
        let walk = StridedWalk::row_major(
            from.shape,
            &row_major_strides(from.shape),
            &target,
            0,
            place * target[op.axis],
        );
        strided::copy_strided("concat", &walk, from, to, cx)?;
        place += from.shape[op.axis];
    }
    Ok(())
}

fn split_view(
    op: &Split,
    from: &View<'_>,
    results: Views<'_, '_>,
    cx: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let own = row_major_strides(from.shape);
    let mut place = 0;
    for to in results {
        check_part("split", op.axis, to.shape, from.shape, place)?;
        let walk = StridedWalk::row_major(
            to.shape,
            &own,
            &row_major_strides(to.shape),
            place * own[op.axis],
            0,
        );
        place += to.shape[op.axis];
        strided::copy_strided("split", &walk, from, to, cx)?;
    }
    Ok(())
}

/// Checks that a part fits at `place` along a dim of the whole.
fn check_part(
    op: &'static str,
    axis: usize,
    part: &[usize],
    whole: &[usize],
    place: usize,
) -> Result<(), KernelError> {
    let fits = part.len() == whole.len()
        && axis < whole.len()
        && part.iter().zip(whole).enumerate().all(|(dim, (part, whole))| match dim == axis {
            true => place + part <= *whole,
            false => part == whole,
        });
    match fits {
        true => Ok(()),
        false => Err(KernelError::bad_call(op, format!("{part:?} at {place} of {whole:?}"))),
    }
}

/// Fills a tensor with one value; integers truncate and wrap around.
pub(crate) fn fill_view(to: &mut ViewMut<'_>, value: f64) -> Result<(), KernelError> {
    match to.dtype {
        DType::F32 => to.as_mut_slice::<f32>()?.fill(value as f32),
        DType::I64 => to.as_mut_slice::<i64>()?.fill(value as i64),
        DType::I32 => to.as_mut_slice::<i32>()?.fill(value as i64 as i32),
        DType::U8 => to.as_mut_slice::<u8>()?.fill(value as i64 as u8),
        DType::Bool => to.as_mut_slice::<u8>()?.fill(u8::from(value != 0.0)),
        DType::F16 => to.as_mut_slice()?.fill(f16::from_f64(value)),
        DType::BF16 => to.as_mut_slice()?.fill(bf16::from_f64(value)),
        DType::F8E4M3 => to.as_mut_slice::<u8>()?.fill(E4M3.encode(value as f32)),
        DType::F8E5M2 => to.as_mut_slice::<u8>()?.fill(E5M2.encode(value as f32)),
    }
    Ok(())
}
