//! Interpolation along a dim: rows of elements behind it are added up with weights.

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::ops::Taps;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{self, RowOutput};
use crate::precision::Float;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Resize`] and [`Op::ResizeGrad`].
pub(crate) fn resize<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([x], [out]) = (operands, results) else {
        return Err(KernelError::bad_call("resize", "takes one operand and gives one result"));
    };
    let (axis, taps) = match op {
        Op::Resize(op) => {
            (op.axis, x.shape.get(op.axis).map(|&from| op.sampling.taps(from, op.extent)))
        }
        Op::ResizeGrad(op) => {
            let taps = |&places| op.sampling.taps(op.extent, places).transpose(op.extent);
            (op.axis, x.shape.get(op.axis).map(taps))
        }
        _ => return Err(KernelError::bad_call("resize", "is another op")),
    };
    let Some(taps) = taps.filter(|taps| shapes_fit(axis, taps, x.shape, out.shape)) else {
        return Err(KernelError::bad_call("resize", format!("{:?} to {:?}", x.shape, out.shape)));
    };
    let (from, to) = (x.shape[axis], out.shape[axis]);
    let width: usize = x.shape[axis + 1..].iter().product();
    let (x, out) = (x.as_slice::<T>()?, out.as_mut_slice::<T>()?);
    if out.is_empty() {
        return Ok(());
    }
    let rows = out.len() / width;
    let weight = width * taps.taps.len().div_ceil(to);
    let work = |range: Range<usize>, mut out: RowOutput<'_, T>, room: &mut [f32]| {
        for (index, row) in range.enumerate() {
            let slab = &x[row / to * from * width..][..from * width];
            let taps = taps.element_taps(row % to);
            match width {
                1 => out.row(index)[0] = T::round_from(sum_elements(slab, taps)),
                _ => T::write_values(out.row(index), room, |out| sum_rows(slab, taps, out)),
            }
        }
        Ok(())
    };
    parallel::over_rows(
        cx,
        [rows, weight],
        T::scratch_len(width),
        RowOutput::new(out, width),
        &work,
    )
}

/// Whether the shapes are one but for a dim, which has the elements that the taps are for.
fn shapes_fit(axis: usize, taps: &Taps, x: &[usize], out: &[usize]) -> bool {
    let others = |shape: &[usize]| [&shape[..axis], &shape[axis + 1..]].concat();
    x.len() == out.len() && others(x) == others(out) && out[axis] + 1 == taps.starts.len()
}

/// The weighted sum of single elements.
fn sum_elements<T: Float>(x: &[T], taps: &[(usize, f64)]) -> f32 {
    taps.iter().fold(0.0, |sum, &(at, weight)| sum + weight as f32 * x[at].value())
}

vectorized! {
    /// The weighted sum of rows.
    fn sum_rows<T: Float>(x: &[T], taps: &[(usize, f64)], out: &mut [f32]) {
        out.fill(0.0);
        for &(at, weight) in taps {
            let (weight, row) = (weight as f32, &x[at * out.len()..]);
            for (out, x) in out.iter_mut().zip(row) {
                *out += weight * x.value();
            }
        }
    }
}
