//! Gradients of slice and pad: each is the other.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Pad, Slice};
use crate::scalar::Scalar;

impl Differentiable for Slice {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let shape = node.operands[0].shape();
        let after = |dim: usize| match self.count_taken(dim) {
            0 => shape[dim] - self.starts[dim],
            n => shape[dim] - (self.starts[dim] + (n - 1) * self.steps[dim] + 1),
        };
        let pad = Pad {
            low: self.starts.clone(),
            high: (0..shape.len()).map(after).collect(),
            interior: self.steps.iter().map(|step| step - 1).collect(),
            value: Scalar(0.0),
        };
        vec![first_gradient(node).map(|dy| dy.builder().apply(Op::Pad(pad), &[dy]))]
    }
}

impl Differentiable for Pad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let shape = node.operands[0].shape();
        let end = |dim: usize| match shape[dim] {
            0 => self.low[dim],
            n => self.low[dim] + (n - 1) * (self.interior[dim] + 1) + 1,
        };
        let slice = Slice {
            starts: self.low.clone(),
            ends: (0..shape.len()).map(end).collect(),
            steps: self.interior.iter().map(|interior| interior + 1).collect(),
        };
        vec![first_gradient(node).map(|dy| dy.builder().apply(Op::Slice(slice), &[dy]))]
    }
}
