//! The gradient of batch normalization by given statistics.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::ops::BatchNorm;

impl Differentiable for BatchNorm {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, scale, _, mean, variance] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node) else { return vec![None; 5] };
        let rank = x.shape().len();
        let wide = |of_channel: &Tensor| {
            let ones = vec![1; rank.saturating_sub(2)];
            of_channel.reshape(&[of_channel.shape(), ones].concat())
        };
        let others: Vec<usize> = (0..rank).filter(|&dim| dim != 1).collect();
        let root = variance.offset(self.epsilon.0).rsqrt();
        let dx = g.mul(&wide(&scale.mul(&root)));
        let of_centered = g.mul(&x.sub(&wide(mean))).sum(&others, false);
        let bias = g.sum(&others, false);
        let of_variance = of_centered.mul(scale).mul(&root.mul(&root).mul(&root)).scale(-0.5);
        let of_mean = bias.mul(&scale.mul(&root)).neg();
        vec![Some(dx), Some(of_centered.mul(&root)), Some(bias), Some(of_mean), Some(of_variance)]
    }
}
