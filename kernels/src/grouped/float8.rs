//! Products of experts in 8 bits: factors are multiplied as bf16, which has all their numbers, and products are divided by the scales of both. Scales are
//! powers of two, so the division rounds nothing.

use graphc_ir::op::Op;
use half::bf16;

use super::{GroupedOuterProduct, GroupedProduct};
use crate::context::KernelContext;
use crate::error::KernelError;
use crate::float8::{formats_of, invert_sizes, widen_numbers};
use crate::product::Number;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::GroupedMatMul`] for numbers of 8 bits.
pub(crate) fn grouped_matmul_float8(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::GroupedMatMul(op), [x, matrices, chosen, sizes @ ..], [y]) = (op, operands, results)
    else {
        return Err(KernelError::bad_call("grouped_matmul", "takes three operands, one result"));
    };
    let product = GroupedProduct::new(op, [x, matrices, chosen], y)?;
    let inner = if op.transpose_b { 2 } else { 1 };
    with_wide_factors([x, matrices], sizes, cx, |factors, scales, cx| {
        let scales = scales.map(|factors| ScalesOfProduct { factors, inner });
        product.multiply(factors, y.as_mut_slice::<bf16>()?, scales.as_ref(), cx)
    })
}

/// The kernel of [`Op::GroupedMatMulGrad`] for numbers of 8 bits.
pub(crate) fn grouped_matmul_grad_float8(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::GroupedMatMulGrad(op), [x, y, chosen, sizes @ ..], [out]) = (op, operands, results)
    else {
        let name = "grouped_matmul_grad";
        return Err(KernelError::bad_call(name, "takes three operands, one result"));
    };
    let product = GroupedOuterProduct::new(op, [x, y, chosen], out)?;
    with_wide_factors([x, y], sizes, cx, |factors, scales, cx| {
        let scales = scales.map(|factors| ScalesOfProduct { factors, inner: 0 });
        product.multiply(factors, out.as_mut_slice::<bf16>()?, scales.as_ref(), cx)
    })
}

/// Calls `body` with both factors as bf16, and with the inverses of their scales if there are sizes.
fn with_wide_factors(
    factors: [&View<'_>; 2],
    sizes: &[View<'_>],
    cx: &mut KernelContext<'_>,
    body: impl FnOnce(
        [&[bf16]; 2],
        Option<[Inverses<'_>; 2]>,
        &mut KernelContext<'_>,
    ) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let formats = formats_of(factors)?;
    let [a, b] = [factors[0].as_slice::<u8>()?, factors[1].as_slice::<u8>()?];
    let (lines, scratch) = cx.scratch.nested();
    let (wide_a, wide_b) = lines.take::<bf16, bf16>([a.len(), b.len()]);
    widen_numbers(formats[0], a, wide_a);
    widen_numbers(formats[1], b, wide_b);
    let (lines, scratch) = scratch.nested();
    let [of_a, of_b] = sizes else {
        return body([wide_a, wide_b], None, &mut KernelContext { scratch, ..*cx });
    };
    let (inverse_a, inverse_b) = lines.take::<f32, f32>([of_a.len(), of_b.len()]);
    invert_sizes(formats[0], of_a, inverse_a)?;
    invert_sizes(formats[1], of_b, inverse_b)?;
    let inverses = [Inverses::new(of_a, inverse_a), Inverses::new(of_b, inverse_b)];
    body([wide_a, wide_b], Some(inverses), &mut KernelContext { scratch, ..*cx })
}

/// The inverses of the scales of a factor.
struct Inverses<'a> {
    values: &'a [f32],
    /// How far apart they are in each dim; 0 where elements have one.
    strides: Vec<usize>,
}

impl<'a> Inverses<'a> {
    fn new(sizes: &View<'_>, values: &'a [f32]) -> Self {
        let mut strides = vec![0; sizes.shape.len()];
        let mut stride = 1;
        for (to, &extent) in strides.iter_mut().zip(sizes.shape).rev() {
            *to = if extent == 1 { 0 } else { stride };
            stride *= extent;
        }
        Self { values, strides }
    }

    /// Returns where the inverse of an element is that has this index in the shard.
    fn place_of(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum()
    }

    /// Returns the inverses from an element on along a dim.
    fn along<'s>(&'s self, index: &[usize], dim: usize) -> impl Iterator<Item = f32> + use<'s, 'a> {
        let (first, stride) = (self.place_of(index), self.strides[dim]);
        (0..).map(move |step| self.values[first + step * stride])
    }
}

/// What products of experts are divided by.
pub(super) struct ScalesOfProduct<'a> {
    factors: [Inverses<'a>; 2],
    /// The dim of matrices that is summed over.
    inner: usize,
}

impl ScalesOfProduct<'_> {
    /// Divides the products of a run of places, whose first one has this index, with the matrix of an expert of the shard.
    pub(super) fn divide_run<T: Number>(
        &self,
        [block, group, place]: [usize; 3],
        expert: usize,
        products: &mut [T],
        columns: usize,
    ) {
        let [of_places, of_matrices] = &self.factors;
        let of_rows = of_places.along(&[block, group, place, 0], 2);
        for (row, of_row) in products.chunks_mut(columns).zip(of_rows) {
            let of_columns = of_matrices.along(&[expert, 0, 0], 3 - self.inner);
            for (product, of_column) in row.iter_mut().zip(of_columns) {
                *product = T::round_from(product.value() * of_row * of_column);
            }
        }
    }

    /// Divides the sums of an expert of a block.
    pub(super) fn divide_sums(&self, block: usize, sums: &mut [f32], columns: usize) {
        let [of_rows, of_columns] = &self.factors;
        let of_rows = of_rows.along(&[block, 0, 0, 0], 3);
        for (row, of_row) in sums.chunks_mut(columns.max(1)).zip(of_rows) {
            let of_columns = of_columns.along(&[block, 0, 0, 0], 3);
            row.iter_mut().zip(of_columns).for_each(|(sum, of_column)| {
                *sum = *sum * of_row * of_column;
            });
        }
    }
}
