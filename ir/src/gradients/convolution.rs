//! Gradients of convolution and of its two gradients, each of which is one of the three.

use super::{Differentiable, GradientNode, first_gradient, image_extents};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Convolution, ConvolutionInputGrad, ConvolutionKernelGrad};

impl Differentiable for Convolution {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, k] = node.operands else { return Vec::new() };
        let Some(dy) = first_gradient(node) else { return vec![None, None] };
        vec![Some(self.input_gradient(x, k, dy)), Some(self.kernel_gradient(x, k, dy))]
    }
}

impl Differentiable for ConvolutionInputGrad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [k, dy] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node) else { return vec![None, None] };
        let &Self { window, groups, channels_last, .. } = self;
        let convolution = Convolution { window, groups, channels_last };
        vec![Some(convolution.kernel_gradient(g, k, dy)), Some(convolution.apply_to(g, k))]
    }
}

impl Differentiable for ConvolutionKernelGrad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, dy] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node) else { return vec![None, None] };
        let &Self { window, groups, channels_last, .. } = self;
        let convolution = Convolution { window, groups, channels_last };
        vec![Some(convolution.input_gradient(x, g, dy)), Some(convolution.apply_to(x, g))]
    }
}

impl Convolution {
    fn apply_to(self, x: &Tensor, k: &Tensor) -> Tensor {
        x.builder().apply(Op::Convolution(self), &[x, k])
    }

    fn input_gradient(self, x: &Tensor, k: &Tensor, dy: &Tensor) -> Tensor {
        let Self { window, groups, channels_last } = self;
        let extents = image_extents(x, channels_last);
        let op = ConvolutionInputGrad { window, groups, extents, channels_last };
        dy.builder().apply(Op::ConvolutionInputGrad(op), &[k, dy])
    }

    fn kernel_gradient(self, x: &Tensor, k: &Tensor, dy: &Tensor) -> Tensor {
        let Self { window, groups, channels_last } = self;
        let extents = image_extents(k, false);
        let op = ConvolutionKernelGrad { window, groups, extents, channels_last };
        dy.builder().apply(Op::ConvolutionKernelGrad(op), &[x, dy])
    }
}
