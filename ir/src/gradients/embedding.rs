//! Gradients of the look-up of rows and of its gradient: each is the other.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{EmbeddingGrad, EmbeddingOp};

impl Differentiable for EmbeddingOp {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let op = Op::EmbeddingGrad(EmbeddingGrad { rows: node.operands[0].shape()[0] });
        let table = first_gradient(node).map(|dy| dy.builder().apply(op, &[&node.operands[1], dy]));
        vec![table, None]
    }
}

impl Differentiable for EmbeddingGrad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let ids = &node.operands[0];
        let op = Op::Embedding(EmbeddingOp {});
        vec![None, first_gradient(node).map(|table| table.builder().apply(op, &[table, ids]))]
    }
}
