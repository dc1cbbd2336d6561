//! Determinants and inverses of small square matrices, by Householder reflections (Householder, 1958; Golub and Van Loan, Matrix Computations,
//! 5.2). Each reflection makes all elements of a column zero but one. Reflections need no exchange of rows, and lose no precision where a pivot is
//! small.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Concat, ReduceFunction, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::TensorType;

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// The most rows of a matrix. Each takes some twenty ops.
const MOST_ROWS: usize = 32;

/// Lowers the determinants of matrices `[.., n, n]`: the product of the lengths of their columns, each after the reflections of those before it.
pub(super) fn lower_determinant(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let SquareMatrices { values, outer, rows } = take_matrices(cx, call, "the determinant")?;
    let mut rest = values;
    let mut product: Option<Val> = None;
    for left in (2..=rows).rev() {
        let reflection = Reflection::of_column(cx, &rest, [left, left])?;
        rest = reflection.rows_below(cx)?;
        product = Some(multiply_into_product(cx, product, reflection.factor)?);
    }
    let product = multiply_into_product(cx, product, rest)?;
    Ok(vec![cx.reshape(&product, &outer)?])
}

/// Lowers the inverses of matrices `[.., n, n]`: with the identity beside them, reflections leave R beside Q', and X in R X = Q' is the inverse.
pub(super) fn lower_inverse(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let SquareMatrices { values, outer, rows } = take_matrices(cx, call, "the inverse")?;
    let mut rest = with_identity(cx, &values, rows)?;
    let mut reduced = Vec::new();
    for left in (2..=rows).rev() {
        let reflection = Reflection::of_column(cx, &rest, [left, left + rows])?;
        let pivot = cx.apply_unary(UnaryFunction::Neg, &reflection.factor)?;
        reduced.push((pivot, reflection.first_row(cx)?));
        rest = reflection.rows_below(cx)?;
    }
    let pivot = cx.slice(&rest, 2, 0, 1, 1)?;
    reduced.push((pivot, cx.slice(&rest, 2, 1, 1 + rows, 1)?));
    let inverse = substitute_back(cx, reduced, rows)?;
    Ok(vec![cx.reshape(&inverse, &[&outer[..], &[rows, rows]].concat())?])
}

/// Matrices `[count, rows, rows]`, and the dims that were before those of a matrix.
struct SquareMatrices {
    values: Val,
    outer: Vec<usize>,
    rows: usize,
}

fn take_matrices(cx: &mut Lowering, call: NodeCall<'_>, what: &str) -> Res<SquareMatrices> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let [ref outer @ .., rows, columns] = shape[..] else {
        return fail_with("a matrix has two dims");
    };
    if rows != columns || !(1..=MOST_ROWS).contains(&rows) {
        return fail_with(format!(
            "{what} is supported of square matrices of 1 to {MOST_ROWS} rows, not of {rows} x {columns}"
        ));
    }
    let count = outer.iter().product();
    let values = cx.reshape(&x, &[count, rows, rows])?;
    Ok(SquareMatrices { values, outer: outer.to_vec(), rows })
}

fn multiply_into_product(cx: &mut Lowering, product: Option<Val>, factor: Val) -> Res<Val> {
    match product {
        Some(product) => cx.apply_binary(BinaryFunction::Mul, &product, &factor),
        None => Ok(factor),
    }
}

/// Matrices `[count, n, n]` with the identity beside each: `[count, n, 2 n]`.
fn with_identity(cx: &mut Lowering, x: &Val, rows: usize) -> Res<Val> {
    let place = |at: usize| f64::from(u8::from(at / rows == at % rows));
    let of_one = TensorType::new(cx.ty(x)?.dtype, [1, rows, rows]);
    let identity = KnownValue::new(of_one, (0..rows * rows).map(place).collect());
    let count = cx.shape(x)?[0];
    let identity = cx.expand(&Val::Known(identity), &[count, rows, rows])?;
    cx.apply(Op::Concat(Concat { axis: 2 }), &[x.clone(), identity])
}

/// Solves R X = B from the last row up. Each row of R is given as its pivot `[count, 1, 1]` and what stands right of it, R's elements and then B's
/// `columns` ones.
fn substitute_back(cx: &mut Lowering, reduced: Vec<(Val, Val)>, columns: usize) -> Res<Val> {
    let mut solved: Option<Val> = None;
    for (below, (pivot, row)) in reduced.into_iter().rev().enumerate() {
        let mut wanted = cx.slice(&row, 2, below, below + columns, 1)?;
        if let Some(solved) = &solved {
            let factors = cx.slice(&row, 2, 0, below, 1)?;
            let known = cx.matmul(&factors, solved, false, false)?;
            wanted = cx.apply_binary(BinaryFunction::Sub, &wanted, &known)?;
        }
        let found = cx.apply_binary(BinaryFunction::Div, &wanted, &pivot)?;
        solved = Some(match solved {
            Some(solved) => cx.apply(Op::Concat(Concat { axis: 1 }), &[found, solved])?,
            None => found,
        });
    }
    solved.map_or_else(|| fail_with("a matrix has rows"), Ok)
}

/// The reflection that clears the first column x of matrices but for its first element. It is at v = x + sign(x0) |x| e0, and makes A - 2 v (v' A) /
/// (v' v) of A, whose first column is then -sign(x0) |x| e0.
struct Reflection {
    /// x's length with the sign of x0, `[count, 1, 1]`.
    factor: Val,
    /// v's first element, and the others `[count, rows - 1, 1]`.
    head: Val,
    tail: Val,
    /// The columns behind the first.
    others: Val,
    /// 2 (v' A) / (v' v) of these columns.
    along: Val,
    rows: usize,
}

impl Reflection {
    /// Of matrices of so many rows and columns.
    fn of_column(cx: &mut Lowering, x: &Val, [rows, columns]: [usize; 2]) -> Res<Self> {
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
        let v = cx.apply(Op::Concat(Concat { axis: 1 }), &[head.clone(), tail.clone()])?;
        let length = cx.apply_binary(BinaryFunction::Mul, &v, &v)?;
        let length = cx.reduce(ReduceFunction::Sum, &length, &[1], true)?;
        // A column of zeros is left as it is.
        let none = cx.apply_binary(BinaryFunction::Equal, &length, &zero)?;
        let one = cx.number_like(&length, 1.0)?;
        let length = cx.apply(Op::Where(Where {}), &[none, one, length])?;
        let others = cx.slice(x, 2, 1, columns, 1)?;
        let along = cx.matmul(&v, &others, true, false)?;
        let along = cx.apply_unary(UnaryFunction::Scale(Scalar(2.0)), &along)?;
        let along = cx.apply_binary(BinaryFunction::Div, &along, &length)?;
        Ok(Self { factor, head, tail, others, along, rows })
    }

    /// The first row of what it makes, but for the first column: `[count, 1, columns - 1]`.
    fn first_row(&self, cx: &mut Lowering) -> Res<Val> {
        let change = cx.apply_binary(BinaryFunction::Mul, &self.head, &self.along)?;
        let row = cx.slice(&self.others, 1, 0, 1, 1)?;
        cx.apply_binary(BinaryFunction::Sub, &row, &change)
    }

    /// The other rows, but for the first column, which is zero there: `[count, rows - 1, columns - 1]`.
    fn rows_below(&self, cx: &mut Lowering) -> Res<Val> {
        let change = cx.apply_binary(BinaryFunction::Mul, &self.tail, &self.along)?;
        let below = cx.slice(&self.others, 1, 1, self.rows, 1)?;
        cx.apply_binary(BinaryFunction::Sub, &below, &change)
    }
}
