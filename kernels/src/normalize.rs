//! Normalization over the last dim, and its gradient.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Normalize`].
pub(crate) fn normalize(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Normalize(op), [x], [y, r]) = (op, operands, results) else {
        return Err(KernelError::call("normalize", "takes one operand and gives two results"));
    };
    let (center, epsilon) = (op.center, op.epsilon.0 as f32);
    let (count, extent) = rows_of("normalize", x.shape)?;
    if y.len() != count * extent || r.len() != count {
        return Err(KernelError::call("normalize", "results of other shapes"));
    }
    let x = x.as_slice::<f32>()?;
    let (y, r) = (y.as_mut_slice::<f32>()?, r.as_mut_slice::<f32>()?);
    parallel::over_rows(cx, count, extent, [y, r], [extent, 1], |range, [y, r]| {
        for (index, (row, r)) in range.zip(r).enumerate() {
            let y = &mut y[index * extent..(index + 1) * extent];
            *r = normalize_row(&x[row * extent..(row + 1) * extent], y, center, epsilon);
        }
        Ok(())
    })
}

/// The kernel of [`Op::NormalizeGrad`].
pub(crate) fn normalize_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::NormalizeGrad(op), [y, r, dy], [dx]) = (op, operands, results) else {
        return Err(KernelError::call("normalize_grad", "takes three operands, gives one result"));
    };
    let center = op.center;
    let (count, extent) = rows_of("normalize_grad", y.shape)?;
    if dy.shape != y.shape || dx.shape != y.shape || r.len() != count {
        return Err(KernelError::call("normalize_grad", "operands of other shapes"));
    }
    let (y, r, dy) = (y.as_slice::<f32>()?, r.as_slice::<f32>()?, dy.as_slice::<f32>()?);
    let dx = dx.as_mut_slice::<f32>()?;
    parallel::over_rows(cx, count, extent, [dx], [extent], |range, [dx]| {
        for (index, row) in range.enumerate() {
            let part = row * extent..(row + 1) * extent;
            let dx = &mut dx[index * extent..(index + 1) * extent];
            normalize_grad_row(&y[part.clone()], r[row], &dy[part], dx, center);
        }
        Ok(())
    })
}

/// Number of rows and their extent: the last dim.
fn rows_of(op: &'static str, shape: &[usize]) -> Result<(usize, usize), KernelError> {
    let (&extent, outer) =
        shape.split_last().ok_or_else(|| KernelError::call(op, "needs a last dim"))?;
    Ok((outer.iter().product(), extent))
}

vectorized! {
    /// Writes y and returns r. Two passes: the variance is about the mean, or it loses digits.
    fn normalize_row(x: &[f32], y: &mut [f32], center: bool, epsilon: f32) -> f32 {
        let count = x.len() as f32;
        let mean = if center { rows::sum(x) / count } else { 0.0 };
        let square = |sum: f32, [x]: [f32; 1]| sum + (x - mean) * (x - mean);
        let variance = rows::fold([x], 0.0, square, |a, b| a + b) / count;
        let r = 1.0 / (variance + epsilon).sqrt();
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (x - mean) * r;
        }
        r
    }
}

vectorized! {
    fn normalize_grad_row(y: &[f32], r: f32, dy: &[f32], dx: &mut [f32], center: bool) {
        let count = y.len() as f32;
        let shift = if center { rows::sum(dy) / count } else { 0.0 };
        let slope = rows::dot(y, dy) / count;
        for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
            *dx = r * (dy - shift - y * slope);
        }
    }
}
