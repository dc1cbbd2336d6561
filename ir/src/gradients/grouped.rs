//! Gradients of products of experts: such products again.

use super::{Differentiable, GradientNode, first_gradient, gradient_of};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{GroupedMatMul, GroupedMatMulGrad};

impl Differentiable for GroupedMatMul {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, matrices, chosen] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node) else { return vec![None; 3] };
        let apply = |op, operands: [&Tensor; 3]| g.builder().apply(op, &operands);
        let back = GroupedMatMul { transpose_b: !self.transpose_b };
        let of_x = gradient_of(x, || apply(Op::GroupedMatMul(back), [g, matrices, chosen]));
        let of_matrices = gradient_of(matrices, || {
            let [rows, columns] = if self.transpose_b { [g, x] } else { [x, g] };
            let op = GroupedMatMulGrad { experts: matrices.shape()[0] };
            apply(Op::GroupedMatMulGrad(op), [rows, columns, chosen])
        });
        vec![of_x, of_matrices, None]
    }
}

impl Differentiable for GroupedMatMulGrad {
    /// Returns the gradients of both tensors of places; the op is linear in each.
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, y, chosen] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node) else { return vec![None; 3] };
        let product = |transpose_b, places: &Tensor| {
            let op = Op::GroupedMatMul(GroupedMatMul { transpose_b });
            g.builder().apply(op, &[places, g, chosen])
        };
        let of_x = gradient_of(x, || product(true, y));
        let of_y = gradient_of(y, || product(false, x));
        vec![of_x, of_y, None]
    }
}
