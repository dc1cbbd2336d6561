//! The gradient of sums of all elements up to each: such sums in the other direction.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::CumulativeSum;

impl Differentiable for CumulativeSum {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let op = Op::CumulativeSum(Self { reverse: !self.reverse, ..*self });
        let gradient = first_gradient(node).filter(|g| g.ty().dtype.is_float());
        vec![gradient.map(|g| g.builder().apply(op, &[g]))]
    }
}
