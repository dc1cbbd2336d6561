//! The gradient of batch normalization by the statistics of the batch itself.

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::ops::BatchNormTraining;
use crate::types::DType;

impl Differentiable for BatchNormTraining {
    /// Returns the gradients. With xhat = (x - mean) r, r = 1 / sqrt(variance + epsilon), over the n elements of a statistic: dx = scale r
    /// (g - sum(g) / n - xhat sum(g xhat) / n), as if nothing depended on x but y, its mean and variance.
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let ([x, scale, bias], [_, mean, variance]) = (node.operands, node.results) else {
            return Vec::new();
        };
        let [of_y, of_mean, of_variance] = node.gradients else { return Vec::new() };
        let (shape, dtype) = (x.shape(), x.ty().dtype);
        let seen = self.view_channels(&shape);
        let share = 1.0 / seen.count_elements().max(1) as f64;
        let see = |tensor: &Tensor| reshape_if_needed(&tensor.cast(DType::F32), &seen.shape);
        let centered = see(x).sub(mean);
        let of_centered = of_variance.as_ref().map(|g| g.scale(2.0 * share));
        let mut dx = of_centered.map(|slope| centered.mul(&slope));
        let mut add =
            |term: Tensor| dx = Some(dx.as_ref().map_or(term.clone(), |sum| sum.add(&term)));
        if let Some(g) = of_mean {
            add(g.scale(share).expand(&seen.shape));
        }
        let (mut of_scale, mut of_bias) = (None, None);
        if let Some(g) = of_y {
            let g = see(g);
            let r = variance.offset(self.epsilon.0).rsqrt();
            let sum = g.sum(&seen.axes, seen.keep_dims);
            let along = g.mul(&centered).sum(&seen.axes, seen.keep_dims);
            let slope = along.mul(&r.mul(&r)).scale(share);
            let rest = g.sub(&sum.scale(share)).sub(&centered.mul(&slope));
            add(rest.mul(&r.mul(&reshape_if_needed(&scale.cast(DType::F32), &seen.wide))));
            of_scale = Some(self.of_channels(&along.mul(&r), scale));
            of_bias = Some(self.of_channels(&sum, bias));
        }
        vec![dx.map(|dx| reshape_if_needed(&dx, &shape).cast(dtype)), of_scale, of_bias]
    }
}

impl BatchNormTraining {
    /// Returns the gradient of an operand of channels from what the parts contribute.
    fn of_channels(&self, of_parts: &Tensor, operand: &Tensor) -> Tensor {
        let others: Vec<usize> =
            (0..of_parts.shape().len()).filter(|&dim| dim != self.channel + 1).collect();
        let sum = if self.batches == 1 { of_parts.clone() } else { of_parts.sum(&others, false) };
        reshape_if_needed(&sum, &operand.shape()).cast(operand.ty().dtype)
    }
}

/// Returns the same elements in another shape; the same tensor if it has that shape already.
fn reshape_if_needed(tensor: &Tensor, shape: &[usize]) -> Tensor {
    if tensor.shape() == shape { tensor.clone() } else { tensor.reshape(shape) }
}
