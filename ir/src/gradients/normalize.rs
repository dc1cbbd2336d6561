//! The gradient of normalization over the last dim.

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Normalize, NormalizeGrad};
use crate::types::DType;

impl Differentiable for Normalize {
    /// Returns the gradient of x. Through r it is dr/dx = -r^2 y / d, for d elements.
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let (y, r) = (&node.results[0], &node.results[1]);
        let builder = y.builder();
        let op = Op::NormalizeGrad(NormalizeGrad { center: self.center });
        let of_y = node.gradients[0].as_ref().map(|dy| builder.apply(op, &[y, r, dy]));
        let of_r = node.gradients[1].as_ref().map(|dr| {
            let extent = y.shape().last().copied().unwrap_or(1) as f64;
            let slope = r.mul(r).mul(dr).scale(-1.0 / extent);
            y.cast(DType::F32).mul(&slope).cast(y.ty().dtype)
        });
        vec![match (of_y, of_r) {
            (Some(a), Some(b)) => Some(a.add(&b)),
            (a, b) => a.or(b),
        }]
    }
}
