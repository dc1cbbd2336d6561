//! Sums of products by the names of dims.

use graphc_ir::builder::{Products, apply_einsum as sum_products};
use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, ReduceFunction, Slice};

use super::lower::{Lowering, Val};
use super::node::{LoweringProblem, NodeCall, Res};

pub(super) fn lower_einsum(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let equation = call.text("equation", "")?;
    let operands = cx.operands(call)?;
    Ok(vec![sum_products(cx, equation, operands)?])
}

impl Products for Lowering {
    type Tensor = Val;
    type Error = LoweringProblem;

    fn shape(&mut self, x: &Val) -> Res<Vec<usize>> {
        Self::shape(self, x)
    }

    fn sum(&mut self, x: &Val, dims: &[usize]) -> Res<Val> {
        self.reduce(ReduceFunction::Sum, x, dims, false)
    }

    fn transpose(&mut self, x: &Val, order: Vec<usize>) -> Res<Val> {
        Self::transpose(self, x, order)
    }

    fn reshape(&mut self, x: &Val, shape: &[usize]) -> Res<Val> {
        Self::reshape(self, x, shape)
    }

    fn multiply(&mut self, a: &Val, b: &Val) -> Res<Val> {
        self.apply_binary(BinaryFunction::Mul, a, b)
    }

    fn take_every(&mut self, x: &Val, step: usize) -> Res<Val> {
        let shape = Self::shape(self, x)?;
        self.apply(Op::Slice(Slice::stride_last_dim(&shape, step)), std::slice::from_ref(x))
    }

    fn matmul(&mut self, a: &Val, b: &Val) -> Res<Val> {
        Self::matmul(self, a, b, false, false)
    }
}
