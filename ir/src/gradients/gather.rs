//! Gradients of elements taken by places and of sums over places: each is the other.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Gather, ScatterSum};

impl Differentiable for Gather {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, places] = node.operands else { return Vec::new() };
        let gradient = first_gradient(node).filter(|_| x.ty().dtype.is_float());
        let op = || ScatterSum { places: x.shape()[places.shape().len() - 1] };
        vec![gradient.map(|g| g.builder().apply(Op::ScatterSum(op()), &[places, g])), None]
    }
}

impl Differentiable for ScatterSum {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let places = &node.operands[0];
        let gradient = first_gradient(node).filter(|g| g.ty().dtype.is_float());
        vec![None, gradient.map(|g| g.builder().apply(Op::Gather(Gather {}), &[g, places]))]
    }
}
