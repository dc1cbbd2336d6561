//! Matrix product.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::float8::{E4M3, Float8Format};
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::ops::broadcast::{broadcast_dims, fit_to_dtype, same_dtype};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// `[.., i, k] x [.., k, j] -> [.., i, j]`; leading dims broadcast; both operands of rank 2 or more. The result has the type of the operands.
///
/// Operands of f8e4m3 and f8e5m2, one of each or two of one, give bf16. They may bring the sizes by which they were rounded ([`BinaryFunction::RoundFloat8`]), as two more operands
/// of f32, f16 or bf16, of the ranks of the first two: one for each row of the first operand and one for each column of the second, or one for
/// all, so their inner extents are 1. Then the product is divided by both scales.
///
/// [`BinaryFunction::RoundFloat8`]: crate::ops::BinaryFunction::RoundFloat8
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MatMul {
    /// Whether the first operand is given as `[.., k, i]`.
    pub transpose_a: bool,
    /// Whether the second operand is given as `[.., j, k]`.
    pub transpose_b: bool,
}

impl MatMul {
    /// Returns the extents (i, k) of the first operand and (k, j) of the second, of the shapes of whole tensors or shards.
    pub(crate) fn matrix_extents(
        &self,
        a: &[usize],
        b: &[usize],
    ) -> ((usize, usize), (usize, usize)) {
        (rows_and_columns(a, self.transpose_a), rows_and_columns(b, self.transpose_b))
    }

    fn check_shapes(&self, operands: &[&TensorType]) -> Result<(), OpError> {
        let (a, b) = (&operands[0].shape, &operands[1].shape);
        if a.len() < 2 || b.len() < 2 {
            return Err(shape_error(self.name(), operands, "both operands need rank 2 or more"));
        }
        let ((_, inner_a), (inner_b, _)) = self.matrix_extents(a, b);
        if inner_a != inner_b {
            let reason = format!(
                "the inner extents {inner_a} and {inner_b} differ{}",
                self.describe_transposes()
            );
            return Err(shape_error(self.name(), operands, reason));
        }
        Ok(())
    }

    fn describe_transposes(&self) -> &'static str {
        match (self.transpose_a, self.transpose_b) {
            (false, false) => "",
            (true, false) => " (the first operand is transposed)",
            (false, true) => " (the second operand is transposed)",
            (true, true) => " (both operands are transposed)",
        }
    }

    /// Checks the element types of the sizes by which operands were rounded, where there are such.
    fn check_size_types(&self, operands: &[&TensorType]) -> Result<(), OpError> {
        let &[a, _, of_rows, of_columns] = operands else { return Ok(()) };
        let reason = match () {
            () if !a.dtype.is_float8() => "only operands of 8 bits bring sizes",
            () if !of_rows.dtype.is_float() || !of_columns.dtype.is_float() => {
                "sizes must be floating-point numbers"
            }
            () => return Ok(()),
        };
        Err(dtype_error(self.name(), operands, reason))
    }

    /// Checks the shapes of the sizes by which operands were rounded, where there are such: those of rows and of columns.
    fn check_sizes(&self, operands: &[&TensorType], extents: [usize; 2]) -> Result<(), OpError> {
        if operands.len() < 4 {
            return Ok(());
        }
        let transposed = [self.transpose_a, !self.transpose_b];
        for (place, (transposed, extent)) in transposed.into_iter().zip(extents).enumerate() {
            let (factor, sizes) = (&operands[place].shape, &operands[place + 2].shape);
            let (outer, inner) = rows_and_columns(sizes, transposed);
            let fits = inner == 1 && (outer == extent || outer == 1);
            if sizes.len() != factor.len() || !fits {
                let each = ["row of the first", "column of the second"][place];
                let reason = format!("the sizes need an element for each {each}, or one for all");
                return Err(shape_error(self.name(), operands, reason));
            }
        }
        Ok(())
    }

    /// Divides a product by the scales of its rows and of its columns, which follow from their sizes.
    fn divide_by_scales(
        &self,
        product: &mut Array,
        formats: [Float8Format; 2],
        [of_rows, of_columns]: [&Array; 2],
    ) {
        let scales = |format: Float8Format, sizes: &Array, index: &[usize]| -> Vec<f64> {
            let sizes = matrix_at(sizes, index).iter();
            sizes.map(|&size| f64::from(format.scale_for(size as f32))).collect()
        };
        let extents = product.shape[product.shape.len() - 2..].to_vec();
        let (rows, columns) = (extents[0], extents[1]);
        let batch = batch_dims(&product.shape).to_vec();
        for (position, matrix) in product.data.chunks_exact_mut((rows * columns).max(1)).enumerate()
        {
            let index = unravel_position(position, &batch);
            let of_rows = scales(formats[0], of_rows, &index);
            let of_columns = scales(formats[1], of_columns, &index);
            for (element, value) in matrix.iter_mut().enumerate() {
                let (i, j) = (element / columns, element % columns);
                *value /=
                    of_rows[i.min(of_rows.len() - 1)] * of_columns[j.min(of_columns.len() - 1)];
            }
        }
    }
}

/// Returns the numbers of rows and columns of the matrices of a tensor.
fn rows_and_columns(shape: &[usize], transposed: bool) -> (usize, usize) {
    let [.., rows, columns] = *shape else { return (1, 1) };
    if transposed { (columns, rows) } else { (rows, columns) }
}

fn batch_dims(shape: &[usize]) -> &[usize] {
    &shape[..shape.len() - 2]
}

impl Operation for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if operands.len() != 4 {
            check_arity(
                self.name(),
                operands,
                2,
                "2 operands, or 4 of which 2 are of f8e4m3 or f8e5m2",
            )?;
        }
        let both_float8 = operands[..2].iter().all(|ty| ty.dtype.is_float8());
        let dtype = match both_float8 {
            true => operands[0].dtype,
            false => same_dtype(self.name(), &operands[..2])?,
        };
        self.check_size_types(operands)?;
        match dtype {
            DType::Bool => Err(dtype_error(self.name(), operands, "elements must be numeric")),
            DType::F8E4M3 | DType::F8E5M2 => Ok(vec![DType::BF16]),
            dtype => Ok(vec![dtype]),
        }
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        self.check_shapes(operands)?;
        let (a, b) = (&operands[0].shape, &operands[1].shape);
        let ((rows, inner), (_, columns)) = self.matrix_extents(a, b);
        self.check_sizes(operands, [rows, columns])?;
        let mut rule = Rule { linear: vec![vec![0], vec![1]], ..Rule::default() };
        let batches: Vec<&[usize]> = operands.iter().map(|ty| batch_dims(&ty.shape)).collect();
        let (mut dims, mut result) = broadcast_dims(&mut rule, &batches).ok_or_else(|| {
            shape_error(self.name(), operands, "the leading dims do not broadcast")
        })?;
        let i = DimRule::Factors(vec![rule.add_factor(rows, FactorKind::Parallel)]);
        let j = DimRule::Factors(vec![rule.add_factor(columns, FactorKind::Parallel)]);
        let k = rule.add_factor(inner, FactorKind::Reduction(ReduceKind::Sum));
        let k = DimRule::Factors(vec![k]);
        let ordered = |first, second, swap| if swap { [second, first] } else { [first, second] };
        dims[0].extend(ordered(i.clone(), k.clone(), self.transpose_a));
        dims[1].extend(ordered(k, j.clone(), self.transpose_b));
        if let &[_, _, of_rows, of_columns] = operands {
            let none = || DimRule::Factors(Vec::new());
            let outer = |sizes: &[usize], transposed, dim: &DimRule| {
                let extent = rows_and_columns(sizes, transposed).0;
                if extent == 1 { none() } else { dim.clone() }
            };
            let of_i = outer(&of_rows.shape, self.transpose_a, &i);
            let of_j = outer(&of_columns.shape, !self.transpose_b, &j);
            dims[2].extend(ordered(of_i, none(), self.transpose_a));
            dims[3].extend(ordered(none(), of_j, self.transpose_b));
        }
        result.extend([i, j]);
        (rule.operands, rule.results) = (dims, vec![result]);
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        2.0
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (a, b) = (operands[0].array, operands[1].array);
        let ((rows, inner), (_, columns)) = self.matrix_extents(&a.shape, &b.shape);
        // Sums begin with -0.0, so that zeros keep their signs.
        let mut result = Array::full(results[0].rect.extent.clone(), -0.0);
        for (position, matrix) in result.data.chunks_exact_mut((rows * columns).max(1)).enumerate()
        {
            let index = unravel_position(position, batch_dims(&results[0].rect.extent));
            let left = stored_by_rows(matrix_at(a, &index), [rows, inner], self.transpose_a);
            let right = stored_by_rows(matrix_at(b, &index), [inner, columns], self.transpose_b);
            // Each element is a sum over k in order.
            for (i, row) in matrix.chunks_exact_mut(columns.max(1)).enumerate() {
                for k in 0..inner {
                    let x = left[i * inner + k];
                    row.iter_mut().zip(&right[k * columns..]).for_each(|(sum, y)| *sum += x * y);
                }
            }
        }
        if let [_, _, of_rows, of_columns] = operands {
            let format = |place: usize| operands[place].region.dtype.float8_format();
            let formats = [0, 1].map(|place| format(place).unwrap_or(E4M3));
            self.divide_by_scales(&mut result, formats, [of_rows.array, of_columns.array]);
        }
        let dtype = results[0].dtype;
        result.data.iter_mut().for_each(|value| *value = fit_to_dtype(dtype, *value));
        Ok(vec![result])
    }
}

/// Returns a matrix by its rows, whether it is stored by rows or by columns.
fn stored_by_rows(matrix: &[f64], [rows, columns]: [usize; 2], transposed: bool) -> Cow<'_, [f64]> {
    if !transposed {
        return Cow::Borrowed(matrix);
    }
    let element = |at: usize| matrix[at % columns * rows + at / columns];
    Cow::Owned((0..rows * columns).map(element).collect())
}

/// Returns the elements of the matrix of a tensor at an index of the broadcast leading dims.
fn matrix_at<'a>(array: &'a Array, index: &[usize]) -> &'a [f64] {
    let leading = batch_dims(&array.shape);
    let size: usize = array.shape[leading.len()..].iter().product();
    let skip = index.len() - leading.len();
    let clamped = index[skip..].iter().zip(leading).map(|(&i, &n)| if n == 1 { 0 } else { i });
    let position = clamped.zip(leading).fold(0, |position, (i, n)| position * n + i);
    &array.data[position * size..(position + 1) * size]
}
