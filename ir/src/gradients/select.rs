//! Gradients of elementwise choice and of casts.

use super::{Differentiable, GradientNode, gradient_of};
use crate::builder::Tensor;
use crate::ops::{Cast, Where};

impl Differentiable for Where {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [condition, a, b] = node.operands else { return Vec::new() };
        let Some(g) = &node.gradients[0] else { return vec![None, None, None] };
        let zero = || g.scalar_like(0.0);
        let of_a = gradient_of(a, || condition.select(g, &zero()));
        let of_b = gradient_of(b, || condition.select(&zero(), g));
        vec![None, of_a, of_b]
    }
}

impl Differentiable for Cast {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let from = node.operands[0].ty().dtype;
        let gradient = node.gradients[0].as_ref();
        let floats = from.is_float() && self.dtype.is_float();
        vec![gradient.filter(|_| floats).map(|g| g.cast(from))]
    }
}
