//! Gradients of transpose, expand, triangle and zigzag.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Expand, Transpose, Triangle, Zigzag};

impl Differentiable for Transpose {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let mut inverse = vec![0; self.permutation.len()];
        for (to, &from) in self.permutation.iter().enumerate() {
            inverse[from] = to;
        }
        vec![first_gradient(node).map(|dy| dy.transpose(&inverse))]
    }
}

impl Differentiable for Expand {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let shape = node.operands[0].shape();
        vec![first_gradient(node).map(|dy| dy.sum_to(&shape))]
    }
}

impl Differentiable for Triangle {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let masked = |dy: &Tensor| dy.builder().apply(Op::Triangle(*self), &[dy]);
        vec![first_gradient(node).map(masked)]
    }
}

impl Differentiable for Zigzag {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let back = Op::Zigzag(Self { inverse: !self.inverse, ..*self });
        vec![first_gradient(node).map(|dy| dy.builder().apply(back, &[dy]))]
    }
}
