//! Gradients of ops that leave the tensor as it is.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::ops::{Accumulate, Regather, ToGlobal};

impl Differentiable for ToGlobal {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        vec![first_gradient(node).cloned()]
    }
}

impl Differentiable for Regather {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        vec![first_gradient(node).cloned()]
    }
}

impl Differentiable for Accumulate {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        vec![first_gradient(node).cloned()]
    }
}
