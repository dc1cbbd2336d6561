//! Gradients of concat and split: each is the other.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::ops::{Concat, Split};

impl Differentiable for Concat {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let Some(dy) = first_gradient(node) else { return vec![None; node.operands.len()] };
        let sizes: Vec<usize> = node.operands.iter().map(|o| o.shape()[self.axis]).collect();
        dy.split(self.axis, &sizes).into_iter().map(Some).collect()
    }
}

impl Differentiable for Split {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let parts: Vec<Tensor> = node
            .results
            .iter()
            .zip(node.gradients)
            .map(|(result, gradient)| gradient.clone().unwrap_or_else(|| result.full_like(0.0)))
            .collect();
        vec![Some(node.operands[0].builder().concat(&parts, self.axis))]
    }
}
