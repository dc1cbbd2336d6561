//! The gradient of rotary position embedding: the same turn, backwards.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::Rotary;

impl Differentiable for Rotary {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let op = Op::Rotary(Self { inverse: !self.inverse, ..*self });
        vec![first_gradient(node).map(|g| g.builder().apply(op, &[g]))]
    }
}
