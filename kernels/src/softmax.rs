//! Softmax, its logarithm, and their gradients: rows at a time where the dim is the last, columns in tiles otherwise.

use graphc_ir::op::Op;
use graphc_ir::types::DType;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::math;
use crate::parallel;
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// What is done to a lane of two operands.
type Row = fn(&[f32], &[f32], &mut [f32]);

/// The kernel of [`Op::Softmax`] and [`Op::LogSoftmax`].
pub(crate) fn softmax(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([x], [out]) = (operands, results) else {
        return Err(KernelError::call(op.name(), "takes one operand and gives one result"));
    };
    let (axis, row): (usize, Row) = match op {
        Op::Softmax(op) => (op.axis, |x, _, out| softmax_row(x, out)),
        Op::LogSoftmax(op) => (op.axis, |x, _, out| log_softmax_row(x, out)),
        _ => return Err(KernelError::call(op.name(), "is no softmax")),
    };
    lanes(op.name(), axis, x, x, out, cx, row)
}

/// The kernel of [`Op::SoftmaxGrad`] and [`Op::LogSoftmaxGrad`].
pub(crate) fn softmax_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([y, dy], [out]) = (operands, results) else {
        return Err(KernelError::call(op.name(), "takes two operands and gives one result"));
    };
    let (axis, row): (usize, Row) = match op {
        Op::SoftmaxGrad(op) => (op.axis, softmax_grad_row),
        Op::LogSoftmaxGrad(op) => (op.axis, log_softmax_grad_row),
        _ => return Err(KernelError::call(op.name(), "is no gradient of softmax")),
    };
    lanes(op.name(), axis, y, dy, out, cx, row)
}

/// Applies `row` to the lanes along `axis` of two operands.
fn lanes(
    op: &'static str,
    axis: usize,
    x: &View<'_>,
    y: &View<'_>,
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
    row: Row,
) -> Result<(), KernelError> {
    let shape = x.shape;
    if axis >= shape.len() || y.shape != shape || out.shape != shape || out.dtype != DType::F32 {
        return Err(KernelError::call(op, format!("dim {axis} of {shape:?} and {:?}", y.shape)));
    }
    let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let (x, y, out) = (x.as_slice::<f32>()?, y.as_slice::<f32>()?, out.as_mut_slice::<f32>()?);
    if out.is_empty() {
        return Ok(());
    }
    if inner == 1 {
        let rows = out.len() / extent;
        return parallel::over_rows(cx, rows, extent, [out], [extent], |range, [out]| {
            let part = range.start * extent..range.end * extent;
            let operands = x[part.clone()].chunks_exact(extent).zip(y[part].chunks_exact(extent));
            for ((x, y), out) in operands.zip(out.chunks_exact_mut(extent)) {
                row(x, y, out);
            }
            Ok(())
        });
    }
    let buffers = cx.scratch.take::<f32>(3 * extent);
    let (own_x, rest) = buffers.split_at_mut(extent);
    let (own_y, own_out) = rest.split_at_mut(extent);
    for outer in 0..out.len() / (extent * inner) {
        for column in 0..inner {
            let start = outer * extent * inner + column;
            for i in 0..extent {
                own_x[i] = x[start + i * inner];
                own_y[i] = y[start + i * inner];
            }
            row(own_x, own_y, own_out);
            for i in 0..extent {
                out[start + i * inner] = own_out[i];
            }
        }
    }
    Ok(())
}

vectorized! {
    fn softmax_row(x: &[f32], out: &mut [f32]) {
        let sum = rows::exp_and_sum(x, rows::greatest(x), out);
        let factor = 1.0 / sum;
        for out in out.iter_mut() {
            *out *= factor;
        }
    }
}

vectorized! {
    fn log_softmax_row(x: &[f32], out: &mut [f32]) {
        let greatest = rows::greatest(x);
        let log = math::log(rows::sum_exp(x, greatest));
        for (out, &x) in out.iter_mut().zip(x) {
            *out = x - greatest - log;
        }
    }
}

vectorized! {
    fn softmax_grad_row(y: &[f32], dy: &[f32], out: &mut [f32]) {
        let sum = rows::dot(y, dy);
        for ((out, &y), &dy) in out.iter_mut().zip(y).zip(dy) {
            *out = y * (dy - sum);
        }
    }
}

vectorized! {
    fn log_softmax_grad_row(y: &[f32], dy: &[f32], out: &mut [f32]) {
        let sum = rows::sum(dy);
        for ((out, &y), &dy) in out.iter_mut().zip(y).zip(dy) {
            *out = dy - math::exp(y) * sum;
        }
    }
}
