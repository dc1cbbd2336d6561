//! Gradients of pooling.

use super::{Differentiable, GradientNode, first_gradient, image_extents};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{AveragePool, AveragePoolGrad, MaxPool, MaxPoolGrad};

impl Differentiable for MaxPool {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let Self { kernel, window, channels_last } = *self;
        let op = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        vec![first_gradient(node).map(|dy| dy.builder().apply(op, &[&node.operands[0], dy]))]
    }
}

impl Differentiable for AveragePool {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let Self { kernel, window, count_border, channels_last } = *self;
        let extents = image_extents(&node.operands[0], channels_last);
        let op = AveragePoolGrad { kernel, window, count_border, extents, channels_last };
        let of = |dy: &Tensor| dy.builder().apply(Op::AveragePoolGrad(op), &[dy]);
        vec![first_gradient(node).map(of)]
    }
}

impl Differentiable for AveragePoolGrad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let Self { kernel, window, count_border, channels_last, .. } = *self;
        let op = Op::AveragePool(AveragePool { kernel, window, count_border, channels_last });
        vec![first_gradient(node).map(|g| g.builder().apply(op, &[g]))]
    }
}
