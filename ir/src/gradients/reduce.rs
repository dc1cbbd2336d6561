//! The gradient of reductions.

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::ops::{Reduce, ReduceFunction};
use crate::types::TensorType;

impl Differentiable for Reduce {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let (x, y) = (&node.operands[0], &node.results[0]);
        let TensorType { dtype, shape } = x.ty();
        let Some(g) = node.gradients[0].as_ref().filter(|_| dtype.is_float()) else {
            return vec![None];
        };
        let kept = self.kept_shape(&shape);
        let g = g.reshape(&kept);
        vec![Some(match self.function {
            ReduceFunction::Sum => g.expand(&shape),
            ReduceFunction::Mean => {
                g.scale(1.0 / self.count_elements(&shape) as f64).expand(&shape)
            }
            ReduceFunction::Max | ReduceFunction::Min => {
                let attained = x.equal(&y.reshape(&kept)).cast(dtype);
                let ties = attained.sum(&self.axes, true);
                attained * (g / ties)
            }
            ReduceFunction::MaxAbs => {
                let attained = x.abs().equal(&y.reshape(&kept)).cast(dtype);
                let ties = attained.sum(&self.axes, true);
                x.sign() * attained * (g / ties)
            }
        })]
    }
}
