//! Normalization over the last dim, and its gradient.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::{Float, parts_of};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Normalize`].
pub(crate) fn normalize<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Normalize(op), [x], [y, r]) = (op, operands, results) else {
        return Err(KernelError::bad_call("normalize", "takes one operand and gives two results"));
    };
    let (center, epsilon) = (op.center, op.epsilon.0 as f32);
    let (count, extent) = rows_of("normalize", x.shape)?;
    if y.len() != count * extent || r.len() != count {
        return Err(KernelError::bad_call("normalize", "results of other shapes"));
    }
    let x = x.as_slice::<T>()?;
    let outputs = (
        RowOutput::new(y.as_mut_slice::<T>()?, extent),
        RowOutput::new(r.as_mut_slice::<f32>()?, 1),
    );
    over_rows(
        cx,
        [count, extent],
        T::scratch_len(2 * extent),
        outputs,
        &|range, (mut y, mut r), room| {
            let [of_x, of_y] = parts_of(room);
            for (index, row) in range.enumerate() {
                let x = T::read_values(&x[row * extent..(row + 1) * extent], of_x);
                let write = |y: &mut [f32]| normalize_row(x, y, center, epsilon);
                r.row(index)[0] = T::write_values(y.row(index), of_y, write);
            }
            Ok(())
        },
    )
}

/// The kernel of [`Op::NormalizeGrad`].
pub(crate) fn normalize_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::NormalizeGrad(op), [y, r, dy], [dx]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "normalize_grad",
            "takes three operands, gives one result",
        ));
    };
    let center = op.center;
    let (count, extent) = rows_of("normalize_grad", y.shape)?;
    if dy.shape != y.shape || dx.shape != y.shape || r.len() != count {
        return Err(KernelError::bad_call("normalize_grad", "operands of other shapes"));
    }
    let (y, r, dy) = (y.as_slice::<T>()?, r.as_slice::<f32>()?, dy.as_slice::<T>()?);
    let dx = RowOutput::new(dx.as_mut_slice::<T>()?, extent);
    over_rows(cx, [count, extent], T::scratch_len(3 * extent), dx, &|range, mut dx, room| {
        let [of_y, of_dy, of_dx] = parts_of(room);
        for (index, row) in range.enumerate() {
            let part = row * extent..(row + 1) * extent;
            let (y, dy) =
                (T::read_values(&y[part.clone()], of_y), T::read_values(&dy[part], of_dy));
            let write = |dx: &mut [f32]| normalize_grad_row(y, r[row], dy, dx, center);
            T::write_values(dx.row(index), of_dx, write);
        }
        Ok(())
    })
}

/// Number of rows and their extent: the last dim.
fn rows_of(op: &'static str, shape: &[usize]) -> Result<(usize, usize), KernelError> {
    let (&extent, outer) =
        shape.split_last().ok_or_else(|| KernelError::bad_call(op, "needs a last dim"))?;
    Ok((outer.iter().product(), extent))
}

vectorized! {
    /// Writes y and returns r. Two passes: the variance is about the mean, or it loses digits.
    fn normalize_row(x: &[f32], y: &mut [f32], center: bool, epsilon: f32) -> f32 {
        let count = x.len() as f32;
        let mean = if center { rows::sum_row(x) / count } else { 0.0 };
        let square = |sum: f32, [x]: [f32; 1]| sum + (x - mean) * (x - mean);
        let variance = rows::fold_row([x], 0.0, square, |a, b| a + b) / count;
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
        let shift = if center { rows::sum_row(dy) / count } else { 0.0 };
        let slope = rows::dot_product(y, dy) / count;
        for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
            *dx = r * (dy - shift - y * slope);
        }
    }
}
