//! Softmax, its logarithm, and their gradients: rows at a time where the dim is the last, columns in tiles otherwise.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::math;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::{Float, parts_of};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// A function of a lane of two operands, which writes that lane of the result.
type Row = fn(&[f32], &[f32], &mut [f32]);

/// The kernel of [`Op::Softmax`] and [`Op::LogSoftmax`].
pub(crate) fn softmax<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([x], [out]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes one operand and gives one result"));
    };
    let (axis, row): (usize, Row) = match op {
        Op::Softmax(op) => (op.axis, |x, _, out| softmax_row(x, out)),
        Op::LogSoftmax(op) => (op.axis, |x, _, out| log_softmax_row(x, out)),
        _ => return Err(KernelError::bad_call(op.name(), "is no softmax")),
    };
    apply_to_lanes::<T>(op.name(), axis, x, x, out, cx, row)
}

/// The kernel of [`Op::SoftmaxGrad`] and [`Op::LogSoftmaxGrad`].
pub(crate) fn softmax_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([y, dy], [out]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes two operands and gives one result"));
    };
    let (axis, row): (usize, Row) = match op {
        Op::SoftmaxGrad(op) => (op.axis, softmax_grad_row),
        Op::LogSoftmaxGrad(op) => (op.axis, log_softmax_grad_row),
        _ => return Err(KernelError::bad_call(op.name(), "is no gradient of softmax")),
    };
    apply_to_lanes::<T>(op.name(), axis, y, dy, out, cx, row)
}

/// Applies `row` to the lanes along `axis` of two operands.
fn apply_to_lanes<T: Float>(
    op: &'static str,
    axis: usize,
    x: &View<'_>,
    y: &View<'_>,
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
    row: Row,
) -> Result<(), KernelError> {
    let shape = x.shape;
    if axis >= shape.len() || y.shape != shape || out.shape != shape {
        return Err(KernelError::bad_call(
            op,
            format!("dim {axis} of {shape:?} and {:?}", y.shape),
        ));
    }
    let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let (x, y, out) = (x.as_slice::<T>()?, y.as_slice::<T>()?, out.as_mut_slice::<T>()?);
    if out.is_empty() {
        return Ok(());
    }
    let one = std::ptr::eq(x, y);
    if inner == 1 {
        let (rows, out) = (out.len() / extent, RowOutput::new(out, extent));
        return over_rows(
            cx,
            [rows, extent],
            T::scratch_len(3 * extent),
            out,
            &|range, mut out, room| {
                let [of_x, of_y, of_out] = parts_of(room);
                for (index, at) in range.enumerate() {
                    let part = at * extent..(at + 1) * extent;
                    let x = T::read_values(&x[part.clone()], of_x);
                    let y = if one { x } else { T::read_values(&y[part], of_y) };
                    T::write_values(out.row(index), of_out, |out| row(x, y, out));
                }
                Ok(())
            },
        );
    }
    let [own_x, own_y, own_out] = parts_of(cx.scratch.take::<f32>(3 * extent));
    for outer in 0..out.len() / (extent * inner) {
        for column in 0..inner {
            let start = outer * extent * inner + column;
            for i in 0..extent {
                own_x[i] = x[start + i * inner].value();
                own_y[i] = y[start + i * inner].value();
            }
            row(own_x, own_y, own_out);
            for i in 0..extent {
                out[start + i * inner] = T::round_from(own_out[i]);
            }
        }
    }
    Ok(())
}

vectorized! {
    fn softmax_row(x: &[f32], out: &mut [f32]) {
        let sum = rows::exp_and_sum(x, rows::greatest_of_row(x), out);
        let factor = 1.0 / sum;
        for out in out.iter_mut() {
            *out *= factor;
        }
    }
}

vectorized! {
    fn log_softmax_row(x: &[f32], out: &mut [f32]) {
        let greatest = rows::greatest_of_row(x);
        let log = math::log(rows::sum_exp(x, greatest));
        for (out, &x) in out.iter_mut().zip(x) {
            *out = x - greatest - log;
        }
    }
}

vectorized! {
    fn softmax_grad_row(y: &[f32], dy: &[f32], out: &mut [f32]) {
        let sum = rows::dot_product(y, dy);
        for ((out, &y), &dy) in out.iter_mut().zip(y).zip(dy) {
            *out = y * (dy - sum);
        }
    }
}

vectorized! {
    fn log_softmax_grad_row(y: &[f32], dy: &[f32], out: &mut [f32]) {
        let sum = rows::sum_row(dy);
        for ((out, &y), &dy) in out.iter_mut().zip(y).zip(dy) {
            *out = dy - math::exp(y) * sum;
        }
    }
}
