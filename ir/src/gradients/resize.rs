//! Gradients of interpolation and of its gradient: each is the other.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Resize, ResizeGrad};

impl Differentiable for Resize {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let extent = node.operands[0].shape().get(self.axis).copied().unwrap_or(1);
        let op = ResizeGrad { axis: self.axis, extent, sampling: self.sampling };
        let of = |dy: &Tensor| dy.builder().apply(Op::ResizeGrad(op), &[dy]);
        vec![first_gradient(node).map(of)]
    }
}

impl Differentiable for ResizeGrad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let extent = node.operands[0].shape().get(self.axis).copied().unwrap_or(1);
        let op = Resize { axis: self.axis, extent, sampling: self.sampling };
        let of = |dx: &Tensor| dx.builder().apply(Op::Resize(op), &[dx]);
        vec![first_gradient(node).map(of)]
    }
}
