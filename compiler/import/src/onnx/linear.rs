//! Matrix products. A transposition of the last two dims becomes part of the product, so that weights that the exporter
//! transposes in the graph keep the model's names and shapes.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, MatMul, UnaryFunction};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

impl Lowering {
    pub(super) fn matmul(
        &mut self,
        a: &Val,
        b: &Val,
        transpose_a: bool,
        transpose_b: bool,
    ) -> Res<Val> {
        let (a, swapped_a) = self.transposed_of(a).map_or((a.clone(), false), |a| (a, true));
        let (b, swapped_b) = self.transposed_of(b).map_or((b.clone(), false), |b| (b, true));
        let transpose_a = transpose_a != swapped_a;
        let transpose_b = transpose_b != swapped_b;
        self.apply(Op::MatMul(MatMul { transpose_a, transpose_b }), &[a, b])
    }
}

/// Lowers a product as NumPy defines it: an operand of one dim is a row on the left or a column on the right, and that dim is removed from the
/// result.
pub(super) fn lower_matmul(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (mut a, mut b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let (shape_a, shape_b) = (cx.shape(&a)?, cx.shape(&b)?);
    if shape_a.is_empty() || shape_b.is_empty() {
        return fail_with("an operand has no dims");
    }
    let (row, column) = (shape_a.len() == 1, shape_b.len() == 1);
    if row {
        a = cx.reshape(&a, &[1, shape_a[0]])?;
    }
    if column {
        b = cx.reshape(&b, &[shape_b[0], 1])?;
    }
    let product = cx.matmul(&a, &b, false, false)?;
    let mut shape = cx.shape(&product)?;
    if column {
        shape.pop();
    }
    if row {
        shape.remove(shape.len() - usize::from(!column) - 1);
    }
    Ok(vec![if row || column { cx.reshape(&product, &shape)? } else { product }])
}

/// alpha A B + beta C
pub(super) fn lower_gemm(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (a, b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    if cx.shape(&a)?.len() != 2 || cx.shape(&b)?.len() != 2 {
        let (a, b) = (cx.ty(&a)?, cx.ty(&b)?);
        return fail_with(format!("its operands must be matrices, not {a} and {b}"));
    }
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    let product = cx.matmul(&a, &b, call.int("transA", 0)? != 0, call.int("transB", 0)? != 0)?;
    let product = scale_value(cx, product, alpha)?;
    match cx.optional_operand(call, 2)? {
        Some(c) if beta != 0.0 => {
            let c = scale_value(cx, c, beta)?;
            Ok(vec![cx.apply_binary(BinaryFunction::Add, &product, &c)?])
        }
        _ => Ok(vec![product]),
    }
}

fn scale_value(cx: &mut Lowering, x: Val, factor: f64) -> Res<Val> {
    if factor == 1.0 { Ok(x) } else { cx.apply_unary(UnaryFunction::Scale(Scalar(factor)), &x) }
}
