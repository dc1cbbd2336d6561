//! Determinants of small matrices, by Householder reflections. Each reflection makes all elements of a column zero but one, so that the determinant
//! of a matrix that is smaller by one is left. Reflections need no exchange of rows, and lose no precision where a pivot is small.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Concat, ReduceFunction, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// The most rows of a matrix. Each takes some twenty ops.
const MOST_ROWS: usize = 32;

/// Lowers the determinants of matrices `[.., n, n]`.
pub(super) fn lower_determinant(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let [ref outer @ .., rows, columns] = shape[..] else {
        return fail_with("a matrix has two dims");
    };
    if rows != columns || !(1..=MOST_ROWS).contains(&rows) {
        return fail_with(format!(
            "the determinant is supported of square matrices of 1 to {MOST_ROWS} rows, not of {rows} x {columns}"
        ));
    }
    let count = outer.iter().product();
    let mut rest = cx.reshape(&x, &[count, rows, rows])?;
    let mut product: Option<Val> = None;
    for left in (1..rows).rev() {
        let (factor, smaller) = reflect_column(cx, &rest, left + 1)?;
        rest = smaller;
        product = Some(multiply_into_product(cx, product, factor)?);
    }
    let product = multiply_into_product(cx, product, rest)?;
    Ok(vec![cx.reshape(&product, outer)?])
}

fn multiply_into_product(cx: &mut Lowering, product: Option<Val>, factor: Val) -> Res<Val> {
    match product {
        Some(product) => cx.apply_binary(BinaryFunction::Mul, &product, &factor),
        None => Ok(factor),
    }
}

/// Clears the first column `x` of matrices by a reflection. Returns x's length with the sign of x0, `[count, 1, 1]`, and the smaller matrices that
/// are left; the determinant is the product of this number and the determinant of those. The reflection is at v = x + sign(x0) |x| e0, and A becomes
/// A - 2 v (v' A) / (v' v).
fn reflect_column(cx: &mut Lowering, x: &Val, rows: usize) -> Res<(Val, Val)> {
    let column = cx.slice(x, 2, 0, 1, 1)?;
    let square = cx.apply_binary(BinaryFunction::Mul, &column, &column)?;
    let square = cx.reduce(ReduceFunction::Sum, &square, &[1], true)?;
    let size = cx.apply_unary(UnaryFunction::Sqrt, &square)?;
    let first = cx.slice(&column, 1, 0, 1, 1)?;
    let zero = cx.number_like(&first, 0.0)?;
    let negative = cx.apply_binary(BinaryFunction::Less, &first, &zero)?;
    let opposite = cx.apply_unary(UnaryFunction::Neg, &size)?;
    let factor = cx.apply(Op::Where(Where {}), &[negative, opposite, size])?;
    let head = cx.apply_binary(BinaryFunction::Add, &first, &factor)?;
    let tail = cx.slice(&column, 1, 1, rows, 1)?;
    let v = cx.apply(Op::Concat(Concat { axis: 1 }), &[head, tail.clone()])?;
    let length = cx.apply_binary(BinaryFunction::Mul, &v, &v)?;
    let length = cx.reduce(ReduceFunction::Sum, &length, &[1], true)?;
    // A column of zeros is left as it is.
    let none = cx.apply_binary(BinaryFunction::Equal, &length, &zero)?;
    let one = cx.number_like(&length, 1.0)?;
    let length = cx.apply(Op::Where(Where {}), &[none, one, length])?;
    let others = cx.slice(x, 2, 1, rows, 1)?;
    let along = cx.matmul(&v, &others, true, false)?;
    let along = cx.apply_unary(UnaryFunction::Scale(Scalar(2.0)), &along)?;
    let along = cx.apply_binary(BinaryFunction::Div, &along, &length)?;
    let change = cx.apply_binary(BinaryFunction::Mul, &tail, &along)?;
    let below = cx.slice(&others, 1, 1, rows, 1)?;
    Ok((factor, cx.apply_binary(BinaryFunction::Sub, &below, &change)?))
}
