//! Gradients of losses over classes.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{CrossEntropy, CrossEntropyGrad, Pad, Pick, PickGrad};
use crate::types::DType;

impl Differentiable for Pick {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let (x, labels) = (&node.operands[0], &node.operands[1]);
        let op = Op::PickGrad(PickGrad { classes: x.shape().last().copied().unwrap_or(0) });
        vec![first_gradient(node).map(|g| g.builder().apply(op, &[labels, g])), None]
    }
}

impl Differentiable for PickGrad {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let labels = &node.operands[0];
        let pick = |dx: &Tensor| dx.builder().apply(Op::Pick(Pick::default()), &[dx, labels]);
        vec![None, first_gradient(node).map(pick)]
    }
}

impl Differentiable for CrossEntropy {
    /// Returns the gradients of x. The gradient of l with respect to x is softmax(x) for every label, ignored or not.
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let (x, labels, l) = (&node.operands[0], &node.operands[1], &node.results[1]);
        let of_loss = node.gradients[0].as_ref().map(|g| {
            let op = CrossEntropyGrad { smoothing: self.smoothing, classes: self.classes };
            g.builder().apply(Op::CrossEntropyGrad(op), &[x, l, labels, g])
        });
        let of_l = node.gradients[1].as_ref().map(|g| {
            let (kept, last) = ([l.shape(), vec![1]].concat(), l.shape().len());
            let extent = x.shape()[last];
            let classes = self.classes.unwrap_or(extent);
            let scores = if classes < extent { x.slice(last, 0..classes) } else { x.clone() };
            let softmax = scores.cast(DType::F32).sub(&l.reshape(&kept)).exp();
            let of_scores = softmax.mul(&g.reshape(&kept)).cast(x.ty().dtype);
            if classes < extent { pad_to_extent(&of_scores, last, extent) } else { of_scores }
        });
        let dx = match (of_loss, of_l) {
            (Some(a), Some(b)) => Some(a.add(&b)),
            (a, b) => a.or(b),
        };
        vec![dx, None]
    }
}

/// Appends zeros behind a dim, up to an extent.
fn pad_to_extent(x: &Tensor, dim: usize, extent: usize) -> Tensor {
    x.builder().apply(Op::Pad(Pad::to_extent(&x.shape(), dim, extent)), &[x])
}
