//! The gradient of dropout: the same elements are dropped.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::DropoutOp;

impl Differentiable for DropoutOp {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        vec![first_gradient(node).map(|dy| dy.builder().apply(Op::Dropout(*self), &[dy]))]
    }
}
