//! Running sums. Floating-point ones are kept in `f64`, and each is rounded once.

use graphc_ir::op::Op;
use graphc_ir::ops::CumulativeSum;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::Float;
use crate::view::{Element, View, ViewMut};

/// The kernel of [`Op::CumulativeSum`].
pub(crate) fn cumulative_sum(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::CumulativeSum(op), [x], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "cumulative_sum",
            "takes one operand and gives one result",
        ));
    };
    if x.shape != out.shape || op.axis >= x.shape.len() {
        return Err(KernelError::bad_call(
            "cumulative_sum",
            format!("dim {} of {:?}", op.axis, x.shape),
        ));
    }
    match x.dtype {
        DType::F32 => accumulate_floats::<f32>(op, x, out, cx),
        DType::F16 => accumulate_floats::<f16>(op, x, out, cx),
        DType::BF16 => accumulate_floats::<bf16>(op, x, out, cx),
        DType::I64 => accumulate_integers::<i64>(op, x, out, cx),
        DType::I32 => accumulate_integers::<i32>(op, x, out, cx),
        DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => {
            Err(KernelError::bad_call("cumulative_sum", "of elements of 8 bits"))
        }
    }
}

fn accumulate_floats<T: Float>(
    op: &CumulativeSum,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let add = |sum: f64, x: T| sum + f64::from(x.value());
    accumulate_lanes(op, x, out, cx, add, |sum| T::round_from(sum as f32))
}

fn accumulate_integers<T: Integer>(
    op: &CumulativeSum,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let add = |sum: i64, x: T| sum.wrapping_add(x.into());
    accumulate_lanes(op, x, out, cx, add, T::wrap)
}

/// Sums each lane of slabs [extent, inner]; threads share the slabs.
fn accumulate_lanes<T: Element, S: Copy + Default>(
    op: &CumulativeSum,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
    add: impl Fn(S, T) -> S + Send + Sync,
    rounded: impl Fn(S) -> T + Send + Sync,
) -> Result<(), KernelError> {
    let extent = x.shape[op.axis];
    let inner: usize = x.shape[op.axis + 1..].iter().product();
    let slab = extent * inner;
    if out.is_empty() {
        return Ok(());
    }
    let (x, slabs) = (x.as_slice::<T>()?, out.len() / slab);
    let out = RowOutput::new(out.as_mut_slice::<T>()?, slab);
    over_rows(cx, [slabs, slab], 0, out, &|range, mut out, _| {
        for (index, first) in range.enumerate() {
            let (x, out) = (&x[first * slab..][..slab], out.row(index));
            for lane in 0..inner {
                let mut sum = S::default();
                for step in 0..extent {
                    let place = if op.reverse { extent - 1 - step } else { step };
                    let at = place * inner + lane;
                    let before = sum;
                    sum = add(sum, x[at]);
                    out[at] = rounded(if op.exclusive { before } else { sum });
                }
            }
        }
        Ok(())
    })
}
