//! The best elements of each row, kept sorted while the row is read.

use std::cmp::Ordering;

use graphc_ir::op::Op;
use graphc_ir::ops::TopK;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel::{RowOutput, over_rows};
use crate::view::{Element, View, ViewMut};

/// The kernel of [`Op::TopK`]. Threads share the rows.
pub(crate) fn top_k(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::TopK(op), [x], [values, places]) = (op, operands, results) else {
        return Err(KernelError::bad_call("top_k", "takes one operand and gives two results"));
    };
    match x.dtype {
        DType::F32 => select_best::<f32>(op, x, values, places, cx),
        DType::F16 => select_best::<f16>(op, x, values, places, cx),
        DType::BF16 => select_best::<bf16>(op, x, values, places, cx),
        DType::I64 => select_best::<i64>(op, x, values, places, cx),
        DType::I32 => select_best::<i32>(op, x, values, places, cx),
        DType::U8 | DType::Bool => select_best::<u8>(op, x, values, places, cx),
        dtype @ (DType::F8E4M3 | DType::F8E5M2) => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

fn select_best<T: Element>(
    op: &TopK,
    x: &View<'_>,
    values: &mut ViewMut<'_>,
    places: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let extent = x.shape.last().copied().unwrap_or(0);
    let rows = x.len().checked_div(extent).unwrap_or(0);
    if values.len() != rows * op.count || places.len() != values.len() || op.count > extent {
        return Err(KernelError::bad_call("top_k", format!("{} of {:?}", op.count, x.shape)));
    }
    let x = x.as_slice::<T>()?;
    let values = RowOutput::new(values.as_mut_slice::<T>()?, op.count);
    let places = RowOutput::new(places.as_mut_slice::<i64>()?, op.count);
    over_rows(cx, [rows, extent], 0, (values, places), &|range, (mut values, mut places), _| {
        for (index, row) in range.enumerate() {
            let x = &x[row * extent..][..extent];
            best_of(op.greatest, x, values.row(index), places.row(index));
        }
        Ok(())
    })
}

/// The best of a row, the first of equal ones before the others.
fn best_of<T: Element>(greatest: bool, x: &[T], values: &mut [T], places: &mut [i64]) {
    let mut kept = 0;
    for (place, &value) in x.iter().enumerate() {
        let before = |other: &T| compare_elements(greatest, *other, value) != Ordering::Greater;
        let at = values[..kept].partition_point(before);
        if at == values.len() {
            continue;
        }
        kept = (kept + 1).min(values.len());
        values.copy_within(at..kept - 1, at + 1);
        places.copy_within(at..kept - 1, at + 1);
        (values[at], places[at]) = (value, place as i64);
    }
}

/// Compares two elements by their order in the result; a NaN is greater than any number.
#[allow(clippy::eq_op, reason = "what is not equal to itself is a NaN")]
fn compare_elements<T: Element>(greatest: bool, a: T, b: T) -> Ordering {
    let ascending = a.partial_cmp(&b).unwrap_or((a != a).cmp(&(b != b)));
    if greatest { ascending.reverse() } else { ascending }
}
