//! The gradient of the greatest elements: their places take it in.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{ScatterSum, TopK};

impl Differentiable for TopK {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let shape = node.operands[0].shape();
        let op = ScatterSum { places: shape[shape.len() - 1] };
        let gradient = first_gradient(node).filter(|g| g.ty().dtype.is_float());
        let of_x = |g: &Tensor| g.builder().apply(Op::ScatterSum(op), &[&node.results[1], g]);
        vec![gradient.map(of_x)]
    }
}
