//! The gradient of reshape: a reshape.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::ops::Reshape;

impl Differentiable for Reshape {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        vec![first_gradient(node).map(|dy| dy.reshape(&node.operands[0].shape()))]
    }
}
