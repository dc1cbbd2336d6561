//! Products of numbers of 8 bits: they are multiplied as bf16, which has all these numbers, and the product is divided by the scales of its rows and
//! columns. Scales are powers of two, so the division rounds nothing.

use graphc_ir::float8::Float8Format;
use half::bf16;

use super::{BatchProduct, batch_start, batch_strides, split_batch};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::float8::{formats_of, invert_sizes, widen_numbers};
use crate::parallel::{RowOutput, over_rows};
use crate::precision::Float;
use crate::product::Write;
use crate::view::{View, ViewMut};

impl BatchProduct {
    /// Multiplies operands of 8 bits; behind them may be the sizes by which their rows and columns were rounded.
    pub(super) fn multiply_float8(
        &self,
        operands: &[View<'_>],
        out: &mut ViewMut<'_>,
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let [a, b] = [operands[0].as_slice::<u8>()?, operands[1].as_slice::<u8>()?];
        let (lines, scratch) = cx.scratch.nested();
        let (wide_a, wide_b) = lines.take::<bf16, bf16>([a.len(), b.len()]);
        let formats = formats_of([&operands[0], &operands[1]])?;
        widen_numbers(formats[0], a, wide_a);
        widen_numbers(formats[1], b, wide_b);
        let nested = &mut KernelContext { scratch, ..*cx };
        self.multiply_slices::<bf16, bf16>([wide_a, wide_b], out, Write::Replace, nested)?;
        match operands {
            [_, _, of_rows, of_columns] => {
                divide_by_scales([of_rows, of_columns], formats, out, cx)
            }
            _ => Ok(()),
        }
    }
}

/// Divides products by the scales of their rows and columns.
fn divide_by_scales(
    [of_rows, of_columns]: [&View<'_>; 2],
    formats: [Float8Format; 2],
    out: &mut ViewMut<'_>,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let misfit = || {
        let reason = format!("sizes {:?} and {:?} of a product", of_rows.shape, of_columns.shape);
        KernelError::bad_call("matmul", reason)
    };
    if out.is_empty() {
        return Ok(());
    }
    let (batch, [rows, columns]) = split_batch(out.shape);
    let (lines, scratch) = cx.scratch.nested();
    let (row_factors, column_factors) = lines.take::<f32, f32>([of_rows.len(), of_columns.len()]);
    invert_sizes(formats[0], of_rows, row_factors)?;
    invert_sizes(formats[1], of_columns, column_factors)?;
    // The extents of sizes but that of 1: one for each row or column, or one for all.
    let steps = |sizes: &View<'_>, extent: usize| {
        let (batch_of_sizes, [one, two]) = split_batch(sizes.shape);
        let each = one * two;
        let fits = each == extent || each == 1;
        let strides = batch_strides(batch_of_sizes, batch, each).filter(|_| fits);
        strides.map(|strides| (strides, usize::from(each > 1))).ok_or_else(misfit)
    };
    let (row_strides, row_step) = steps(of_rows, rows)?;
    let (column_strides, column_step) = steps(of_columns, columns)?;
    let (row_factors, column_factors) = (&*row_factors, &*column_factors);
    let cx = &mut KernelContext { scratch, ..*cx };
    let count = out.len() / columns;
    let out = RowOutput::new(out.as_mut_slice::<bf16>()?, columns);
    over_rows(cx, [count, columns], 0, out, &|range, mut out, _| {
        let first = range.start;
        for row in range {
            let (matrix, index) = (row / rows, row % rows);
            let of_row = row_factors[batch_start(matrix, batch, &row_strides) + index * row_step];
            let start = batch_start(matrix, batch, &column_strides);
            for (column, value) in out.row(row - first).iter_mut().enumerate() {
                let factor = column_factors[start + column * column_step];
                *value = bf16::round_from(Float::value(*value) * of_row * factor);
            }
        }
        Ok(())
    })
}
