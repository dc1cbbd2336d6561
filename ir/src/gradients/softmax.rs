//! Gradients of softmax and of its logarithm.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad};

impl Differentiable for Softmax {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let op = Op::SoftmaxGrad(SoftmaxGrad { axis: self.axis });
        let y = &node.results[0];
        vec![first_gradient(node).map(|dy| dy.builder().apply(op, &[y, dy]))]
    }
}

impl Differentiable for LogSoftmax {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let op = Op::LogSoftmaxGrad(LogSoftmaxGrad { axis: self.axis });
        let y = &node.results[0];
        vec![first_gradient(node).map(|dy| dy.builder().apply(op, &[y, dy]))]
    }
}
